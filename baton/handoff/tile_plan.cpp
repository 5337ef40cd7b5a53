#include "baton/handoff/tile_plan.h"

#include "baton/base/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace baton::handoff {
namespace {

using wire::BlocksHeader;
using wire::pb::TileRange;

struct GroupShape {
  std::uint32_t layers;
  std::uint32_t heads;
};

GroupShape shape(const kv::KvGroup& group) {
  return {static_cast<std::uint32_t>(group.layers.size()),
          static_cast<std::uint32_t>(group.kv_heads)};
}

// [first, last) of what `tokens` has in the group.
std::pair<std::uint32_t, std::uint32_t> needed(const kv::KvGroup& group, std::int32_t tokens) {
  const kv::TileRange tiles = group.tiles_needed(tokens);
  return {static_cast<std::uint32_t>(tiles.begin), static_cast<std::uint32_t>(tiles.end)};
}

tl::unexpected<Error> bad_frame(const char* what, std::uint32_t value) {
  return fail(ErrorCode::kProtocol, fmt::format("a Blocks frame's {} is {}", what, value));
}

bool fits(std::uint32_t first, std::uint32_t count, std::uint32_t limit) {
  return count > 0 && first < limit && count <= limit - first;
}

std::uint32_t round_down(std::uint64_t value, std::uint32_t unit) {
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(value / unit * unit, 1U << 30U));
}

// How a group's tiles are cut into frames.
struct Cut {
  std::uint32_t tiles;
  std::uint32_t layers;
  std::uint32_t heads;
};

Cut cut_for(const kv::KvGroup& group, std::uint32_t tiles_per_block, std::size_t min_bytes,
            std::size_t max_bytes) {
  const GroupShape full = shape(group);
  const std::size_t tile = group.tile_bytes();
  const std::size_t tile_row = tile * full.layers * full.heads;  // one tile of all layers
  const std::size_t block = tile_row * tiles_per_block;
  if (block <= max_bytes) {
    // As few blocks as reach the minimum: an abort is seen, and loss repeated, by the frame.
    const std::size_t blocks = std::min((min_bytes + block - 1) / block, max_bytes / block);
    return {round_down(std::max<std::size_t>(blocks, 1) * tiles_per_block, tiles_per_block),
            full.layers, full.heads};
  }
  Cut cut{tiles_per_block, 1, full.heads};
  while (cut.tiles > 1 && tile * full.heads * cut.tiles > max_bytes) {
    cut.tiles /= 2;
  }
  if (tile * full.heads * cut.tiles > max_bytes) {
    cut.heads = static_cast<std::uint32_t>(std::max<std::size_t>(max_bytes / tile, 1));
    return cut;
  }
  const std::size_t layers = max_bytes / (tile * full.heads * cut.tiles);
  cut.layers = static_cast<std::uint32_t>(std::min<std::size_t>(layers, full.layers));
  return cut;
}

}  // namespace

std::vector<TileRange> tiles_needed(const kv::KvLayout& layout, std::int32_t tokens) {
  std::vector<TileRange> ranges;
  for (std::size_t index = 0; index < layout.groups.size(); ++index) {
    const auto [first, last] = needed(layout.groups[index], tokens);
    if (first == last) {
      continue;
    }
    TileRange range;
    range.set_group(static_cast<std::uint32_t>(index));
    range.set_first_tile(first);
    range.set_tiles(last - first);
    ranges.push_back(range);
  }
  return ranges;
}

std::vector<TileRange> tiles_lacking(const kv::KvLayout& layout, std::int32_t tokens,
                                     std::int32_t cached_tokens) {
  const auto cached = static_cast<std::uint32_t>(cached_tokens / kv::kTileTokens);
  std::vector<TileRange> ranges;
  for (TileRange& range : tiles_needed(layout, tokens)) {
    const std::uint32_t end = range.first_tile() + range.tiles();
    range.set_first_tile(std::max(range.first_tile(), std::min(cached, end)));
    range.set_tiles(end - range.first_tile());
    if (range.tiles() > 0) {
      ranges.push_back(range);
    }
  }
  return ranges;
}

Status check_ranges(const kv::KvLayout& layout, std::int32_t tokens,
                    std::span<const TileRange> ranges) {
  std::vector<std::uint32_t> next;  // [group]
  for (const kv::KvGroup& group : layout.groups) {
    next.push_back(needed(group, tokens).first);
  }
  for (const TileRange& range : ranges) {
    if (range.group() >= layout.groups.size()) {
      return fail(ErrorCode::kProtocol, fmt::format("a range names group {}", range.group()));
    }
    const std::uint32_t last = needed(layout.groups[range.group()], tokens).second;
    if (!fits(range.first_tile(), range.tiles(), last) ||
        range.first_tile() < next[range.group()]) {
      return fail(ErrorCode::kProtocol,
                  fmt::format("a range of {} tiles from {} does not fit a sequence that has "
                              "tiles from {} to {} left",
                              range.tiles(), range.first_tile(), next[range.group()], last));
    }
    next[range.group()] = range.first_tile() + range.tiles();
  }
  return {};
}

Status check_frame(const kv::KvLayout& layout, const BlocksHeader& frame) {
  if (frame.group >= layout.groups.size()) {
    return bad_frame("group", frame.group);
  }
  const GroupShape full = shape(layout.groups[frame.group]);
  if (!fits(frame.first_layer, frame.layers, full.layers)) {
    return bad_frame("layer range", frame.first_layer);
  }
  if (!fits(frame.first_head, frame.heads, full.heads)) {
    return bad_frame("head range", frame.first_head);
  }
  if (!fits(frame.first_tile, frame.tiles, 1U << 26U)) {  // 2^31 tokens
    return bad_frame("tile range", frame.first_tile);
  }
  if (frame.block_tokens != 32 && frame.block_tokens != 64 && frame.block_tokens != 128 &&
      frame.block_tokens != 256) {
    return bad_frame("block_tokens", frame.block_tokens);
  }
  return {};
}

std::uint64_t frame_bytes(const kv::KvLayout& layout, const BlocksHeader& frame) {
  return std::uint64_t{frame.layers} * frame.heads * frame.tiles *
         layout.groups[frame.group].tile_bytes();
}

std::uint64_t ranges_bytes(const kv::KvLayout& layout, std::span<const TileRange> ranges) {
  std::uint64_t bytes = 0;
  for (const TileRange& range : ranges) {
    const kv::KvGroup& group = layout.groups[range.group()];
    const GroupShape full = shape(group);
    bytes += std::uint64_t{full.layers} * full.heads * range.tiles() * group.tile_bytes();
  }
  return bytes;
}

std::vector<BlocksHeader> plan_frames(const kv::KvLayout& layout, std::span<const TileRange> ranges,
                                      std::size_t min_bytes, std::size_t max_bytes) {
  std::vector<BlocksHeader> frames;
  for (const TileRange& range : ranges) {
    const kv::KvGroup& group = layout.groups[range.group()];
    const GroupShape full = shape(group);
    const auto tiles_per_block = static_cast<std::uint32_t>(layout.tiles_per_block());
    const Cut cut = cut_for(group, tiles_per_block, min_bytes, max_bytes);
    const std::uint32_t end = range.first_tile() + range.tiles();
    for (std::uint32_t tile = range.first_tile(); tile < end;) {
      // Cuts lie at absolute multiples, so that blocks stay whole after a prefix was left out.
      const std::uint32_t next = std::min(end, (tile / cut.tiles + 1) * cut.tiles);
      for (std::uint32_t layer = 0; layer < full.layers; layer += cut.layers) {
        for (std::uint32_t head = 0; head < full.heads; head += cut.heads) {
          frames.push_back({range.group(), layer, std::min(cut.layers, full.layers - layer), head,
                            std::min(cut.heads, full.heads - head), tile, next - tile,
                            static_cast<std::uint32_t>(layout.block_tokens)});
        }
      }
      tile = next;
    }
  }
  return frames;
}

std::vector<std::span<std::byte>> collect_spans(const kv::KvLayout& layout,
                                                std::span<const message::LeasedBlock> table,
                                                const BlocksHeader& frame) {
  const std::size_t tile_bytes = layout.groups[frame.group].tile_bytes();
  const auto ours = static_cast<std::uint32_t>(layout.tiles_per_block());
  const std::uint32_t theirs = frame.block_tokens / kv::kTileTokens;
  const std::uint32_t end = frame.first_tile + frame.tiles;
  std::vector<std::span<std::byte>> spans;
  const auto append = [&](std::span<std::byte> run) {
    if (!spans.empty() && spans.back().data() + spans.back().size() == run.data()) {
      spans.back() = {spans.back().data(), spans.back().size() + run.size()};
    } else {
      spans.push_back(run);
    }
  };
  for (std::uint32_t begin = frame.first_tile; begin < end;) {
    const std::uint32_t sender_end = std::min(end, (begin / theirs + 1) * theirs);
    for (std::uint32_t layer = frame.first_layer; layer < frame.first_layer + frame.layers;
         ++layer) {
      for (std::uint32_t head = frame.first_head; head < frame.first_head + frame.heads; ++head) {
        for (std::uint32_t tile = begin; tile < sender_end;) {
          const std::uint32_t run_end = std::min(sender_end, (tile / ours + 1) * ours);
          const std::size_t offset = layout.tile_offset(
              frame.group, static_cast<std::int32_t>(layer), static_cast<std::int32_t>(head),
              static_cast<std::int32_t>(tile % ours));
          append(table[tile / ours].bytes.subspan(offset, (run_end - tile) * tile_bytes));
          tile = run_end;
        }
      }
    }
    begin = sender_end;
  }
  return spans;
}

std::vector<std::span<const std::byte>> const_spans(
    const std::vector<std::span<std::byte>>& spans) {
  return {spans.begin(), spans.end()};
}

bool tables_cover(const kv::KvLayout& layout,
                  std::span<const std::vector<message::LeasedBlock>> tables,
                  std::span<const TileRange> ranges) {
  const auto tiles_per_block = static_cast<std::uint32_t>(layout.tiles_per_block());
  return tables.size() == layout.groups.size() &&
         std::all_of(ranges.begin(), ranges.end(), [&](const TileRange& range) {
           const std::vector<message::LeasedBlock>& table = tables[range.group()];
           const std::uint32_t last = (range.first_tile() + range.tiles() - 1) / tiles_per_block;
           const std::size_t bytes = layout.block_bytes(range.group());
           return last < table.size() &&
                  std::all_of(table.begin() + range.first_tile() / tiles_per_block,
                              table.begin() + last + 1,
                              [&](const auto& block) { return block.bytes.size() == bytes; });
         });
}

TileCoverage::TileCoverage(const kv::KvLayout& layout, std::span<const TileRange> ranges) {
  for (std::size_t index = 0; index < layout.groups.size(); ++index) {
    const GroupShape full = shape(layout.groups[index]);
    Group group{full.layers, full.heads, 0, 0, {}, {}, {}};
    std::uint32_t first = ~0U;
    std::uint32_t last = 0;
    for (const TileRange& range : ranges) {
      if (range.group() == index) {
        first = std::min(first, range.first_tile());
        last = std::max(last, range.first_tile() + range.tiles());
      }
    }
    if (last > 0) {
      group.first_tile = first;
      group.tiles = last - first;
      group.open.assign(std::size_t{full.layers} * full.heads * group.tiles, false);
      group.left.assign(group.tiles, 0);
    }
    groups_.push_back(std::move(group));
  }
  for (const TileRange& range : ranges) {
    Group& group = groups_[range.group()];
    for (std::uint32_t layer = 0; layer < group.layers; ++layer) {
      for (std::uint32_t head = 0; head < group.heads; ++head) {
        const auto row = group.open.begin() +
                         static_cast<std::ptrdiff_t>(at(group, layer, head, range.first_tile()));
        std::fill(row, row + range.tiles(), true);
      }
    }
    missing_ += std::uint64_t{group.layers} * group.heads * range.tiles();
    const auto left = group.left.begin() + (range.first_tile() - group.first_tile);
    std::fill(left, left + range.tiles(), group.layers * group.heads);
  }
}

Status TileCoverage::mark(const BlocksHeader& frame) {
  BATON_CHECK(frame.group < groups_.size());
  Group& group = groups_[frame.group];
  if (frame.first_tile < group.first_tile ||
      !fits(frame.first_tile - group.first_tile, frame.tiles, group.tiles)) {
    return fail(ErrorCode::kProtocol, "a Blocks frame carries tiles that were not granted");
  }
  for (const bool write : {false, true}) {
    for (std::uint32_t layer = frame.first_layer; layer < frame.first_layer + frame.layers;
         ++layer) {
      for (std::uint32_t head = frame.first_head; head < frame.first_head + frame.heads; ++head) {
        const auto row = group.open.begin() +
                         static_cast<std::ptrdiff_t>(at(group, layer, head, frame.first_tile));
        if (write) {
          std::fill(row, row + frame.tiles, false);
        } else if (std::find(row, row + frame.tiles, false) != row + frame.tiles) {
          return fail(ErrorCode::kProtocol,
                      "a Blocks frame repeats a tile, or carries one that was not granted");
        }
      }
    }
  }
  missing_ -= std::uint64_t{frame.layers} * frame.heads * frame.tiles;
  for (std::uint32_t tile = frame.first_tile; tile < frame.first_tile + frame.tiles; ++tile) {
    if ((group.left[tile - group.first_tile] -= frame.layers * frame.heads) == 0) {
      group.new_complete.push_back(tile);
    }
  }
  return {};
}

std::vector<TileRange> TileCoverage::take_complete() {
  std::vector<TileRange> ranges;
  for (std::size_t index = 0; index < groups_.size(); ++index) {
    std::vector<std::uint32_t> tiles = std::exchange(groups_[index].new_complete, {});
    std::sort(tiles.begin(), tiles.end());
    for (std::size_t i = 0; i < tiles.size(); ++i) {
      if (i == 0 || tiles[i] != tiles[i - 1] + 1) {
        TileRange& range = ranges.emplace_back();
        range.set_group(static_cast<std::uint32_t>(index));
        range.set_first_tile(tiles[i]);
      }
      ranges.back().set_tiles(tiles[i] - ranges.back().first_tile() + 1);
    }
  }
  return ranges;
}

std::uint32_t TileCoverage::prefix_tiles(std::uint32_t cached) const {
  std::uint32_t fewest = ~0U;
  for (const Group& group : groups_) {
    std::uint32_t tiles = cached;
    while (tiles >= group.first_tile && tiles - group.first_tile < group.tiles &&
           group.left[tiles - group.first_tile] == 0) {
      ++tiles;
    }
    fewest = std::min(fewest, tiles);
  }
  return fewest;
}

}  // namespace baton::handoff
