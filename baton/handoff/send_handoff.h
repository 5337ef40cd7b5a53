// The sender's half of a handoff's payload: granted tiles as Blocks frames straight from leased
// blocks, then the Commit that lets the receiver verify them. Control thread (the transport's own
// threads move the bytes).
#pragma once

#include "baton/base/ids.h"
#include "baton/base/result.h"
#include "baton/handoff/transport.h"
#include "baton/kv/layout.h"
#include "baton/message/engine.h"
#include "baton/wire/frames.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

namespace baton::handoff {

// A whole payload to ship: every granted tile, then the Commit.
struct PayloadJob {
  NodeId to;
  SequenceKey key;
  std::vector<std::vector<message::LeasedBlock>> tables;  // [group][position]; leased until the end
  std::vector<wire::pb::TileRange> ranges;                // checked (tile_plan.h)
  wire::pb::Commit commit;                                // frames, bytes and digest still unset
  std::shared_ptr<const bool> cancelled;  // looked at between frames; control thread
};
struct PayloadSent {
  std::uint64_t frames = 0;
  std::uint64_t payload_bytes = 0;
};

// Completes when everything was handed to the kernel; the blocks may be given back only then, and
// for good only after the Ack. bytes_sent grows frame by frame.
// Errors: kCancelled, kPeerLost, kDeadlineExceeded.
asio::awaitable<Result<PayloadSent>> send_handoff_payload(Transport& transport,
                                                          const kv::KvLayout& layout,
                                                          PayloadJob job,
                                                          std::atomic<std::uint64_t>& bytes_sent);

}  // namespace baton::handoff
