// What the state machines of this folder may do to the world. ServingCoordinator implements it over
// Transport and the engine's mailbox; tests implement it as a list. Nothing here waits or calls
// back: a message to this node itself is delivered later, from the control loop.
#pragma once

#include "baton/base/ids.h"
#include "baton/base/result.h"
#include "baton/message/engine.h"
#include "baton/wire/frames.h"

#include <cstdint>
#include <memory>
#include <vector>

namespace baton::handoff {

// A whole payload to ship: every granted tile, then the Commit. `cancelled` is looked at between
// frames. Answered by PrefillRole::on_sent, whatever happens.
struct PayloadJob {
  NodeId to;
  SequenceKey key;
  std::int32_t kv_tokens = 0;
  std::vector<std::vector<message::LeasedBlock>> tables;  // leased: valid until on_sent
  std::vector<wire::pb::TileRange> ranges;                // validated
  wire::pb::Commit commit;                                // frames, bytes, digest still unset
  std::shared_ptr<bool> cancelled;
};
struct PayloadSent {
  std::uint64_t frames = 0;
  std::uint64_t payload_bytes = 0;
};

class Outbox {
 public:
  virtual ~Outbox() = default;
  // Errors: kPeerLost, kOverloaded.
  virtual Status control(const NodeId& to, const SequenceKey& key, wire::Control message) = 0;
  // False when the engine takes no more commands (only for new work; ends always go through).
  virtual bool engine(message::EngineCommand command) = 0;
  virtual void send_payload(PayloadJob job) = 0;
  // A Commit without tiles: the sequence ended on the prefill node's token.
  virtual void send_commit(const NodeId& to, const SequenceKey& key, wire::pb::Commit commit) = 0;
};

}  // namespace baton::handoff
