#include "baton/kv/prefix_index.h"

#include "baton/kv/layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <utility>

namespace baton::kv {
namespace {

std::vector<TileDigest> chain(TileHasher& hasher, std::uint32_t name, std::size_t tiles) {
  const std::string text = std::to_string(name);
  const std::string_view parts[] = {text};
  std::vector<TileDigest> digests;
  TileDigest parent = hasher.root(parts);
  for (std::size_t i = 0; i < tiles; ++i) {
    const std::vector<TokenId> tokens(kTileTokens, static_cast<TokenId>(i));
    parent = hasher.tile(parent, tokens);
    digests.push_back(parent);
  }
  return digests;
}

class Prefixes : public ::testing::Test {
 protected:
  static std::vector<std::unique_ptr<BlockPool>> make_pools() {
    std::vector<std::unique_ptr<BlockPool>> pools;
    pools.push_back(std::make_unique<BlockPool>(8));
    pools.push_back(std::make_unique<BlockPool>(8));
    return pools;
  }
  // A sequence's tables, all complete tiles of it in the index.
  struct Held {
    std::vector<std::vector<BlockRef>> refs;  // [group]
    std::vector<BlockId> first;               // ids in group 0
  };
  Held insert(std::span<const TileDigest> tiles, std::size_t per_block = 2) {
    Held held;
    const auto blocks = static_cast<std::uint32_t>((tiles.size() + per_block - 1) / per_block);
    for (const auto& pool : pools) {
      held.refs.push_back(*pool->try_take(blocks));
    }
    for (std::size_t block = 0; block < blocks; ++block) {
      const std::vector<BlockId> column = {held.refs[0][block].id(), held.refs[1][block].id()};
      held.first.push_back(column[0]);
      const std::size_t begin = block * per_block;
      index.insert(column, tiles.subspan(begin, std::min(per_block, tiles.size() - begin)));
    }
    return held;
  }
  void TearDown() override {
    index.check_integrity();
    for (const auto& pool : pools) {
      pool->check_integrity();
    }
  }

  std::vector<std::unique_ptr<BlockPool>> pools = make_pools();
  PrefixIndex index{2, pools};
  TileHasher hasher{"key"};
};

TEST(TileDigests, DependOnKeyRootParentAndTokens) {
  TileHasher a("key");
  TileHasher same("key");
  TileHasher random_one("");
  TileHasher random_two("");
  EXPECT_EQ(chain(a, 1, 3), chain(same, 1, 3));
  EXPECT_NE(chain(a, 1, 1), chain(a, 2, 1));
  EXPECT_NE(chain(random_one, 1, 1), chain(random_two, 1, 1));
  const std::string_view joined[] = {"ab", "c"};
  const std::string_view other[] = {"a", "bc"};
  EXPECT_NE(a.root(joined), a.root(other));
  const std::vector<TokenId> tokens(kTileTokens, 5);
  EXPECT_NE(a.tile(a.root(joined), tokens), a.tile(a.root(other), tokens));
  std::vector<TokenId> last_differs = tokens;
  last_differs.back() = 6;
  EXPECT_NE(a.tile(a.root(joined), tokens), a.tile(a.root(joined), last_differs));
}

// SHA-256 of (03 00 00 00) "key" | parent | 32 ids, cut: computed with Python's hashlib.
TEST(TileDigests, AreWhatIsWrittenDown) {
  TileHasher hasher("key");
  std::vector<TokenId> tokens(kTileTokens);
  for (TokenId i = 0; i < kTileTokens; ++i) {
    tokens[static_cast<std::size_t>(i)] = i;
  }
  const TileDigest digest = hasher.tile(TileDigest{}, tokens);
  const std::array<std::uint8_t, 16> expected = {0xE2, 0x26, 0xB7, 0xAC, 0x95, 0xFF, 0xB4, 0x84,
                                                 0x9B, 0x17, 0x12, 0xF5, 0x12, 0x39, 0xC4, 0x53};
  EXPECT_EQ(digest.bytes, expected);
}

TEST_F(Prefixes, AreFoundWholeAndInPart) {
  const auto tiles = chain(hasher, 1, 5);
  const Held held = insert(tiles);
  for (std::size_t asked = 0; asked <= 5; ++asked) {
    const PrefixHit hit = index.find(std::span(tiles).first(asked));
    EXPECT_EQ(hit.tiles, static_cast<std::int32_t>(asked));
    EXPECT_EQ(hit.blocks.size(), asked / 2);
    EXPECT_EQ(hit.partial_tiles, static_cast<std::int32_t>(asked % 2));
    EXPECT_EQ(hit.partial.empty(), asked % 2 == 0);
    for (std::size_t block = 0; block < hit.blocks.size(); ++block) {
      EXPECT_EQ(hit.blocks[block][0], held.first[block]);
    }
  }
  EXPECT_EQ(index.find(chain(hasher, 2, 5)).tiles, 0);
}

TEST_F(Prefixes, StayWhenNobodyHoldsThem) {
  const auto tiles = chain(hasher, 1, 4);
  insert(tiles);
  EXPECT_EQ(pools[0]->cached_blocks(), 2U);
  EXPECT_EQ(pools[0]->free_blocks(), 6U);
  {
    const PrefixHit hit = index.find(tiles);
    const BlockRef ref = pools[0]->take_kept(hit.blocks[0][0]);
    EXPECT_EQ(pools[0]->cached_blocks(), 1U);
    EXPECT_EQ(pools[0]->owned_blocks(), 1U);
  }
  index.clear();
  EXPECT_EQ(pools[0]->free_blocks(), 8U);
  EXPECT_EQ(pools[1]->free_blocks(), 8U);
  EXPECT_EQ(index.find(tiles).tiles, 0);
}

TEST_F(Prefixes, LeastRecentlyUsedGoesFirstAndNothingHeld) {
  const auto one = chain(hasher, 1, 2);
  const auto two = chain(hasher, 2, 2);
  const auto three = chain(hasher, 3, 2);
  const Held first = insert(one);
  const BlockId second = insert(two).first[0];
  const BlockId third = insert(three).first[0];
  index.touch(std::span(&second, 1));
  EXPECT_TRUE(index.evict());
  EXPECT_EQ(index.find(three).tiles, 0) << third.value;
  EXPECT_EQ(index.find(two).tiles, 2);
  EXPECT_TRUE(index.evict());
  EXPECT_FALSE(index.evict()) << "the first is held";
  EXPECT_EQ(index.find(one).tiles, 2);
}

TEST_F(Prefixes, TheEndOfAPrefixGoesBeforeItsBeginning) {
  const auto tiles = chain(hasher, 1, 6);
  const std::vector<BlockId> blocks = insert(tiles).first;
  index.touch(blocks);
  for (std::int32_t left = 2; left >= 0; --left) {
    EXPECT_TRUE(index.evict());
    EXPECT_EQ(index.find(tiles).tiles, 2 * left);
  }
}

// A second copy of the same tiles is not kept; a longer one replaces a shorter one.
TEST_F(Prefixes, OneCopyIsEnough) {
  const auto tiles = chain(hasher, 1, 4);
  const Held shorter = insert(std::span(tiles).first(3));
  const Held same = insert(std::span(tiles).first(3));
  EXPECT_EQ(index.columns(), 2U);
  const Held longer = insert(tiles);
  EXPECT_EQ(index.columns(), 2U);
  const PrefixHit hit = index.find(tiles);
  EXPECT_EQ(hit.blocks.at(0)[0], shorter.first[0]);
  EXPECT_EQ(hit.blocks.at(1)[0], longer.first[1]);
  EXPECT_FALSE(pools[0]->is_kept(shorter.first[1]));
}

TEST_F(Prefixes, ABlockGrowsTileByTile) {
  const auto tiles = chain(hasher, 1, 2);
  std::vector<BlockRef> zero = *pools[0]->try_take(1);
  std::vector<BlockRef> one = *pools[1]->try_take(1);
  const std::vector<BlockId> column = {zero[0].id(), one[0].id()};
  index.insert(column, std::span(tiles).first(1));
  EXPECT_EQ(index.find(tiles).partial_tiles, 1);
  index.insert(column, tiles);
  EXPECT_EQ(index.find(tiles).blocks.size(), 1U);
  EXPECT_EQ(index.columns(), 1U);
}

// What an index wrote down, as whoever is told of it counts.
struct Told {
  void take(PrefixJournal& journal) {
    for (const PrefixName name : std::exchange(journal.added, {})) {
      ++counts[name];
    }
    for (const PrefixName name : std::exchange(journal.removed, {})) {
      ASSERT_TRUE(counts.contains(name)) << "gone before it came";
      if (--counts[name] == 0) {
        counts.erase(name);
      }
    }
  }
  [[nodiscard]] std::int32_t known(std::span<const TileDigest> tiles) const {
    const auto end = std::find_if(tiles.begin(), tiles.end(), [this](const TileDigest& tile) {
      return !counts.contains(prefix_name(tile));
    });
    return static_cast<std::int32_t>(end - tiles.begin());
  }
  std::map<PrefixName, int> counts;
};

TEST_F(Prefixes, TheJournalBeginsWithWhatIsThere) {
  const auto tiles = chain(hasher, 1, 5);
  const Held held = insert(tiles);
  PrefixJournal journal;
  journal.removed = {1};  // of another time
  index.record(journal);
  EXPECT_TRUE(journal.removed.empty());
  Told told;
  told.take(journal);
  EXPECT_EQ(told.known(tiles), 5);
  EXPECT_EQ(told.counts.size(), 5U);
  insert(std::span(tiles).first(3));  // a second copy is none
  told.take(journal);
  EXPECT_EQ(told.counts.size(), 5U);
}

TEST_F(Prefixes, TilesOfAWindowThatWereNeverThereAreNotNamed) {
  const auto tiles = chain(hasher, 1, 2);
  std::vector<BlockRef> zero = *pools[0]->try_take(1);
  std::vector<BlockRef> one = *pools[1]->try_take(1);
  PrefixJournal journal;
  index.record(journal);
  index.insert(std::vector<BlockId>{zero[0].id(), one[0].id()}, tiles, 1);
  EXPECT_EQ(journal.added, std::vector<PrefixName>{prefix_name(tiles[1])});
  zero.clear();
  one.clear();
  index.clear();
  EXPECT_EQ(journal.removed, journal.added);
}

// Of two that go different ways within a block the newer one may go first: what it had in common
// with the other is still there.
TEST_F(Prefixes, WhatTwoBlocksHaveOutlivesEither) {
  const auto one = chain(hasher, 1, 2);
  auto two = one;
  two[1] = hasher.tile(one[0], std::vector<TokenId>(kTileTokens, 100));
  PrefixJournal journal;
  index.record(journal);
  Told told;
  for (const bool newer_goes : {true, false}) {
    const BlockId first = insert(one).first[0];
    const BlockId second = insert(two).first[0];
    index.touch(std::span(newer_goes ? &first : &second, 1));
    EXPECT_TRUE(index.evict());
    told.take(journal);
    const auto& kept = newer_goes ? one : two;
    EXPECT_EQ(index.find(std::span(kept).first(1)).tiles, 1) << newer_goes;
    EXPECT_EQ(index.find(newer_goes ? two : one).tiles, 1) << newer_goes;
    EXPECT_EQ(told.known(newer_goes ? two : one), 1) << newer_goes;
    EXPECT_EQ(index.find(kept).blocks.size(), 1U);
    index.check_integrity();
    index.clear();
  }
}

// Whatever comes and goes, maps and pools agree, what is found was put there, and who reads the
// journal knows it.
TEST_F(Prefixes, RandomTraffic) {
  std::mt19937 random(5);
  std::vector<Held> held;
  PrefixJournal journal;
  index.record(journal);
  Told told;
  for (int round = 0; round < 3000; ++round) {
    auto tiles = chain(hasher, static_cast<std::uint32_t>(random() % 5), 1 + random() % 6);
    if (tiles.size() % 2 == 0 && random() % 2 == 0) {  // goes its own way within a block
      const std::vector<TokenId> tokens(kTileTokens, static_cast<TokenId>(100 + random() % 3));
      tiles.back() = hasher.tile(tiles[tiles.size() - 2], tokens);
    }
    const auto blocks = static_cast<std::uint32_t>((tiles.size() + 1) / 2);
    while (pools[0]->free_blocks() < blocks && index.evict()) {
    }
    if (pools[0]->free_blocks() >= blocks && random() % 3 != 0) {
      held.push_back(insert(tiles));
      EXPECT_EQ(index.find(tiles).tiles, static_cast<std::int32_t>(tiles.size()));
    } else if (!held.empty()) {
      held.erase(held.begin() + static_cast<std::ptrdiff_t>(random() % held.size()));
    }
    index.check_integrity();
    pools[0]->check_integrity();
    pools[1]->check_integrity();
    told.take(journal);
    for (std::uint32_t name = 0; name < 5; ++name) {
      const auto longest = chain(hasher, name, 6);
      ASSERT_EQ(told.known(longest), index.find(longest).tiles);
    }
  }
  held.clear();
  index.clear();
  told.take(journal);
  EXPECT_TRUE(told.counts.empty());
}

}  // namespace
}  // namespace baton::kv
