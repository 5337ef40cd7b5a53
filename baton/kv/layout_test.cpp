#include "baton/kv/layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace baton::kv {
namespace {

// SmolLM2-135M: 30 layers, 3 KV heads of 64.
KvLayout smol(KvDtype dtype, std::int32_t block_tokens) {
  KvGroup group;
  for (std::int32_t layer = 0; layer < 30; ++layer) {
    group.layers.push_back(layer);
  }
  group.kv_heads = 3;
  group.head_dim = 64;
  group.dtype = dtype;
  return KvLayout{{group}, block_tokens};
}

TEST(KvLayout, BytesOfEachDtype) {
  EXPECT_EQ(smol(KvDtype::kBf16, 128).groups[0].tile_bytes(), 2U * 32 * 64 * 2);
  EXPECT_EQ(smol(KvDtype::kF16, 128).groups[0].tile_bytes(), 2U * 32 * 64 * 2);
  EXPECT_EQ(smol(KvDtype::kF32, 128).groups[0].tile_bytes(), 2U * 32 * 64 * 4);
  EXPECT_EQ(smol(KvDtype::kQ8_0, 128).groups[0].tile_bytes(), 2U * (32 * 64 + 2 * 32 * 2));
  EXPECT_EQ(smol(KvDtype::kBf16, 128).block_bytes(0), 30U * 3 * 4 * 8192);
}

TEST(KvLayout, TilesOfABlockAreDisjointAndFillIt) {
  for (const std::int32_t block_tokens : {32, 64, 128, 256}) {
    const KvLayout layout = smol(KvDtype::kBf16, block_tokens);
    std::set<std::size_t> offsets;
    for (std::int32_t layer = 0; layer < 30; ++layer) {
      for (std::int32_t head = 0; head < 3; ++head) {
        for (std::int32_t tile = 0; tile < layout.tiles_per_block(); ++tile) {
          const std::size_t offset = layout.tile_offset(0, layer, head, tile);
          EXPECT_EQ(offset % layout.groups[0].tile_bytes(), 0U);
          EXPECT_LT(offset, layout.block_bytes(0));
          offsets.insert(offset);
        }
      }
    }
    EXPECT_EQ(offsets.size() * layout.groups[0].tile_bytes(), layout.block_bytes(0));
  }
}

TEST(KvLayout, TilesOfOneLayerAndHeadAreOneRun) {
  const KvLayout layout = smol(KvDtype::kBf16, 128);
  EXPECT_EQ(layout.tile_offset(0, 7, 2, 3) - layout.tile_offset(0, 7, 2, 0),
            3 * layout.groups[0].tile_bytes());
}

TEST(KvLayout, HandoffMovesWholeTilesWithRealTokens) {
  const KvLayout layout = smol(KvDtype::kBf16, 128);
  const std::uint64_t tile = 30ULL * 3 * 8192;
  EXPECT_EQ(layout.handoff_bytes(0), 0U);
  EXPECT_EQ(layout.handoff_bytes(1), tile);
  EXPECT_EQ(layout.handoff_bytes(32), tile);
  EXPECT_EQ(layout.handoff_bytes(33), 2 * tile);
  EXPECT_EQ(layout.handoff_bytes(1500), 47 * tile);
}

// Gemma 3's kind: one layer that sees all, two that see a window.
KvLayout windowed(std::int32_t window_tokens, std::int32_t block_tokens) {
  KvLayout layout = smol(KvDtype::kBf16, block_tokens);
  layout.groups[0].layers = {2};
  layout.groups.push_back(layout.groups[0]);
  layout.groups[1].kind = GroupKind::kWindow;
  layout.groups[1].window_tokens = window_tokens;
  layout.groups[1].layers = {0, 1};
  return layout;
}

TEST(KvLayout, AWindowGroupNeedsTheTilesOfTheLastWindow) {
  const KvLayout layout = windowed(40, 64);
  EXPECT_TRUE(layout.has_windows());
  EXPECT_FALSE(smol(KvDtype::kBf16, 64).has_windows());
  const KvGroup& window = layout.groups[1];
  EXPECT_EQ(layout.groups[0].first_visible(1000), 0);
  EXPECT_EQ(window.first_visible(0), 0);
  EXPECT_EQ(window.first_visible(39), 0);
  EXPECT_EQ(window.first_visible(40), 1);
  EXPECT_EQ(layout.groups[0].tiles_needed(200), (TileRange{0, 7}));
  EXPECT_EQ(window.tiles_needed(0), (TileRange{0, 0}));
  EXPECT_EQ(window.tiles_needed(64), (TileRange{0, 2}));   // [25, 64)
  EXPECT_EQ(window.tiles_needed(71), (TileRange{1, 3}));   // [32, 71)
  EXPECT_EQ(window.tiles_needed(200), (TileRange{5, 7}));  // [161, 200)
  const std::uint64_t tile = 3ULL * 8192;
  EXPECT_EQ(layout.handoff_bytes(200), 7 * tile + 2 * 2 * tile);
  EXPECT_EQ(layout.handoff_bytes(30), tile + 2 * tile);
}

// The bound is what some chunk really touches, and none touches more.
TEST(KvLayout, BlocksHeldOfAWindowGroup) {
  for (const std::int32_t block_tokens : {32, 128}) {
    for (const std::int32_t window : {2, 33, 40, 512}) {
      for (const std::int32_t chunk : {1, 32, 100, 512}) {
        const KvLayout layout = windowed(window, block_tokens);
        std::int64_t most = 0;
        for (std::int64_t start = 0; start < 2000; ++start) {
          const std::int64_t first = layout.groups[1].first_visible(start) / block_tokens;
          most = std::max(most, layout.blocks_for(start + chunk) - first);
        }
        EXPECT_EQ(layout.blocks_held(1, 100'000, chunk), most)
            << block_tokens << " " << window << " " << chunk;
        EXPECT_EQ(layout.blocks_held(1, 40, chunk),
                  std::min<std::int64_t>(layout.blocks_for(40), most));
        EXPECT_EQ(layout.blocks_held(0, 1000, chunk), layout.blocks_for(1000));
      }
    }
  }
}

TEST(KvLayout, CountsRoundUp) {
  const KvLayout layout = smol(KvDtype::kBf16, 64);
  EXPECT_EQ(layout.blocks_for(0), 0);
  EXPECT_EQ(layout.blocks_for(1), 1);
  EXPECT_EQ(layout.blocks_for(64), 1);
  EXPECT_EQ(layout.blocks_for(65), 2);
  EXPECT_EQ(KvLayout::tiles_for(31), 1);
  EXPECT_EQ(KvLayout::tiles_for(33), 2);
}

TEST(KvDtypeName, RoundTripAndRefusal) {
  for (const KvDtype dtype : {KvDtype::kF32, KvDtype::kF16, KvDtype::kBf16, KvDtype::kQ8_0}) {
    const Result<KvDtype> parsed = parse_kv_dtype(kv_dtype_name(dtype));
    ASSERT_TRUE(parsed.has_value());
    EXPECT_EQ(*parsed, dtype);
  }
  const Result<KvDtype> bad = parse_kv_dtype("fp8");
  ASSERT_FALSE(bad.has_value());
  EXPECT_EQ(bad.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(bad.error().message.find("fp8"), std::string::npos);
}

}  // namespace
}  // namespace baton::kv
