#include "baton/handoff/tile_plan.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <set>
#include <tuple>

namespace baton::handoff {
namespace {

kv::KvLayout layout(std::int32_t block_tokens, std::int32_t layers = 3, std::int32_t heads = 2,
                    std::int32_t head_dim = 8) {
  kv::KvLayout result;
  result.block_tokens = block_tokens;
  kv::KvGroup group;
  for (std::int32_t layer = 0; layer < layers; ++layer) {
    group.layers.push_back(layer);
  }
  group.kv_heads = heads;
  group.head_dim = head_dim;
  group.dtype = kv::KvDtype::kF32;
  result.groups.push_back(group);
  return result;
}

// Blocks of one sequence in memory of our own.
struct Blocks {
  explicit Blocks(const kv::KvLayout& of, std::int32_t tokens) {
    const auto count = static_cast<std::size_t>(of.blocks_for(tokens));
    memory.resize(count * of.block_bytes(0));
    for (std::size_t i = 0; i < count; ++i) {
      table.push_back({kv::BlockId{static_cast<std::uint32_t>(7 * i)},
                       std::span(memory).subspan(i * of.block_bytes(0), of.block_bytes(0))});
    }
  }
  std::span<std::byte> tile(const kv::KvLayout& of, std::int32_t layer, std::int32_t head,
                            std::int32_t tile) {
    const std::int32_t per_block = of.tiles_per_block();
    return table[static_cast<std::size_t>(tile / per_block)].bytes.subspan(
        of.tile_offset(0, layer, head, tile % per_block), of.groups[0].tile_bytes());
  }
  std::vector<std::byte> memory;
  std::vector<message::LeasedBlock> table;
};

TEST(tile_plan, every_tile_arrives_in_its_place_whatever_the_block_sizes) {
  for (const std::int32_t sender : {32, 64, 128, 256}) {
    for (const std::int32_t receiver : {32, 64, 128, 256}) {
      for (const std::int32_t tokens : {1, 32, 33, 200, 256, 257, 700}) {
        const kv::KvLayout from = layout(sender);
        const kv::KvLayout to = layout(receiver);
        Blocks source(from, tokens);
        Blocks target(to, tokens);
        for (std::size_t i = 0; i < source.memory.size(); ++i) {
          source.memory[i] = static_cast<std::byte>(i * 2654435761U >> 13U);
        }
        const auto ranges = tiles_needed(from, tokens);
        TileCoverage coverage(to, ranges);
        std::uint64_t bytes = 0;
        for (const std::size_t min_bytes : {std::size_t{4096}, std::size_t{1} << 20}) {
          for (const wire::BlocksHeader& frame : plan_frames(from, ranges, min_bytes, 2 << 20)) {
            ASSERT_TRUE(check_frame(to, frame));
            const auto out = collect_spans(from, source.table, frame);
            const auto in = collect_spans(to, target.table, frame);
            std::vector<std::byte> payload;
            for (const auto span : out) {
              payload.insert(payload.end(), span.begin(), span.end());
            }
            ASSERT_EQ(payload.size(), frame_bytes(from, frame));
            std::size_t offset = 0;
            for (const auto span : in) {
              std::memcpy(span.data(), payload.data() + offset, span.size());
              offset += span.size();
            }
            ASSERT_EQ(offset, payload.size());
            if (min_bytes == 4096) {
              ASSERT_TRUE(coverage.mark(frame));
              bytes += frame_bytes(from, frame);
            }
          }
        }
        EXPECT_TRUE(coverage.complete());
        EXPECT_EQ(bytes, from.handoff_bytes(tokens));
        EXPECT_EQ(bytes, ranges_bytes(to, ranges));
        for (std::int32_t layer = 0; layer < 3; ++layer) {
          for (std::int32_t head = 0; head < 2; ++head) {
            for (std::int32_t tile = 0; tile < kv::KvLayout::tiles_for(tokens); ++tile) {
              const auto a = source.tile(from, layer, head, tile);
              const auto b = target.tile(to, layer, head, tile);
              ASSERT_EQ(std::memcmp(a.data(), b.data(), a.size()), 0)
                  << sender << " to " << receiver << " layer " << layer << " tile " << tile;
            }
          }
        }
      }
    }
  }
}

TEST(tile_plan, whole_blocks_of_equal_size_are_one_span_each) {
  const kv::KvLayout same = layout(64);
  Blocks blocks(same, 64 * 4 + 5);
  const wire::BlocksHeader whole{0, 0, 3, 0, 2, 0, 8, 64};
  const auto spans = collect_spans(same, blocks.table, whole);
  ASSERT_EQ(spans.size(), 1U);  // the test's blocks lie side by side
  EXPECT_EQ(spans[0].size(), 4 * same.block_bytes(0));
  // A partial last block: one run per (layer, head), only tiles with real tokens.
  const wire::BlocksHeader partial{0, 0, 3, 0, 2, 8, 1, 64};
  EXPECT_EQ(collect_spans(same, blocks.table, partial).size(), 6U);
}

TEST(tile_plan, frames_stay_within_their_bounds) {
  // 128 KiB a tile of one head; a block is 32 MiB.
  const kv::KvLayout big = layout(256, 32, 1, 512);
  const auto ranges = tiles_needed(big, 600);
  std::uint64_t bytes = 0;
  for (const wire::BlocksHeader& frame : plan_frames(big, ranges, 256 << 10, 8 << 20)) {
    EXPECT_LE(frame_bytes(big, frame), 8U << 20U);
    bytes += frame_bytes(big, frame);
  }
  EXPECT_EQ(bytes, big.handoff_bytes(600));

  const kv::KvLayout small = layout(32);
  const auto frames = plan_frames(small, tiles_needed(small, 3000), 64 << 10, 8 << 20);
  for (std::size_t i = 0; i + 1 < frames.size(); ++i) {
    EXPECT_GE(frame_bytes(small, frames[i]), 64U << 10U);
  }
}

TEST(tile_plan, wrong_frames_and_ranges_are_refused) {
  const kv::KvLayout own = layout(64);
  const wire::BlocksHeader good{0, 0, 3, 0, 2, 0, 2, 64};
  EXPECT_TRUE(check_frame(own, good));
  const wire::BlocksHeader bad[] = {
      {1, 0, 3, 0, 2, 0, 2, 64},                                               // group
      {0, 3, 1, 0, 2, 0, 2, 64},                                               // layers
      {0, 1, 3, 0, 2, 0, 2, 64},          {0, 1, 0xFFFFFFFF, 0, 2, 0, 2, 64},  // the sum wraps
      {0, 0, 3, 2, 1, 0, 2, 64},                                               // heads
      {0, 0, 3, 0, 0, 0, 2, 64},          {0, 0, 3, 0, 2, 0, 0, 64},           // no tiles
      {0, 0, 3, 0, 2, 0xFFFFFFFF, 2, 64}, {0, 0, 3, 0, 2, 0, 2, 48},           // block_tokens
  };
  for (const wire::BlocksHeader& frame : bad) {
    EXPECT_FALSE(check_frame(own, frame));
  }
  const auto range = [](std::uint32_t group, std::uint32_t first, std::uint32_t tiles) {
    wire::pb::TileRange result;
    result.set_group(group);
    result.set_first_tile(first);
    result.set_tiles(tiles);
    return result;
  };
  using Ranges = std::vector<wire::pb::TileRange>;
  EXPECT_TRUE(check_ranges(own, 100, Ranges{range(0, 0, 4)}));
  EXPECT_TRUE(check_ranges(own, 100, Ranges{range(0, 0, 1), range(0, 3, 1)}));
  EXPECT_FALSE(check_ranges(own, 100, Ranges{range(0, 0, 5)}));
  EXPECT_FALSE(check_ranges(own, 100, Ranges{range(1, 0, 1)}));
  EXPECT_FALSE(check_ranges(own, 100, Ranges{range(0, 2, 0xFFFFFFFF)}));
  EXPECT_FALSE(check_ranges(own, 100, Ranges{range(0, 0, 2), range(0, 1, 1)}));
}

TEST(tile_coverage, takes_each_granted_tile_once) {
  const kv::KvLayout own = layout(32);
  wire::pb::TileRange range;
  range.set_first_tile(2);
  range.set_tiles(3);
  TileCoverage coverage(own, std::vector{range});
  EXPECT_FALSE(coverage.mark({0, 0, 3, 0, 2, 1, 2, 32}));  // tile 1 was not granted
  EXPECT_FALSE(coverage.mark({0, 0, 3, 0, 2, 4, 2, 32}));  // nor 5
  EXPECT_TRUE(coverage.mark({0, 0, 2, 0, 2, 2, 3, 32}));   // layers 0, 1
  EXPECT_FALSE(coverage.complete());
  EXPECT_FALSE(coverage.mark({0, 1, 2, 0, 2, 2, 1, 32}));  // layer 1 again: nothing is marked
  EXPECT_TRUE(coverage.mark({0, 2, 1, 0, 1, 2, 3, 32}));
  EXPECT_FALSE(coverage.complete());
  EXPECT_TRUE(coverage.mark({0, 2, 1, 1, 1, 2, 3, 32}));
  EXPECT_TRUE(coverage.complete());
}

TEST(tile_coverage, says_which_tiles_came_whole_and_how_far_the_prefix_reaches) {
  const kv::KvLayout own = layout(32);
  wire::pb::TileRange range;
  range.set_first_tile(2);
  range.set_tiles(4);
  TileCoverage coverage(own, std::vector{range});
  EXPECT_TRUE(coverage.mark({0, 0, 2, 0, 2, 2, 2, 32}));  // layers 0, 1 of tiles 2, 3
  EXPECT_TRUE(coverage.take_complete().empty());
  EXPECT_EQ(coverage.prefix_tiles(2), 2U);
  EXPECT_TRUE(coverage.mark({0, 0, 3, 0, 2, 5, 1, 32}));
  EXPECT_TRUE(coverage.mark({0, 2, 1, 0, 2, 2, 2, 32}));
  const auto complete = coverage.take_complete();
  ASSERT_EQ(complete.size(), 2U);
  EXPECT_EQ(complete[0].first_tile(), 2U);
  EXPECT_EQ(complete[0].tiles(), 2U);
  EXPECT_EQ(complete[1].first_tile(), 5U);
  EXPECT_EQ(complete[1].tiles(), 1U);
  EXPECT_TRUE(coverage.take_complete().empty());  // each once
  EXPECT_EQ(coverage.prefix_tiles(2), 4U);        // tile 4 is open
  EXPECT_EQ(coverage.prefix_tiles(1), 1U);        // tile 1 is nowhere
  EXPECT_TRUE(coverage.mark({0, 0, 3, 0, 2, 4, 1, 32}));
  EXPECT_EQ(coverage.prefix_tiles(2), 6U);
}

TEST(tile_plan, what_is_cached_is_not_lacking) {
  kv::KvLayout mixed = layout(32);
  mixed.groups.push_back(mixed.groups[0]);
  mixed.groups[1].kind = kv::GroupKind::kWindow;
  mixed.groups[1].window_tokens = 64;
  for (const std::uint32_t cached : {0U, 3U, 5U}) {
    const auto ranges = tiles_lacking(mixed, 200, static_cast<std::int32_t>(cached * 32));
    ASSERT_EQ(ranges.size(), 2U);
    EXPECT_EQ(ranges[0].first_tile(), cached);
    EXPECT_EQ(ranges[0].first_tile() + ranges[0].tiles(), 7U);
    EXPECT_EQ(ranges[1].first_tile(), std::max(4U, cached));
    EXPECT_EQ(ranges[1].first_tile() + ranges[1].tiles(), 7U);
  }
  EXPECT_TRUE(tiles_lacking(layout(32), 64, 64).empty());
}

TEST(tile_plan, a_window_group_needs_only_its_last_tiles) {
  kv::KvLayout mixed = layout(32);
  mixed.groups.push_back(mixed.groups[0]);
  mixed.groups[1].kind = kv::GroupKind::kWindow;
  mixed.groups[1].window_tokens = 64;
  const auto ranges = tiles_needed(mixed, 200);  // the window is [137, 200): tiles 4 to 6
  ASSERT_EQ(ranges.size(), 2U);
  EXPECT_EQ(ranges[0].tiles(), 7U);
  EXPECT_EQ(ranges[1].first_tile(), 4U);
  EXPECT_EQ(ranges[1].tiles(), 3U);
  EXPECT_EQ(ranges_bytes(mixed, ranges), mixed.handoff_bytes(200));
  EXPECT_TRUE(check_ranges(mixed, 200, ranges));
  // What the sender has given back cannot be asked for.
  std::vector<wire::pb::TileRange> early = ranges;
  early[1].set_first_tile(3);
  EXPECT_FALSE(check_ranges(mixed, 200, early));
}

}  // namespace
}  // namespace baton::handoff
