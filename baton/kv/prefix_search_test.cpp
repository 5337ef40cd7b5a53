#include "baton/kv/prefix_search.h"

#include <gtest/gtest.h>

namespace baton::kv {
namespace {

constexpr std::int32_t kPerBlock = 2;
constexpr std::int32_t kWindow = 70;  // the last three tiles of a prefix, four where it ends early

class PrefixSearch : public ::testing::Test {
 protected:
  PrefixSearch() {
    layout.block_tokens = kPerBlock * kTileTokens;
    layout.groups.resize(2);
    layout.groups[1].kind = GroupKind::kWindow;
    layout.groups[1].window_tokens = kWindow;
    pools.push_back(std::make_unique<BlockPool>(16));
    pools.push_back(std::make_unique<BlockPool>(16));
    for (std::size_t group = 0; group < 2; ++group) {
      indexes.push_back(
          std::make_unique<PrefixIndex>(kPerBlock, std::span(pools).subspan(group, 1)));
    }
    TileHasher hasher("key");
    TileDigest parent = hasher.root({});
    for (TokenId i = 0; i < 12; ++i) {
      parent = hasher.tile(parent, std::vector<TokenId>(kTileTokens, i));
      tiles.push_back(parent);
    }
  }
  // Tiles [first, end) of the chain, in fresh blocks of that group which stay cached.
  void insert(std::size_t group, std::int32_t first, std::int32_t end) {
    for (std::int32_t block = first / kPerBlock; block * kPerBlock < end; ++block) {
      const std::int32_t begin = block * kPerBlock;
      const std::vector<BlockRef> ref = *pools[group]->try_take(1);
      const BlockId id = ref[0].id();
      const auto count = static_cast<std::size_t>(std::min(kPerBlock, end - begin));
      indexes[group]->insert({&id, 1},
                             std::span(tiles).subspan(static_cast<std::size_t>(begin), count),
                             static_cast<std::size_t>(std::max(0, first - begin)));
      indexes[group]->check_integrity();
    }
  }
  [[nodiscard]] SequenceHit find(std::size_t count) const {
    return find_prefix(layout, indexes, std::span(tiles).first(count));
  }

  KvLayout layout;
  std::vector<std::unique_ptr<BlockPool>> pools;  // the indexes hold spans of it
  std::vector<std::unique_ptr<PrefixIndex>> indexes;
  std::vector<TileDigest> tiles;
};

TEST_F(PrefixSearch, AWindowGroupNeedsOnlyItsLastTiles) {
  insert(0, 0, 10);
  EXPECT_EQ(find(12).tiles, 0) << "nothing of the window";
  insert(1, 6, 10);
  const SequenceHit hit = find(12);  // 320 tokens: the window begins at 251, in tile 7
  EXPECT_EQ(hit.tiles, 10);
  EXPECT_EQ(hit.groups[0].first_block, 0);
  EXPECT_EQ(hit.groups[0].blocks.size(), 5U);
  EXPECT_EQ(hit.groups[1].first_block, 3);
  EXPECT_EQ(hit.groups[1].blocks.size(), 2U);
  EXPECT_FALSE(hit.has_partial());
  // 288 tokens: from 219, tile 6.
  const SequenceHit shorter = find(9);
  EXPECT_EQ(shorter.tiles, 9);
  EXPECT_EQ(shorter.groups[1].first_block, 3);
  EXPECT_EQ(shorter.groups[1].blocks.size(), 1U);
  EXPECT_EQ(shorter.groups[1].partial_tiles, (TileRange{0, 1}));
  EXPECT_EQ(shorter.groups[0].blocks.size(), 4U);
  EXPECT_EQ(shorter.groups[0].partial_tiles, (TileRange{0, 1}));
  // 256 tokens: from 187, tile 5, which is not there, nor is an earlier window.
  EXPECT_EQ(find(8).tiles, 0);
}

TEST_F(PrefixSearch, AnEarlierWindowMayStillBeThere) {
  insert(0, 0, 12);
  insert(1, 0, 4);    // the beginning
  insert(1, 10, 12);  // of the end too little
  const SequenceHit hit = find(12);
  EXPECT_EQ(hit.tiles, 4);
  EXPECT_EQ(hit.groups[1].first_block, 0);  // 128 tokens: from 59, tile 1
  EXPECT_EQ(hit.groups[1].blocks.size(), 2U);
}

// A block whose first tiles never came (a handoff brings the last window only) serves no prefix
// that needs them.
TEST_F(PrefixSearch, WhatNeverCameIsNotThere) {
  insert(0, 0, 12);
  insert(1, 7, 12);
  EXPECT_EQ(find(12).tiles, 12);  // 384 tokens: from 315, tile 9
  EXPECT_EQ(find(10).tiles, 10);  // from 251, tile 7: the block's second
  EXPECT_EQ(find(10).groups[1].first_block, 3);
  EXPECT_EQ(find(9).tiles, 0);  // from 219, tile 6
  // One that has them replaces it.
  insert(1, 6, 8);
  EXPECT_EQ(find(9).tiles, 9);
  EXPECT_EQ(find(12).tiles, 12);
  for (const auto& index : indexes) {
    index->clear();
    index->check_integrity();
  }
  EXPECT_EQ(pools[1]->free_blocks(), 16U);
  EXPECT_EQ(find(12).tiles, 0);
}

TEST_F(PrefixSearch, FullGroupsAloneAreAsBefore) {
  layout.groups.resize(1);
  indexes.resize(1);
  insert(0, 0, 5);
  const SequenceHit hit = find(12);
  EXPECT_EQ(hit.tiles, 5);
  EXPECT_EQ(hit.groups[0].blocks.size(), 2U);
  EXPECT_TRUE(hit.has_partial());
  EXPECT_EQ(hit.groups[0].partial_tiles, (TileRange{0, 1}));
}

}  // namespace
}  // namespace baton::kv
