// The half of the prefill role that ships KV: which frames leave when, what the answers to them and
// the Acks mean.
#include "baton/base/check.h"
#include "baton/base/log.h"
#include "baton/handoff/convert.h"
#include "baton/handoff/prefill_role.h"
#include "baton/handoff/tile_plan.h"

#include <algorithm>
#include <utility>

namespace baton::handoff {

bool PrefillRole::try_claim(Entry& entry) {
  if (entry.shipment) {
    return true;
  }
  if (!entry.has_grant || !entry.leased) {
    return false;
  }
  if (entry.blocks.claim != nullptr && !entry.blocks.claim->claim()) {
    entry.leased = false;  // the engine needed the room: it lends others when it goes on
    return false;
  }
  const auto pace = seconds_per_byte_.find(entry.decode_node);
  const Way way{pace == seconds_per_byte_.end() ? 0 : pace->second,
                static_cast<double>(context_.options.slow_way_us) * 1e-6};
  entry.shipment.emplace(context_.layout, entry.granted, entry.kv_tokens,
                         context_.options.min_frame_bytes, way);
  if (context_.options.stream_kv && entry.blocks.claim != nullptr &&
      entry.shipment->wants_layers()) {
    entry.blocks.claim->want_layers();
  }
  return true;
}

void PrefillRole::try_send(Entries::iterator at, TimePoint now) {
  Entry& entry = at->second;
  const bool too_early = entry.state == State::kPrefilling && !context_.options.stream_kv;
  if (too_early || entry.state == State::kEnding || entry.state == State::kAwaitAck ||
      !try_claim(entry)) {
    return;
  }
  PayloadShipment& shipment = *entry.shipment;
  shipment.set_computed(entry.computed_tokens);
  while (const auto frame = shipment.take_next(now)) {
    if (!send_frame(at, *frame)) {
      shipment.on_sent(frame->number, nullptr);
      BATON_BUG("the lease of {} lacks blocks", to_string(at->first));
      fail_handoff(at, Error{ErrorCode::kInternal, "the prefill node lacks KV blocks"}, now);
      return;
    }
  }
  return_done_blocks(entry);
  if (entry.state == State::kSending && shipment.all_sent() && !entry.commit_under_way) {
    entry.commit_under_way = true;
    wire::pb::Commit commit = commit_of(entry);
    shipment.fill(commit);
    context_.outbox.send_commit(entry.decode_node, at->first, std::move(commit));
  }
}

bool PrefillRole::send_frame(Entries::iterator at, const PayloadShipment::Frame& frame) {
  const Entry& entry = at->second;
  std::vector<wire::pb::TileRange> range(1);
  range[0].set_group(frame.blocks.group);
  range[0].set_first_tile(frame.blocks.first_tile);
  range[0].set_tiles(frame.blocks.tiles);
  if (!tables_cover(context_.layout, entry.blocks.tables, range)) {
    return false;
  }
  FrameJob job{entry.decode_node, at->first, frame.blocks, frame.number, {}};
  job.tiles = const_spans(
      collect_spans(context_.layout, entry.blocks.tables[frame.blocks.group], frame.blocks));
  context_.outbox.send_frame(std::move(job));
  context_.stats.layer_frames += frame.by_layers ? 1 : 0;
  return true;
}

void PrefillRole::return_done_blocks(Entry& entry) {
  std::vector<message::BlockRange> done = entry.shipment->take_done_blocks();
  if (!done.empty()) {
    context_.outbox.engine(message::ReleaseBlocks{entry.blocks.lease, std::move(done)});
  }
}

void PrefillRole::on(const FrameSent& sent, TimePoint now) {
  const auto at = entries_.find(sent.key);
  if (at == entries_.end()) {
    BATON_BUG("a frame of an unknown sequence {} was sent", to_string(sent.key));
    return;
  }
  Entry& entry = at->second;
  entry.shipment->on_sent(sent.number, sent.result ? &*sent.result : nullptr);
  if (entry.state == State::kEnding) {
    if (!entry.shipment->in_flight()) {
      erase(at);
    }
  } else if (!sent.result) {
    fail_handoff(at, sent.result.error(), now);
  } else {
    try_send(at, now);
  }
}

void PrefillRole::on(const CommitSent& sent, TimePoint now) {
  const auto at = entries_.find(sent.key);
  if (at == entries_.end() || at->second.state != State::kSending) {
    // Ended since, or on index 0. Lost then: the decode node finds by our Beats that we no longer
    // have the sequence.
    if (!sent.status) {
      log::warn("the Commit of {} was not sent: {}", to_string(sent.key),
                sent.status.error().message);
    }
    return;
  }
  Entry& entry = at->second;
  if (!sent.status) {
    fail_handoff(at, sent.status.error(), now);
    return;
  }
  entry.state = State::kAwaitAck;
  entry.deadline = now + milliseconds(context_.options.handoff_deadline_ms);
  if (entry.acked) {
    end_acked(at, now);
  }
}

void PrefillRole::on(const AckInput& ack, TimePoint now) {
  const auto at = entries_.find(ack.key);
  if (at == entries_.end()) {
    ++context_.stats.stale_messages;
    return;
  }
  Entry& entry = at->second;
  if (ack.from != entry.decode_node) {
    ++context_.stats.protocol_errors;
  } else if (!ack.ack.all()) {
    take_ranges(entry, ack.ack, now);
  } else if (entry.state == State::kAwaitAck) {
    end_acked(at, now);
  } else if (entry.state == State::kSending && entry.commit_under_way) {
    entry.acked = true;
  } else {
    ++context_.stats.protocol_errors;
  }
}

void PrefillRole::end_acked(Entries::iterator at, TimePoint now) {
  context_.stats.whole.observe(now - at->second.granted_at);
  context_.stats.exposed.observe(now - at->second.prefilled_at);
  end(at, Outcome::kOk, now);
}

// What the decode node has need not be kept for it any more.
void PrefillRole::take_ranges(Entry& entry, const wire::pb::Ack& ack, TimePoint now) {
  const std::vector<wire::pb::TileRange> ranges(ack.ranges().begin(), ack.ranges().end());
  if (!entry.shipment || !entry.shipment->on_ack(ranges, now)) {
    ++context_.stats.protocol_errors;
    return;
  }
  if (entry.state == State::kEnding) {
    return;
  }
  if (const auto measured = entry.shipment->take_seconds_per_byte()) {
    // Other handoffs, or a busy machine, make it longer: down at once, up by and by.
    double& pace = seconds_per_byte_.emplace(entry.decode_node, *measured).first->second;
    pace = std::min(*measured, 2 * pace);
  }
  return_done_blocks(entry);
}

}  // namespace baton::handoff
