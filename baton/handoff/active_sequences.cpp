#include "baton/handoff/active_sequences.h"

#include "baton/handoff/convert.h"

#include <utility>
#include <vector>

namespace baton::handoff {

void ActiveSequences::run_locally(message::Submit submit, const NodeId& reply_to, TimePoint now) {
  const SequenceKey key = submit.key;
  if (!context_.outbox.engine(message::RunLocally{std::move(submit)})) {
    context_.outbox.control(
        reply_to, key,
        refused_to_wire(true, Error{ErrorCode::kOverloaded, "the engine's mailbox is full"}));
    return;
  }
  ++context_.stats.local;
  owners_.emplace(key, reply_to);
  context_.leases.watch(reply_to, WatchKind::kOwner, key, true, 0, now);
}

void ActiveSequences::add(const SequenceKey& key, const NodeId& reply_to) {
  owners_.emplace(key, reply_to);
}

void ActiveSequences::on_step(message::StepTokens step, TimePoint now) {
  std::map<NodeId, std::vector<message::Token>> by_owner;
  std::vector<SequenceKey> ended;
  for (message::Token& token : step.tokens) {
    const auto found = owners_.find(token.key);
    if (found == owners_.end()) {
      continue;
    }
    if (token.finish != message::FinishReason::kNone) {
      ended.push_back(token.key);
    }
    by_owner[found->second].push_back(std::move(token));
  }
  for (auto& [owner, tokens] : by_owner) {
    // A lost owner is seen as PeerDown: nothing to do here.
    context_.outbox.tokens(owner, step.step, std::move(tokens));
  }
  for (const SequenceKey& key : ended) {
    forget(key, now);
  }
}

void ActiveSequences::on_refused(const message::Refused& refused, TimePoint now) {
  if (const auto found = owners_.find(refused.key); found != owners_.end()) {
    context_.outbox.control(found->second, refused.key,
                            refused_to_wire(refused.later, refused.error));
    forget(refused.key, now);
  }
}

void ActiveSequences::on_finished(const message::Finished& finished, TimePoint now) {
  if (const auto found = owners_.find(finished.key); found != owners_.end()) {
    context_.outbox.control(found->second, finished.key,
                            finished_to_wire(finished.reason, finished.error));
    forget(finished.key, now);
  }
}

void ActiveSequences::forget(const SequenceKey& key, TimePoint now) {
  const auto found = owners_.find(key);
  if (found == owners_.end()) {
    return;
  }
  context_.leases.unwatch(found->second, WatchKind::kOwner, key);
  context_.tombstones.add(key, now);
  owners_.erase(found);
}

void ActiveSequences::abort_one(const SequenceKey& key, const Error& reason, TimePoint now) {
  context_.outbox.engine(message::Abort{key, reason});
  forget(key, now);
}

void ActiveSequences::on_abort(const AbortInput& abort, TimePoint now) {
  for (const SequenceKey& key : keys_named_by(owners_, abort.key)) {
    if (abort.from && *abort.from != owners_.at(key)) {
      continue;  // a counterpart's late Abort: the handoff is over
    }
    abort_one(key, abort.reason, now);
  }
}

void ActiveSequences::on_peer_down(const NodeId& peer, TimePoint now) {
  std::vector<SequenceKey> keys;
  for (const auto& [key, owner] : owners_) {
    if (owner == peer) {
      keys.push_back(key);
    }
  }
  for (const SequenceKey& key : keys) {
    abort_one(key, Error{ErrorCode::kPeerLost, "the owner is gone"}, now);
  }
}

void ActiveSequences::on_lost(const LostSequence& lost, TimePoint now) {
  if (const auto found = owners_.find(lost.key);
      found != owners_.end() && found->second == lost.peer) {
    abort_one(lost.key, lost.reason, now);
  }
}

void ActiveSequences::stop(const Error& reason, TimePoint now) {
  while (!owners_.empty()) {
    const auto [key, owner] = *owners_.begin();
    context_.outbox.control(owner, key, finished_to_wire(message::FinishReason::kError, reason));
    abort_one(key, reason, now);
  }
}

}  // namespace baton::handoff
