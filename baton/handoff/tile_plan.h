// Which tiles a handoff moves, in which frames, and where their bytes lie in either node's blocks.
// The payload of a frame is in the order of the sender's blocks; the receiver's may be larger or
// smaller, tiles are the common measure. Ids and spans only; pure; any thread.
#pragma once

#include "baton/base/result.h"
#include "baton/kv/layout.h"
#include "baton/message/engine.h"
#include "baton/wire/frames.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace baton::handoff {

// The tiles that a sequence of `tokens` needs in each group: all of a full group, those that cover
// the last window of a window group. One range per group that needs any.
std::vector<wire::pb::TileRange> tiles_needed(const kv::KvLayout& layout, std::int32_t tokens);
// Of those, what a node lacks that has the first cached_tokens (whole tiles): at most one range per
// group.
std::vector<wire::pb::TileRange> tiles_lacking(const kv::KvLayout& layout, std::int32_t tokens,
                                               std::int32_t cached_tokens);

// A peer's ranges lie within what `tokens` has in each group, ascending and without overlap.
// Errors: kProtocol.
Status check_ranges(const kv::KvLayout& layout, std::int32_t tokens,
                    std::span<const wire::pb::TileRange> ranges);

// A peer's frame lies within the layout. Errors: kProtocol.
Status check_frame(const kv::KvLayout& layout, const wire::BlocksHeader& frame);

std::uint64_t frame_bytes(const kv::KvLayout& layout, const wire::BlocksHeader& frame);
std::uint64_t ranges_bytes(const kv::KvLayout& layout, std::span<const wire::pb::TileRange> ranges);

// The frames that carry these ranges, each at least min_bytes where the group goes on, and at most
// max_bytes: whole blocks with all layers where they fit, else layer and head ranges of one.
std::vector<wire::BlocksHeader> plan_frames(const kv::KvLayout& layout,
                                            std::span<const wire::pb::TileRange> ranges,
                                            std::size_t min_bytes, std::size_t max_bytes);

// Where a frame's bytes lie in our blocks, in the order of its payload: one span per block when the
// block is whole and sizes are equal, else one per (layer, head) run. `frame` was checked and
// `table` covers it.
std::vector<std::span<std::byte>> collect_spans(const kv::KvLayout& layout,
                                                std::span<const message::LeasedBlock> table,
                                                const wire::BlocksHeader& frame);
std::vector<std::span<const std::byte>> const_spans(const std::vector<std::span<std::byte>>& spans);

// True when every block that the ranges touch is in the tables and has the layout's size.
bool tables_cover(const kv::KvLayout& layout,
                  std::span<const std::vector<message::LeasedBlock>> tables,
                  std::span<const wire::pb::TileRange> ranges);

// Which (layer, head, tile)s of granted ranges have come: each exactly once.
class TileCoverage {
 public:
  TileCoverage(const kv::KvLayout& layout, std::span<const wire::pb::TileRange> ranges);
  // Marks the frame's tiles. Errors, leaving everything as it was: kProtocol (outside the ranges,
  // or a tile that was marked before).
  Status mark(const wire::BlocksHeader& frame);
  [[nodiscard]] bool complete() const { return missing_ == 0; }
  // Tiles of which the last (layer, head) came since the last call; ascending ranges.
  std::vector<wire::pb::TileRange> take_complete();
  // How many tiles from the sequence's first one on are there in every group, when the first
  // `cached` are.
  [[nodiscard]] std::uint32_t prefix_tiles(std::uint32_t cached) const;

 private:
  struct Group {
    std::uint32_t layers = 0;
    std::uint32_t heads = 0;
    std::uint32_t first_tile = 0;
    std::uint32_t tiles = 0;
    std::vector<bool> open;                   // [layer][head][tile]: granted and not yet come
    std::vector<std::uint32_t> left;          // [tile]: how many (layer, head)s of it are open
    std::vector<std::uint32_t> new_complete;  // tiles, for take_complete
  };
  [[nodiscard]] static std::size_t at(const Group& group, std::uint32_t layer, std::uint32_t head,
                                      std::uint32_t tile) {
    return (std::size_t{layer} * group.heads + head) * group.tiles + (tile - group.first_tile);
  }
  std::vector<Group> groups_;
  std::uint64_t missing_ = 0;
};

}  // namespace baton::handoff
