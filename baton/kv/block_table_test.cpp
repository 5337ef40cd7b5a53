#include "baton/kv/block_table.h"

#include <gtest/gtest.h>

namespace baton::kv {
namespace {

TEST(BlockTable, KeepsOrderAndShares) {
  BlockPool pool(8);
  {
    BlockTable table(*pool.try_take(2));
    table.append(*pool.try_take(1));
    ASSERT_EQ(table.block_count(), 3U);
    EXPECT_EQ(table.ids()[2], BlockId{2});
    std::vector<BlockRef> lent = table.share_first(2);
    table = BlockTable();
    EXPECT_EQ(pool.owned_blocks(), 2U);  // the lent ones outlive their table
    lent.clear();
    EXPECT_EQ(pool.owned_blocks(), 0U);
  }
  pool.check_integrity();
}

TEST(BlockTable, FirstBlocksGoBackOrWereNeverThere) {
  BlockPool pool(8);
  {
    BlockTable table;
    table.skip(2);
    table.append(*pool.try_take(3));
    EXPECT_EQ(table.block_count(), 5U);
    EXPECT_EQ(table.ids()[1], kNoBlock);
    EXPECT_EQ(table.ids()[2], BlockId{0});
    std::vector<BlockRef> lent = table.share_first(4);
    EXPECT_TRUE(lent[0].empty());
    EXPECT_FALSE(lent[3].empty());
    table.release_first(4);
    table.release_first(1);  // they are gone already
    EXPECT_EQ(table.ids()[3], kNoBlock);
    EXPECT_EQ(table.ids()[4], BlockId{2});
    EXPECT_EQ(pool.owned_blocks(), 3U);  // two of them lent
    lent.clear();
    EXPECT_EQ(pool.owned_blocks(), 1U);
  }
  pool.check_integrity();
}

TEST(Tiles, OfATokenRange) {
  EXPECT_EQ(tiles_of_tokens(0, 1), (TileRange{0, 1}));
  EXPECT_EQ(tiles_of_tokens(0, 32), (TileRange{0, 1}));
  EXPECT_EQ(tiles_of_tokens(31, 33), (TileRange{0, 2}));
  EXPECT_EQ(tiles_of_tokens(32, 64), (TileRange{1, 2}));
  EXPECT_EQ(tiles_of_tokens(40, 40), (TileRange{1, 1}));
}

TEST(Tiles, SplitAtBlockBorders) {
  const KvLayout layout{{}, 128};
  EXPECT_EQ(split_by_block(layout, {0, 0}), std::vector<BlockTiles>{});
  EXPECT_EQ(split_by_block(layout, {1, 3}), (std::vector<BlockTiles>{{0, {1, 3}}}));
  EXPECT_EQ(split_by_block(layout, {3, 9}),
            (std::vector<BlockTiles>{{0, {3, 4}}, {1, {0, 4}}, {2, {0, 1}}}));
}

}  // namespace
}  // namespace baton::kv
