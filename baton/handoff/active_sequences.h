// Sequences that decode on this node, and who owns each: adopted ones and those that run here
// whole. Sorts the engine's token events into one frame per owner and step. Control thread only.
#pragma once

#include "baton/base/clock.h"
#include "baton/handoff/role_context.h"
#include "baton/message/engine.h"

#include <map>

namespace baton::handoff {

class ActiveSequences {
 public:
  explicit ActiveSequences(const RoleContext& context) : context_(context) {}

  // Prefill and decode here. Refused to the owner when the engine's mailbox is full.
  void run_locally(message::Submit submit, const NodeId& reply_to, TimePoint now);
  // A handoff was adopted; the owner is watched already.
  void add(const SequenceKey& key, const NodeId& reply_to);

  // Unknown keys (aborted meanwhile) are dropped.
  void on_step(message::StepTokens step, TimePoint now);
  void on_refused(const message::Refused& refused, TimePoint now);
  void on_finished(const message::Finished& finished, TimePoint now);

  void on_abort(const AbortInput& abort, TimePoint now);
  void on_peer_down(const NodeId& peer, TimePoint now);
  void on_lost(const LostSequence& lost, TimePoint now);  // kind kOwner

  [[nodiscard]] bool holds(const SequenceKey& key) const { return owners_.contains(key); }
  [[nodiscard]] std::size_t count() const { return owners_.size(); }
  // Ends everything: owners are told.
  void stop(const Error& reason, TimePoint now);

 private:
  void forget(const SequenceKey& key, TimePoint now);
  void abort_one(const SequenceKey& key, const Error& reason, TimePoint now);

  RoleContext context_;
  std::map<SequenceKey, NodeId> owners_;
};

}  // namespace baton::handoff
