#include "baton/handoff/prefill_role.h"

#include "baton/base/cells.h"
#include "baton/base/check.h"
#include "baton/base/failpoints.h"
#include "baton/base/log.h"
#include "baton/handoff/convert.h"
#include "baton/handoff/tile_plan.h"
#include "baton/wire/digest.h"

#include <fmt/format.h>

#include <utility>

namespace baton::handoff {

void PrefillRole::handle(PrefillInput input, TimePoint now) {
  // kill: the node dies between two changes of state, or with what it decided still unsent.
  static_cast<void>(BATON_FAILPOINT("prefill_role.before"));
  BATON_CELLS(count_cells(input));
  std::visit([&](auto&& item) { on(std::forward<decltype(item)>(item), now); }, std::move(input));
  static_cast<void>(BATON_FAILPOINT("prefill_role.after"));
}

void PrefillRole::on(PrefillRoleRequest request, TimePoint now) {
  const SequenceKey key = request.submit.key;
  if (entries_.contains(key)) {
    ++context_.stats.stale_messages;
    return;
  }
  Entry entry;
  entry.decode_node = std::move(request.decode_node);
  entry.reply_to = std::move(request.reply_to);
  entry.deadline = now + milliseconds(context_.options.prefill_deadline_ms);
  entry.link_deadline = now + milliseconds(context_.options.lease_ms);
  entry.tokens_digest = wire::tokens_digest(request.submit.prompt, request.submit.emitted);
  entry.kv_tokens =
      static_cast<std::int32_t>(request.submit.prompt.size() + request.submit.emitted.size());
  if (!context_.outbox.engine(message::PrefillForHandoff{std::move(request.submit)})) {
    const Error full{ErrorCode::kOverloaded, "the engine's mailbox is full"};
    context_.outbox.control(entry.reply_to, key, refused_to_wire(true, full));
    context_.tombstones.add(key, now);
    return;
  }
  context_.leases.watch(entry.reply_to, WatchKind::kOwner, key, true, 0, now);
  context_.leases.watch(entry.decode_node, WatchKind::kCounterpart, key, false,
                        context_.options.queue_deadline_ms, now);
  entries_.emplace(key, std::move(entry));
  for (const GrantInput& grant : kept_.take(key)) {
    handle(grant, now);
  }
}

void PrefillRole::on(const GrantInput& grant, TimePoint now) {
  const auto at = entries_.find(grant.key);
  if (at == entries_.end()) {
    if (context_.tombstones.covers(grant.key) ||
        !kept_.keep(grant.key, grant, grant.grant.ByteSizeLong(),
                    now + milliseconds(context_.options.queue_deadline_ms))) {
      ++context_.stats.stale_messages;
    }
    return;
  }
  Entry& entry = at->second;
  if (grant.from != entry.decode_node || entry.has_grant) {
    ++context_.stats.protocol_errors;  // extending a grant: issue 5
    return;
  }
  entry.granted.assign(grant.grant.ranges().begin(), grant.grant.ranges().end());
  entry.has_grant = true;
  entry.granted_at = now;
  context_.leases.watch(entry.decode_node, WatchKind::kCounterpart, grant.key, true, 0, now);
  Status sound = check_ranges(context_.layout, entry.kv_tokens, entry.granted);
  if (sound && entry.granted.empty()) {
    sound = fail(ErrorCode::kProtocol, "a Grant without ranges");
  }
  const std::string& digest = grant.grant.tokens_digest();
  if (sound && !digest.empty() && digest != entry.tokens_digest) {
    // What it keeps of our tiles, every later prompt with its tokens would find.
    sound = fail(ErrorCode::kProtocol, "the decode node has other tokens than the prefill node");
  }
  if (!sound) {
    ++context_.stats.protocol_errors;
    fail_handoff(at, sound.error(), now);
    return;
  }
  if (entry.state == State::kAwaitGrant) {
    entry.state = State::kSending;
    entry.deadline = now + milliseconds(context_.options.handoff_deadline_ms);
  }
  if (!try_claim(entry)) {
    context_.outbox.engine(message::Granted{grant.key});
  }
  try_send(at, now);
}

void PrefillRole::on(message::PrefillProgress progress, TimePoint now) {
  const auto at = entries_.find(progress.key);
  if (at == entries_.end()) {
    if (!progress.blocks.tables.empty()) {
      context_.outbox.engine(message::Release{progress.blocks.lease});
    }
    return;
  }
  Entry& entry = at->second;
  if (!progress.blocks.tables.empty()) {
    if (entry.shipment && progress.blocks.lease != entry.blocks.lease) {
      BATON_BUG("the claimed blocks of {} were lent again", to_string(progress.key));
      context_.outbox.engine(message::Release{progress.blocks.lease});
      return;
    }
    entry.blocks = std::move(progress.blocks);
    entry.leased = true;
  }
  entry.computed_tokens = progress.computed_tokens;
  if (entry.shipment && !progress.layers.empty()) {
    entry.shipment->set_computed(progress.computed_tokens);
    entry.shipment->set_layers(progress.layers, progress.elapsed);
  }
  try_send(at, now);
}

void PrefillRole::on(message::PrefillDone done, TimePoint now) {
  const auto at = entries_.find(done.key);
  if (at == entries_.end() || at->second.state == State::kEnding) {
    return;  // the lease was, or will be, released
  }
  Entry& entry = at->second;
  if (done.first.size() != 1 || entry.state != State::kPrefilling ||
      done.kv_tokens != entry.kv_tokens) {
    BATON_BUG("PrefillDone of {} with {} tokens in state {}", to_string(done.key),
              done.first.size(), static_cast<int>(entry.state));
    fail_handoff(at, Error{ErrorCode::kInternal, "the prefill node lost track of the sequence"},
                 now);
    return;
  }
  entry.first = std::move(done.first);
  entry.computed_tokens = done.kv_tokens;
  entry.prefilled_at = now;
  // Index 0 leaves the moment it exists.
  context_.outbox.tokens(entry.reply_to, 0, entry.first);
  if (entry.first.front().finish != message::FinishReason::kNone) {
    context_.outbox.send_commit(entry.decode_node, at->first, commit_of(entry));
    end(at, Outcome::kOk, now);
    return;
  }
  entry.state = entry.has_grant ? State::kSending : State::kAwaitGrant;
  entry.deadline = now + milliseconds(entry.has_grant ? context_.options.handoff_deadline_ms
                                                      : context_.options.queue_deadline_ms);
  try_send(at, now);
}

wire::pb::Commit PrefillRole::commit_of(const Entry& entry) const {
  wire::pb::Commit commit;
  commit.set_kv_tokens(entry.kv_tokens);
  commit.set_tokens_digest(entry.tokens_digest);
  for (const message::Token& token : entry.first) {
    *commit.add_first() = token_to_wire(token);
  }
  commit.set_cached_tokens(entry.first.front().cached_tokens);
  commit.set_digest(wire::HandoffDigest().value());  // of no frames, until there are some
  return commit;
}

void PrefillRole::on(const AbortInput& abort, TimePoint now) {
  for (const SequenceKey& key : keys_named_by(entries_, abort.key)) {
    const auto at = entries_.find(key);
    const Entry& entry = at->second;
    if (entry.state == State::kEnding) {
      continue;
    }
    if (abort.from && *abort.from == entry.decode_node && entry.decode_node != entry.reply_to) {
      // The decode node gave up; it tells the owner too, by its own connection.
      context_.outbox.control(entry.reply_to, key, refused_to_wire(true, abort.reason));
      end(at, Outcome::kFailed, now);
    } else if (!abort.from || *abort.from == entry.reply_to) {
      if (!abort.quiet) {
        context_.outbox.control(entry.reply_to, key, refused_to_wire(true, abort.reason));
      }
      tell_decode_node(at, abort.reason);
      end(at, Outcome::kAborted, now);
    } else {
      ++context_.stats.protocol_errors;
    }
  }
}

void PrefillRole::on(const PeerDown& down, TimePoint now) {
  seconds_per_byte_.erase(down.peer);
  std::vector<SequenceKey> keys;
  for (const auto& [key, entry] : entries_) {
    if (entry.state != State::kEnding &&
        (entry.decode_node == down.peer || entry.reply_to == down.peer)) {
      keys.push_back(key);
    }
  }
  for (const SequenceKey& key : keys) {
    const auto at = entries_.find(key);
    if (at->second.reply_to == down.peer) {
      tell_decode_node(at, Error{ErrorCode::kPeerLost, "the owner is gone"});
      end(at, Outcome::kAborted, now);
    } else {
      lost_counterpart(
          at,
          Error{ErrorCode::kPeerLost,
                fmt::format("the connection to decode node {} broke", down.peer.value)},
          now);
    }
  }
}

void PrefillRole::on(const LostSequence& lost, TimePoint now) {
  const auto at = entries_.find(lost.key);
  if (at == entries_.end() || at->second.state == State::kEnding) {
    return;
  }
  if (lost.kind == WatchKind::kOwner && lost.peer == at->second.reply_to) {
    tell_decode_node(at, lost.reason);
    end(at, Outcome::kAborted, now);
  } else if (lost.kind == WatchKind::kCounterpart && lost.peer == at->second.decode_node) {
    lost_counterpart(at, lost.reason, now);
  }
}

void PrefillRole::lost_counterpart(Entries::iterator at, const Error& reason, TimePoint now) {
  if (at->second.state == State::kAwaitAck) {
    // Everything is sent: the decode node has it and runs (the Ack was lost), or tells the owner
    // itself, or is dead and the owner sees that. Telling it here could end a good stream.
    end(at, Outcome::kFailed, now);
  } else {
    fail_handoff(at, reason, now);
  }
}

void PrefillRole::on(const message::Refused& refused, TimePoint now) {
  const auto at = entries_.find(refused.key);
  if (at != entries_.end()) {
    context_.outbox.control(at->second.reply_to, refused.key,
                            refused_to_wire(refused.later, refused.error));
    tell_decode_node(at, refused.error);
    end(at, Outcome::kFailed, now);
  }
}

void PrefillRole::on(const message::Finished& finished, TimePoint now) {
  const auto at = entries_.find(finished.key);
  if (at != entries_.end()) {
    context_.outbox.control(at->second.reply_to, finished.key,
                            finished_to_wire(finished.reason, finished.error));
    tell_decode_node(at, finished.error);
    end(at, Outcome::kFailed, now);
  }
}

void PrefillRole::fail_handoff(Entries::iterator at, const Error& reason, TimePoint now) {
  log::warn("handoff {} to {} failed: {}", to_string(at->first), at->second.decode_node.value,
            reason.message);
  context_.outbox.control(at->second.reply_to, at->first, refused_to_wire(true, reason));
  tell_decode_node(at, reason);
  end(at, Outcome::kFailed, now);
}

void PrefillRole::tell_decode_node(Entries::iterator at, const Error& reason) {
  context_.outbox.control(at->second.decode_node, at->first, abort_to_wire(reason));
}

void PrefillRole::end(Entries::iterator at, Outcome outcome, TimePoint now) {
  Entry& entry = at->second;
  if (entry.state == State::kEnding) {
    return;
  }
  record(context_.stats, outcome);
  context_.leases.unwatch(entry.reply_to, WatchKind::kOwner, at->first);
  context_.leases.unwatch(entry.decode_node, WatchKind::kCounterpart, at->first);
  context_.tombstones.add(at->first, now);
  if (entry.first.empty()) {  // still prefilling
    context_.outbox.engine(
        message::Abort{at->first, Error{ErrorCode::kCancelled, "the handoff has ended"}});
  }
  if (entry.shipment && entry.shipment->in_flight()) {
    entry.state = State::kEnding;  // FrameSent follows
    entry.deadline = now + milliseconds(context_.options.handoff_deadline_ms);
  } else {
    erase(at);
  }
}

// A PrefillProgress with blocks that is still under way is answered with a Release.
void PrefillRole::erase(Entries::iterator at) {
  if (at->second.leased) {
    context_.outbox.engine(message::Release{at->second.blocks.lease});
  }
  entries_.erase(at);
}

void PrefillRole::tick(TimePoint now) {
  kept_.expire(now);
  std::vector<SequenceKey> late;
  for (auto& [key, entry] : entries_) {
    entry.linked = entry.linked || context_.leases.find(entry.decode_node) != nullptr;
    const bool no_link = !entry.linked && now >= entry.link_deadline;
    if (entry.state != State::kEnding && (no_link || now >= entry.deadline)) {
      late.push_back(key);
    }
  }
  for (const SequenceKey& key : late) {
    const auto at = entries_.find(key);
    const Entry& entry = at->second;
    BATON_CELLS(count_late(key, entry.linked));
    if (!entry.linked) {
      lost_counterpart(at,
                       Error{ErrorCode::kPeerLost, fmt::format("no connection to decode node {}",
                                                               entry.decode_node.value)},
                       now);
    } else {
      const char* what = entry.state == State::kPrefilling   ? "prefill did not end"
                         : entry.state == State::kAwaitGrant ? "no Grant came"
                                                             : "the handoff did not end";
      // Only what is late on the other side is a deadline that it missed.
      const ErrorCode code = entry.state == State::kPrefilling ? ErrorCode::kUnavailable
                                                               : ErrorCode::kDeadlineExceeded;
      lost_counterpart(at, Error{code, fmt::format("{} in time", what)}, now);
    }
  }
}

std::vector<NodeId> PrefillRole::stuck(TimePoint now) const {
  std::vector<NodeId> peers;
  for (const auto& [key, entry] : entries_) {
    if (entry.state == State::kEnding && now >= entry.deadline) {
      peers.push_back(entry.decode_node);
    }
  }
  return peers;
}

void PrefillRole::stop(const Error& reason, TimePoint now) {
  std::vector<SequenceKey> keys;
  for (const auto& [key, entry] : entries_) {
    keys.push_back(key);
  }
  for (const SequenceKey& key : keys) {
    handle(AbortInput{std::nullopt, key, reason, false}, now);
  }
}

}  // namespace baton::handoff
