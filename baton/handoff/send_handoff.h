// The sender's half of a handoff's payload. PayloadShipment says what may leave: granted tiles as
// Blocks frames, each as soon as its rows are computed, and the Commit once all are out; and which
// of our blocks nobody needs any more. Pure. send_handoff_payload moves the bytes. Control thread
// (the transport's own threads read the blocks).
#pragma once

#include "baton/base/clock.h"
#include "baton/base/ids.h"
#include "baton/base/result.h"
#include "baton/handoff/options.h"
#include "baton/handoff/transport.h"
#include "baton/kv/layout.h"
#include "baton/message/engine.h"
#include "baton/wire/frames.h"

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace baton::handoff {

// The way to a receiver, and from when on it counts as slow.
struct Way {
  double seconds_per_byte = 0;  // as measured; 0: not known
  // What takes longer is cut into parts, each of which leaves as soon as it is complete; a part
  // takes a third of that or more. 0: everything.
  double slow_s = 0.003;
};

class PayloadShipment {
 public:
  struct Frame {
    wire::BlocksHeader blocks;
    std::uint64_t number = 0;  // from 0, in the order in which they become complete
    bool by_layers = false;    // some layers of the last chunk
  };

  // granted: checked against kv_tokens (tile_plan.h), which is also what was leased.
  // Where the way is slow, the last blocks go in frames of one tile, so that less is left when the
  // last row is there.
  PayloadShipment(const kv::KvLayout& layout, std::span<const wire::pb::TileRange> granted,
                  std::int32_t kv_tokens, std::size_t min_frame_bytes = kMinFrameBytes,
                  const Way& way = {});

  // True: a block takes so long that the last chunk's layers should leave one after another.
  [[nodiscard]] bool wants_layers() const;
  // Rows [0, tokens) are complete now.
  void set_computed(std::int32_t tokens) { computed_tokens_ = tokens; }
  // And of the rest, which the last chunk computes, the first layers[group] layers; `elapsed` after
  // that chunk began. The first call decides whether what waits for this chunk goes by layers: when
  // both the way and the layers to come take long enough.
  void set_layers(std::span<const std::uint32_t> layers, Duration elapsed);
  // The next frame that may leave: all its rows are complete, and not too much is under way. It is
  // under way until on_sent.
  std::optional<Frame> take_next(TimePoint now = {});
  // The frame was handed to the kernel, or (null) never will be.
  void on_sent(std::uint64_t number, const BulkSent* sent);
  // The receiver has these tiles. Errors: kProtocol (not granted).
  Status on_ack(std::span<const wire::pb::TileRange> ranges, TimePoint now = {});
  // What Acks have told of the way since the last call: the time of the frame of min_frame_bytes or
  // more that left last, over all bytes that were not acked when it left, since they were before
  // it.
  std::optional<double> take_seconds_per_byte() {
    return std::exchange(new_seconds_per_byte_, std::nullopt);
  }
  // Leased blocks that need not be kept any more, each once: not granted at all, or sent and acked.
  std::vector<message::BlockRange> take_done_blocks();

  [[nodiscard]] bool in_flight() const { return frames_in_flight_ > 0; }
  [[nodiscard]] bool all_sent() const { return frames_sent_ == frames_.size(); }
  // Frames, bytes and digest of what was sent.
  void fill(wire::pb::Commit& commit) const;

 private:
  struct Planned {
    wire::BlocksHeader blocks;
    std::int32_t needed_tokens = 0;   // rows that must be complete
    std::uint32_t needed_layers = 0;  // or so many layers of the last chunk; 0: that is not enough
    std::uint64_t bytes = 0;
    std::uint64_t unacked_bytes = 0;  // this one and those before it, when it left
    bool sent = false;
    bool acked = false;
    wire::EncodedHeader header{};  // as it went out
    TimePoint left_at{};
  };
  void plan(const wire::BlocksHeader& blocks);
  [[nodiscard]] bool is_complete(const Planned& frame) const;
  void cut_last_chunk(std::uint32_t parts);
  void count_uses(std::size_t first_frame, std::uint32_t by);
  [[nodiscard]] std::pair<std::uint32_t, std::uint32_t> blocks_of(
      const wire::BlocksHeader& frame) const;
  void settle(const Planned& frame);

  const kv::KvLayout& layout_;
  std::uint32_t tiles_per_block_;
  std::int32_t kv_tokens_;
  std::size_t min_frame_bytes_;
  Way way_;
  std::vector<Planned> frames_;
  std::vector<std::vector<std::uint32_t>> uses_;  // [group][block]: frames not sent and acked
  std::vector<std::vector<bool>> acked_;          // [group][tile]
  std::vector<message::BlockRange> done_;
  std::int32_t computed_tokens_ = 0;
  std::vector<std::uint32_t> layers_;  // [group], of the last chunk; empty: not told
  std::size_t next_ = 0;
  std::size_t first_unacked_ = 0;
  std::size_t frames_sent_ = 0;
  std::size_t frames_in_flight_ = 0;
  std::uint64_t bytes_in_flight_ = 0;
  std::uint64_t unacked_bytes_ = 0;  // of frames that have left
  std::optional<double> new_seconds_per_byte_;
};

// One Blocks frame to ship. The blocks that it reads stay leased until it is answered.
struct FrameJob {
  NodeId to;
  SequenceKey key;
  wire::BlocksHeader blocks;
  std::uint64_t number = 0;
  std::vector<std::span<const std::byte>> tiles;  // collect_spans of the frame
};

// Completes when everything was handed to the kernel. bytes_sent grows by the tiles' bytes.
// Errors: kPeerLost, kDeadlineExceeded, kOverloaded.
asio::awaitable<Result<BulkSent>> send_handoff_payload(Transport& transport,
                                                       const kv::KvLayout& layout, FrameJob job,
                                                       std::atomic<std::uint64_t>& bytes_sent);
// Then the Commit of all frames.
asio::awaitable<Status> send_handoff_payload(Transport& transport, NodeId to, SequenceKey key,
                                             wire::pb::Commit commit);

}  // namespace baton::handoff
