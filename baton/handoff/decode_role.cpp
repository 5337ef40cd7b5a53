#include "baton/handoff/decode_role.h"

#include "baton/base/cells.h"
#include "baton/base/check.h"
#include "baton/base/failpoints.h"
#include "baton/base/log.h"
#include "baton/handoff/convert.h"
#include "baton/handoff/tile_plan.h"
#include "baton/wire/digest.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace baton::handoff {

void DecodeRole::handle(DecodeInput input, TimePoint now) {
  // kill: the node dies between two changes of state, or with what it decided still unsent.
  static_cast<void>(BATON_FAILPOINT("decode_role.before"));
  BATON_CELLS(count_cells(input));
  std::visit([&](auto&& item) { on(std::forward<decltype(item)>(item), now); }, std::move(input));
  static_cast<void>(BATON_FAILPOINT("decode_role.after"));
}

void DecodeRole::on(DecodeRoleHandoff handoff, TimePoint now) {
  const message::Submit& submit = handoff.submit;
  const SequenceKey key = submit.key;
  if (entries_.contains(key)) {
    ++context_.stats.stale_messages;
    return;
  }
  Entry entry;
  entry.prefill_node = std::move(handoff.prefill_node);
  entry.reply_to = std::move(handoff.reply_to);
  entry.deadline = now + milliseconds(context_.options.queue_deadline_ms);
  entry.link_deadline = now + milliseconds(context_.options.lease_ms);
  entry.expected = {key, static_cast<std::int32_t>(submit.prompt.size() + submit.emitted.size()),
                    static_cast<std::int32_t>(submit.emitted.size()),
                    wire::tokens_digest(submit.prompt, submit.emitted)};
  if (!context_.outbox.engine(message::Reserve{std::move(handoff.submit)})) {
    const Error full{ErrorCode::kOverloaded, "the engine's mailbox is full"};
    context_.outbox.control(entry.reply_to, key, refused_to_wire(true, full));
    context_.outbox.control(entry.prefill_node, key, abort_to_wire(full));
    context_.tombstones.add(key, now);
    return;
  }
  context_.leases.watch(entry.reply_to, WatchKind::kOwner, key, true, 0, now);
  context_.leases.watch(entry.prefill_node, WatchKind::kCounterpart, key, false,
                        context_.options.queue_deadline_ms, now);
  entries_.emplace(key, std::move(entry));
  for (const CommitReceived& commit : kept_.take(key)) {
    handle(commit, now);
  }
}

void DecodeRole::on(message::Reserved reserved, TimePoint now) {
  const auto at = entries_.find(reserved.key);
  if (at == entries_.end()) {
    context_.outbox.engine(message::Release{reserved.blocks.lease});
    return;
  }
  Entry& entry = at->second;
  std::vector<wire::pb::TileRange> ranges =
      tiles_lacking(context_.layout, entry.expected.kv_tokens, reserved.cached_tokens);
  if (entry.state != State::kReserving || reserved.kv_tokens != entry.expected.kv_tokens ||
      ranges.empty() || !tables_cover(context_.layout, reserved.blocks.tables, ranges)) {
    BATON_BUG("the reservation of {} does not fit its request", to_string(reserved.key));
    context_.outbox.engine(message::Release{reserved.blocks.lease});
    fail_handoff(at, Error{ErrorCode::kInternal, "the decode node's reservation does not fit"},
                 now);
    return;
  }
  entry.lease = reserved.blocks.lease;
  entry.cached_tokens = reserved.cached_tokens;
  entry.ranges = std::move(ranges);
  entry.receipt.emplace(context_.layout, entry.ranges);
  entry.state = State::kReceiving;
  // Tiles may come from now on, the Commit when the prefill has ended: that is what takes long. A
  // dead prefill node is found by its Beats.
  entry.deadline = now + milliseconds(context_.options.prefill_deadline_ms +
                                      context_.options.handoff_deadline_ms);
  entry.link_deadline = now + milliseconds(context_.options.lease_ms);
  table_.open(reserved.key, {entry.prefill_node, std::move(reserved.blocks.tables), entry.ranges});
  send_grant(at, now);
}

void DecodeRole::send_grant(Entries::iterator at, TimePoint now) {
  Entry& entry = at->second;
  if (context_.leases.find(entry.prefill_node) == nullptr) {
    return;  // PeerUp sends it, or tick() ends the wait
  }
  entry.granted_at = now;
  wire::pb::Grant grant;
  grant.set_tokens_digest(entry.expected.tokens_digest);
  grant.mutable_ranges()->Assign(entry.ranges.begin(), entry.ranges.end());
  entry.granted =
      context_.outbox.control(entry.prefill_node, at->first, std::move(grant)).has_value();
}

void DecodeRole::on(const PeerUp& up, TimePoint now) {
  for (auto at = entries_.begin(); at != entries_.end(); ++at) {
    if (at->second.prefill_node == up.info.id && at->second.state == State::kReceiving &&
        !at->second.granted) {
      send_grant(at, now);
    }
  }
}

void DecodeRole::on(const BlocksReceived& frame, TimePoint now) {
  const auto at = entries_.find(frame.key);
  if (at == entries_.end() || at->second.state != State::kReceiving) {
    ++context_.stats.stale_messages;
    return;
  }
  Entry& entry = at->second;
  if (frame.peer != entry.prefill_node) {
    ++context_.stats.protocol_errors;  // refused by the table; not this handoff's fault
    return;
  }
  context_.stats.bytes_received += frame.payload_bytes;
  if (!frame.status) {
    ++context_.stats.protocol_errors;
    fail_handoff(at, frame.status.error(), now);
    return;
  }
  take_receipt(at, recv_handoff_payload(*entry.receipt, frame), now);
}

void DecodeRole::on(const CommitReceived& commit, TimePoint now) {
  const auto at = entries_.find(commit.key);
  if (at == entries_.end()) {
    if (context_.tombstones.covers(commit.key) || active_.holds(commit.key) ||
        !kept_.keep(commit.key, commit, commit.commit.ByteSizeLong(),
                    now + milliseconds(context_.options.queue_deadline_ms))) {
      ++context_.stats.stale_messages;
    }
    return;
  }
  if (commit.peer != at->second.prefill_node) {
    ++context_.stats.protocol_errors;
    return;
  }
  take_commit(at, commit.commit, now);
}

void DecodeRole::take_commit(Entries::iterator at, const wire::pb::Commit& commit, TimePoint now) {
  Entry& entry = at->second;
  if (entry.state == State::kLanding || entry.state == State::kClosing) {
    ++context_.stats.stale_messages;
    return;
  }
  auto first = check_commit(entry.expected, commit);
  if (!first) {
    ++context_.stats.protocol_errors;
    entry.receipt.reset();  // it is the KV of other tokens: nothing is kept
    fail_handoff(at, first.error(), now);
    return;
  }
  if (first->front().finish != message::FinishReason::kNone) {
    // Ended on the prefill node's token: no KV, no step here. Repeating the token to the owner
    // heals a lost one.
    context_.outbox.tokens(entry.reply_to, 0, *std::move(first));
    end(at, Outcome::kOk, now);
    return;
  }
  if (entry.state == State::kReserving) {
    ++context_.stats.protocol_errors;
    fail_handoff(at, Error{ErrorCode::kProtocol, "a Commit came before anything was granted"}, now);
    return;
  }
  entry.first = *std::move(first);
  entry.deadline = now + milliseconds(context_.options.handoff_deadline_ms);
  take_receipt(at, recv_handoff_payload(*entry.receipt, commit), now);
}

void DecodeRole::take_receipt(Entries::iterator at, const Result<bool>& complete, TimePoint now) {
  if (!complete) {
    ++context_.stats.protocol_errors;
    at->second.receipt.reset();  // who breaks the protocol may have sent anything: nothing is kept
    fail_handoff(at, complete.error(), now);
  } else if (*complete) {
    at->second.state = State::kLanding;
    if (table_.close(at->first)) {
      adopt(at, now);
    }
  } else {
    ack_arrived(at);
  }
}

void DecodeRole::ack_arrived(Entries::iterator at) {
  Entry& entry = at->second;
  if (entry.receipt->received_bytes() - entry.acked_bytes < context_.options.ack_bytes) {
    return;
  }
  entry.acked_bytes = entry.receipt->received_bytes();
  wire::pb::Ack ack;
  for (const wire::pb::TileRange& range : entry.receipt->take_arrived()) {
    *ack.add_ranges() = range;
  }
  if (ack.ranges_size() > 0) {
    context_.outbox.control(entry.prefill_node, at->first, std::move(ack));
    keep_arrived(at);
  }
}

// The engine may share what is here from the first tile on, whatever becomes of this handoff.
void DecodeRole::keep_arrived(Entries::iterator at) {
  const Entry& entry = at->second;
  const auto cached = static_cast<std::uint32_t>(entry.cached_tokens / kv::kTileTokens);
  const std::uint32_t tiles = entry.receipt->prefix_tiles(cached);
  if (tiles > cached) {
    context_.outbox.engine(message::KvArrived{
        at->first,
        std::min(static_cast<std::int32_t>(tiles) * kv::kTileTokens, entry.expected.kv_tokens)});
  }
}

void DecodeRole::adopt(Entries::iterator at, TimePoint now) {
  Entry& entry = at->second;
  context_.stats.whole.observe(now - entry.granted_at);
  wire::pb::Ack ack;
  ack.set_all(true);
  context_.outbox.control(entry.prefill_node, at->first, std::move(ack));
  context_.outbox.engine(
      message::Adopt{at->first, std::move(entry.first), entry.receipt->received_bytes()});
  context_.leases.unwatch(entry.prefill_node, WatchKind::kCounterpart, at->first);
  active_.add(at->first, entry.reply_to);
  record(context_.stats, Outcome::kOk);
  entries_.erase(at);
}

void DecodeRole::on(const ReservationIdle& idle, TimePoint now) {
  const auto at = entries_.find(idle.key);
  if (at == entries_.end()) {
    BATON_BUG("no handoff {} waits for its bytes to land", to_string(idle.key));
  } else if (at->second.state == State::kLanding) {
    adopt(at, now);
  } else {
    context_.outbox.engine(message::Release{at->second.lease});
    entries_.erase(at);
  }
}

// These three end adopted sequences too. The coordinator told ActiveSequences already, but a Commit
// that stood before this input in the role's inbox may have adopted one since.
void DecodeRole::on(const AbortInput& abort, TimePoint now) {
  active_.on_abort(abort, now);
  for (const SequenceKey& key : keys_named_by(entries_, abort.key)) {
    const auto at = entries_.find(key);
    const Entry& entry = at->second;
    if (entry.state == State::kClosing) {
      continue;
    }
    if (abort.from && *abort.from == entry.prefill_node && entry.prefill_node != entry.reply_to) {
      context_.outbox.control(entry.reply_to, key, refused_to_wire(true, abort.reason));
      end(at, Outcome::kFailed, now);
    } else if (!abort.from || *abort.from == entry.reply_to) {
      if (!abort.quiet) {
        context_.outbox.control(entry.reply_to, key, refused_to_wire(true, abort.reason));
      }
      tell_prefill_node(at, abort.reason);
      end(at, Outcome::kAborted, now);
    } else {
      ++context_.stats.protocol_errors;
    }
  }
}

void DecodeRole::on(const PeerDown& down, TimePoint now) {
  active_.on_peer_down(down.peer, now);
  std::vector<SequenceKey> keys;
  for (const auto& [key, entry] : entries_) {
    if (entry.state != State::kClosing &&
        (entry.prefill_node == down.peer || entry.reply_to == down.peer)) {
      keys.push_back(key);
    }
  }
  for (const SequenceKey& key : keys) {
    const auto at = entries_.find(key);
    if (at->second.reply_to == down.peer) {
      tell_prefill_node(at, Error{ErrorCode::kPeerLost, "the owner is gone"});
      end(at, Outcome::kAborted, now);
    } else if (at->second.state == State::kReserving || at->second.state == State::kReceiving) {
      fail_handoff(at,
                   Error{ErrorCode::kPeerLost,
                         fmt::format("the connection to prefill node {} broke", down.peer.value)},
                   now);
    }
  }
}

void DecodeRole::on(const LostSequence& lost, TimePoint now) {
  if (lost.kind == WatchKind::kOwner) {
    active_.on_lost(lost, now);
  }
  const auto at = entries_.find(lost.key);
  if (at == entries_.end() || at->second.state == State::kClosing) {
    return;
  }
  const State state = at->second.state;
  if (lost.kind == WatchKind::kOwner && lost.peer == at->second.reply_to) {
    tell_prefill_node(at, lost.reason);
    end(at, Outcome::kAborted, now);
  } else if (lost.kind == WatchKind::kCounterpart && lost.peer == at->second.prefill_node &&
             (state == State::kReserving || state == State::kReceiving)) {
    fail_handoff(at, lost.reason, now);
  }
}

void DecodeRole::on(const message::Refused& refused, TimePoint now) {
  const auto at = entries_.find(refused.key);
  if (at != entries_.end()) {
    context_.outbox.control(at->second.reply_to, refused.key,
                            refused_to_wire(refused.later, refused.error));
    tell_prefill_node(at, refused.error);
    end(at, Outcome::kFailed, now);
  }
}

void DecodeRole::on(const message::Finished& finished, TimePoint now) {
  active_.on_finished(finished, now);
  const auto at = entries_.find(finished.key);
  if (at != entries_.end() && at->second.state != State::kClosing) {
    context_.outbox.control(at->second.reply_to, finished.key,
                            finished_to_wire(finished.reason, finished.error));
    tell_prefill_node(at, finished.error);
    end(at, Outcome::kFailed, now);
  }
}

void DecodeRole::fail_handoff(Entries::iterator at, const Error& reason, TimePoint now) {
  log::warn("handoff {} from {} failed: {}", to_string(at->first), at->second.prefill_node.value,
            reason.message);
  context_.outbox.control(at->second.reply_to, at->first, refused_to_wire(true, reason));
  tell_prefill_node(at, reason);
  end(at, Outcome::kFailed, now);
}

void DecodeRole::tell_prefill_node(Entries::iterator at, const Error& reason) {
  context_.outbox.control(at->second.prefill_node, at->first, abort_to_wire(reason));
}

void DecodeRole::unwatch(Entries::iterator at) {
  context_.leases.unwatch(at->second.reply_to, WatchKind::kOwner, at->first);
  context_.leases.unwatch(at->second.prefill_node, WatchKind::kCounterpart, at->first);
}

void DecodeRole::end(Entries::iterator at, Outcome outcome, TimePoint now) {
  Entry& entry = at->second;
  if (entry.state == State::kClosing) {
    return;
  }
  record(context_.stats, outcome);
  unwatch(at);
  context_.tombstones.add(at->first, now);
  if (entry.state == State::kReserving) {
    // A Reserved that is under way is answered with a Release.
    context_.outbox.engine(
        message::Abort{at->first, Error{ErrorCode::kCancelled, "the handoff has ended"}});
    entries_.erase(at);
    return;
  }
  if (entry.state == State::kReceiving && entry.receipt) {
    keep_arrived(at);
  }
  const bool landed = entry.state == State::kReceiving && table_.close(at->first);
  entry.state = State::kClosing;
  entry.deadline = now + milliseconds(context_.options.handoff_deadline_ms);
  if (landed) {
    context_.outbox.engine(message::Release{entry.lease});
    entries_.erase(at);
  }
}

void DecodeRole::tick(TimePoint now) {
  kept_.expire(now);
  std::vector<std::pair<SequenceKey, Error>> late;
  for (const auto& [key, entry] : entries_) {
    if (entry.state == State::kReceiving && !entry.granted && now >= entry.link_deadline) {
      late.emplace_back(
          key, Error{ErrorCode::kPeerLost,
                     fmt::format("no connection to prefill node {}", entry.prefill_node.value)});
    } else if (entry.state == State::kReserving && now >= entry.deadline) {
      late.emplace_back(key, Error{ErrorCode::kOverloaded, "no room for the handoff in time"});
    } else if (entry.state == State::kReceiving && now >= entry.deadline) {
      late.emplace_back(key, Error{ErrorCode::kDeadlineExceeded, "the KV did not come in time"});
    }
  }
  for (const auto& [key, error] : late) {
    BATON_CELLS(count_late(key, error));
    fail_handoff(entries_.find(key), error, now);
  }
}

std::vector<NodeId> DecodeRole::stuck(TimePoint now) const {
  std::vector<NodeId> peers;
  for (const auto& [key, entry] : entries_) {
    if (entry.state == State::kClosing && now >= entry.deadline) {
      peers.push_back(entry.prefill_node);
    }
  }
  return peers;
}

void DecodeRole::stop(const Error& reason, TimePoint now) {
  std::vector<SequenceKey> keys;
  for (const auto& [key, entry] : entries_) {
    keys.push_back(key);
  }
  for (const SequenceKey& key : keys) {
    handle(AbortInput{std::nullopt, key, reason, false}, now);
  }
}

}  // namespace baton::handoff
