#include "baton/handoff/send_handoff.h"

#include "baton/base/check.h"
#include "baton/base/failpoints.h"
#include "baton/handoff/tile_plan.h"
#include "baton/wire/digest.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace baton::handoff {
namespace {

using Spans = std::vector<std::span<const std::byte>>;

// Of the last chunk: the engine tells of layers about as often (layer_progress.cpp).
constexpr std::uint32_t kMostParts = 8;

// Failpoint handoff.poison: the frame's tiles in a copy whose first block has V rows of zero, as
// if the sender's memory were wrong. The CRC is right, so only the tokens can show it.
std::vector<std::byte> poisoned_copy(const kv::KvLayout& layout, const wire::BlocksHeader& frame,
                                     const Spans& spans) {
  std::vector<std::byte> copy;
  for (const std::span<const std::byte> span : spans) {
    copy.insert(copy.end(), span.begin(), span.end());
  }
  const std::size_t plane = layout.groups[frame.group].plane_tile_bytes();
  const std::uint32_t tiles_per_block = frame.block_tokens / kv::kTileTokens;
  const std::uint32_t block_end = (frame.first_tile / tiles_per_block + 1) * tiles_per_block;
  const std::size_t tiles =
      std::size_t{frame.layers} * frame.heads *
      (std::min(block_end, frame.first_tile + frame.tiles) - frame.first_tile);
  for (std::size_t tile = 0; tile < tiles; ++tile) {
    const auto v_rows = copy.begin() + static_cast<std::ptrdiff_t>((2 * tile + 1) * plane);
    std::fill(v_rows, v_rows + static_cast<std::ptrdiff_t>(plane), std::byte{0});
  }
  return copy;
}

}  // namespace

// ---- what may leave ---------------------------------------------------------------------------

PayloadShipment::PayloadShipment(const kv::KvLayout& layout,
                                 std::span<const wire::pb::TileRange> granted,
                                 std::int32_t kv_tokens, std::size_t min_frame_bytes,
                                 const Way& way)
    : layout_(layout),
      tiles_per_block_(static_cast<std::uint32_t>(layout.tiles_per_block())),
      kv_tokens_(kv_tokens),
      min_frame_bytes_(min_frame_bytes),
      way_(way) {
  for (const wire::BlocksHeader& blocks :
       plan_frames(layout, granted, min_frame_bytes, kMaxFrameBytes)) {
    // A chunk seldom begins where a block does, so the last one is the end of two.
    const std::int64_t end =
        std::int64_t{blocks.first_tile + blocks.tiles} * kv::kTileTokens + layout.block_tokens;
    const auto bytes = static_cast<double>(frame_bytes(layout, blocks));
    if (end < kv_tokens || bytes * way_.seconds_per_byte < way_.slow_s) {
      plan(blocks);
      continue;
    }
    for (std::uint32_t i = 0; i < blocks.tiles; ++i) {
      wire::BlocksHeader tile = blocks;
      tile.first_tile += i;
      tile.tiles = 1;
      plan(tile);
    }
  }
  std::stable_sort(frames_.begin(), frames_.end(), [](const Planned& a, const Planned& b) {
    return a.needed_tokens < b.needed_tokens;
  });
  const auto blocks = static_cast<std::size_t>(layout.blocks_for(kv_tokens));
  uses_.assign(layout.groups.size(), std::vector<std::uint32_t>(blocks, 0));
  acked_.assign(layout.groups.size(), std::vector<bool>(blocks * tiles_per_block_, false));
  count_uses(0, 1);
  for (std::uint32_t group = 0; group < uses_.size(); ++group) {
    for (std::uint32_t block = 0; block < blocks; ++block) {
      if (uses_[group][block] == 0) {
        done_.push_back({group, block, 1});
      }
    }
  }
}

void PayloadShipment::plan(const wire::BlocksHeader& blocks) {
  const std::int64_t end = std::int64_t{blocks.first_tile + blocks.tiles} * kv::kTileTokens;
  Planned frame;
  frame.blocks = blocks;
  frame.needed_tokens = static_cast<std::int32_t>(std::min<std::int64_t>(end, kv_tokens_));
  frame.bytes = frame_bytes(layout_, blocks);
  frames_.push_back(frame);
}

// Adds (modulo 2^32, so that it also takes away).
void PayloadShipment::count_uses(std::size_t first_frame, std::uint32_t by) {
  for (std::size_t i = first_frame; i < frames_.size(); ++i) {
    const auto [first, last] = blocks_of(frames_[i].blocks);
    for (std::uint32_t block = first; block <= last; ++block) {
      uses_[frames_[i].blocks.group][block] += by;
    }
  }
}

bool PayloadShipment::wants_layers() const {
  double block_bytes = 0;
  for (std::size_t group = 0; group < layout_.groups.size(); ++group) {
    block_bytes += static_cast<double>(layout_.block_bytes(group));
  }
  return block_bytes * way_.seconds_per_byte >= way_.slow_s;
}

void PayloadShipment::set_layers(std::span<const std::uint32_t> layers, Duration elapsed) {
  const bool decided = !layers_.empty();
  layers_.assign(layers.begin(), layers.end());
  if (decided) {
    return;
  }
  double all = 0;
  for (const kv::KvGroup& group : layout_.groups) {
    all += static_cast<double>(group.layers.size());
  }
  const double done = std::max(1.0, std::accumulate(layers_.begin(), layers_.end(), 0.0));
  const double forward_s = std::chrono::duration<double>(elapsed).count() * (all - done) / done;
  std::uint64_t bytes = 0;
  for (std::size_t i = next_; i < frames_.size(); ++i) {
    bytes += frames_[i].needed_tokens > computed_tokens_ ? frames_[i].bytes : 0;
  }
  const double way_s = static_cast<double>(bytes) * way_.seconds_per_byte;
  if (bytes > 0 && std::min(forward_s, way_s) >= way_.slow_s) {
    const double part_s = way_.slow_s / 3;
    cut_last_chunk(way_s < part_s * kMostParts ? static_cast<std::uint32_t>(way_s / part_s)
                                               : kMostParts);
  }
}

// What waits for the last chunk: again whole runs of tiles, each in `parts` ranges of layers, all
// first ones first.
void PayloadShipment::cut_last_chunk(std::uint32_t parts) {
  const auto begin =
      std::find_if(frames_.begin() + static_cast<std::ptrdiff_t>(next_), frames_.end(),
                   [&](const Planned& frame) { return frame.needed_tokens > computed_tokens_; });
  const auto first = static_cast<std::size_t>(begin - frames_.begin());
  count_uses(first, ~0U);
  std::vector<wire::BlocksHeader> runs;
  for (auto frame = begin; frame != frames_.end(); ++frame) {
    const wire::BlocksHeader& next = frame->blocks;
    const auto before = std::find_if(runs.rbegin(), runs.rend(),
                                     [&](const auto& run) { return run.group == next.group; });
    if (before != runs.rend() && next.first_tile % tiles_per_block_ != 0 &&
        frame_bytes(layout_, *before) + frame->bytes <= kMaxFrameBytes) {
      wire::BlocksHeader rest = next;  // `next`, if it goes on where `before` ends
      rest.first_tile = before->first_tile;
      rest.tiles = before->tiles;
      if (rest == *before && next.first_tile == before->first_tile + before->tiles) {
        before->tiles += next.tiles;
        continue;
      }
    }
    runs.push_back(next);
  }
  frames_.erase(begin, frames_.end());
  for (std::uint32_t part = 0; part < parts; ++part) {
    for (const wire::BlocksHeader& run : runs) {
      const auto layers = static_cast<std::uint32_t>(layout_.groups[run.group].layers.size());
      const std::uint32_t from = std::max(run.first_layer, layers * part / parts);
      const std::uint32_t to = std::min(run.first_layer + run.layers, layers * (part + 1) / parts);
      if (from < to) {
        wire::BlocksHeader piece = run;
        piece.first_layer = from;
        piece.layers = to - from;
        plan(piece);
        frames_.back().needed_layers = to;
      }
    }
  }
  count_uses(first, 1);
}

bool PayloadShipment::is_complete(const Planned& frame) const {
  return frame.needed_tokens <= computed_tokens_ ||
         (frame.needed_layers > 0 && frame.needed_layers <= layers_[frame.blocks.group]);
}

// The first and the last block of ours that the frame reads.
std::pair<std::uint32_t, std::uint32_t> PayloadShipment::blocks_of(
    const wire::BlocksHeader& frame) const {
  return {frame.first_tile / tiles_per_block_,
          (frame.first_tile + frame.tiles - 1) / tiles_per_block_};
}

std::optional<PayloadShipment::Frame> PayloadShipment::take_next(TimePoint now) {
  const bool may_leave = frames_in_flight_ < kFramesInFlight || bytes_in_flight_ < kBytesInFlight;
  if (next_ == frames_.size() || !is_complete(frames_[next_]) || !may_leave) {
    return std::nullopt;
  }
  ++frames_in_flight_;
  bytes_in_flight_ += frames_[next_].bytes;
  frames_[next_].left_at = now;
  unacked_bytes_ += frames_[next_].bytes;
  frames_[next_].unacked_bytes = unacked_bytes_;
  const std::size_t number = next_++;
  return Frame{frames_[number].blocks, number, frames_[number].needed_layers > 0};
}

void PayloadShipment::on_sent(std::uint64_t number, const BulkSent* sent) {
  BATON_CHECK(number < next_ && !frames_[number].sent && frames_in_flight_ > 0, "frame {}", number);
  Planned& frame = frames_[number];
  --frames_in_flight_;
  bytes_in_flight_ -= frame.bytes;
  if (sent != nullptr) {
    frame.sent = true;
    frame.header = sent->header;
    ++frames_sent_;
    if (frame.acked) {
      settle(frame);
    }
  }
}

// An Ack may overtake the end of our own write: the block is done after both.
Status PayloadShipment::on_ack(std::span<const wire::pb::TileRange> ranges, TimePoint now) {
  for (const wire::pb::TileRange& range : ranges) {
    const std::size_t end = std::size_t{range.first_tile()} + range.tiles();
    if (range.group() >= acked_.size() || end > acked_[range.group()].size()) {
      return fail(ErrorCode::kProtocol, "an Ack names tiles that were not granted");
    }
    std::vector<bool>& acked = acked_[range.group()];
    std::fill(acked.begin() + range.first_tile(), acked.begin() + static_cast<std::ptrdiff_t>(end),
              true);
    for (std::size_t i = first_unacked_; i < next_; ++i) {
      Planned& frame = frames_[i];
      const auto first = acked.begin() + frame.blocks.first_tile;
      if (frame.acked || frame.blocks.group != range.group() ||
          std::find(first, first + frame.blocks.tiles, false) != first + frame.blocks.tiles) {
        continue;
      }
      frame.acked = true;
      unacked_bytes_ -= frame.bytes;
      // Acks are given for several frames: the one that left last is the one that brought this
      // about. Small ones tell more of round trips and scheduling than of the way.
      if (frame.bytes >= min_frame_bytes_ && now > frame.left_at) {
        way_.seconds_per_byte = std::chrono::duration<double>(now - frame.left_at).count() /
                                static_cast<double>(frame.unacked_bytes);
        new_seconds_per_byte_ = way_.seconds_per_byte;
      }
      if (frame.sent) {
        settle(frame);
      }
    }
    while (first_unacked_ < next_ && frames_[first_unacked_].acked) {
      ++first_unacked_;
    }
  }
  return {};
}

void PayloadShipment::settle(const Planned& frame) {
  const auto [first, last] = blocks_of(frame.blocks);
  for (std::uint32_t block = first; block <= last; ++block) {
    if (--uses_[frame.blocks.group][block] == 0) {
      done_.push_back({frame.blocks.group, block, 1});
    }
  }
}

std::vector<message::BlockRange> PayloadShipment::take_done_blocks() {
  return std::exchange(done_, {});
}

void PayloadShipment::fill(wire::pb::Commit& commit) const {
  wire::HandoffDigest digest;
  std::uint64_t bytes = 0;
  for (const Planned& frame : frames_) {
    digest.add(frame.header);
    bytes += frame.bytes;
  }
  commit.set_frames(frames_.size());
  commit.set_payload_bytes(bytes);
  commit.set_digest(digest.value());
}

// ---- moving it --------------------------------------------------------------------------------

asio::awaitable<Result<BulkSent>> send_handoff_payload(Transport& transport,
                                                       const kv::KvLayout& layout, FrameJob job,
                                                       std::atomic<std::uint64_t>& bytes_sent) {
  std::vector<std::byte> poisoned;
  if (BATON_FAILPOINT("handoff.poison")) {
    poisoned = poisoned_copy(layout, job.blocks, job.tiles);
    job.tiles.assign(1, poisoned);
  }
  auto sent = co_await transport.send_blocks(std::move(job.to), job.key, job.blocks, job.number,
                                             std::move(job.tiles));
  if (sent) {
    bytes_sent.fetch_add(sent->payload_bytes, std::memory_order_relaxed);
  }
  co_return sent;
}

asio::awaitable<Status> send_handoff_payload(Transport& transport, NodeId to, SequenceKey key,
                                             wire::pb::Commit commit) {
  if (BATON_FAILPOINT("handoff.drop_commit")) {
    co_return Status{};
  }
  co_return co_await transport.send_commit(std::move(to), key, std::move(commit));
}

}  // namespace baton::handoff
