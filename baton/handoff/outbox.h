// What the state machines of this folder may do to the world. ServingCoordinator implements it over
// Transport and the engine's mailbox; tests implement it as a list. Nothing here waits or calls
// back: a message to this node itself is delivered later, from the control loop.
#pragma once

#include "baton/base/ids.h"
#include "baton/base/result.h"
#include "baton/handoff/send_handoff.h"
#include "baton/message/engine.h"
#include "baton/wire/frames.h"

#include <cstdint>
#include <vector>

namespace baton::handoff {

class Outbox {
 public:
  virtual ~Outbox() = default;
  // Errors: kPeerLost, kOverloaded.
  virtual Status control(const NodeId& to, const SequenceKey& key, wire::Control message) = 0;
  virtual Status tokens(const NodeId& to, std::uint64_t step,
                        std::vector<message::Token> tokens) = 0;
  // False when the engine takes no more commands (only for new work; ends always go through).
  virtual bool engine(message::EngineCommand command) = 0;
  // Starts to ship one frame of a payload; answered by FrameSent, whatever happens.
  virtual void send_frame(FrameJob job) = 0;
  // Ships a Commit: behind its frames, or alone when the sequence ended on the prefill node's
  // token. Answered by CommitSent, whatever happens.
  virtual void send_commit(const NodeId& to, const SequenceKey& key, wire::pb::Commit commit) = 0;
};

}  // namespace baton::handoff
