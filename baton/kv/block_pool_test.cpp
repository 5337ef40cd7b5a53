#include "baton/kv/block_pool.h"

#include <gtest/gtest.h>

#include <random>
#include <utility>

namespace baton::kv {
namespace {

std::vector<std::uint32_t> ids(const std::vector<BlockRef>& refs) {
  std::vector<std::uint32_t> values;
  for (const BlockRef& ref : refs) {
    values.push_back(ref.id().value);
  }
  return values;
}

TEST(BlockPool, TakesAllOrNothing) {
  BlockPool pool(4);
  auto three = pool.try_take(3);
  ASSERT_TRUE(three.has_value());
  EXPECT_FALSE(pool.try_take(2).has_value());
  EXPECT_EQ(pool.free_blocks(), 1U);
  EXPECT_EQ(pool.owned_blocks(), 3U);
  three->clear();
  EXPECT_EQ(pool.free_blocks(), 4U);
  EXPECT_TRUE(pool.try_take(0)->empty());
  pool.check_integrity();
}

TEST(BlockPool, PrefersARunAndFallsBackToHoles) {
  BlockPool pool(8);
  auto all = pool.try_take(8);
  std::vector<BlockRef>& refs = *all;
  refs[1].reset();
  refs[3].reset();
  refs[5].reset();
  refs[6].reset();  // free: 1, 3, 5, 6
  auto run = pool.try_take(2);
  EXPECT_EQ(ids(*run), (std::vector<std::uint32_t>{5, 6}));
  auto holes = pool.try_take(2);
  EXPECT_EQ(ids(*holes), (std::vector<std::uint32_t>{1, 3}));
  pool.check_integrity();
}

TEST(BlockRef, LastOfSeveralReferencesFrees) {
  std::vector<std::uint32_t> freed;
  BlockPool pool(2, [&](BlockId id) { freed.push_back(id.value); });
  auto taken = pool.try_take(1);
  BlockRef first = std::move((*taken)[0]);
  EXPECT_TRUE((*taken)[0].empty());  // NOLINT(bugprone-use-after-move): what is tested
  BlockRef second = first.share();
  EXPECT_EQ(pool.references(first.id()), 2U);
  first.reset();
  EXPECT_TRUE(freed.empty());
  EXPECT_EQ(pool.free_blocks(), 1U);
  second = BlockRef();
  EXPECT_EQ(freed, (std::vector<std::uint32_t>{0}));
  EXPECT_EQ(pool.free_blocks(), 2U);
  pool.check_integrity();
}

TEST(BlockPool, RandomTrafficKeepsTheCount) {
  BlockPool pool(37);
  std::mt19937 random(7);  // fixed seed
  std::vector<std::vector<BlockRef>> held;
  std::size_t shared = 0;
  for (int round = 0; round < 2000; ++round) {
    if (random() % 3 != 0) {
      if (auto taken = pool.try_take(static_cast<std::uint32_t>(random() % 6))) {
        held.push_back(std::move(*taken));
      }
    } else if (!held.empty()) {
      const std::size_t victim = random() % held.size();
      if (random() % 4 == 0 && !held[victim].empty()) {
        std::vector<BlockRef> copy;
        copy.push_back(held[victim][0].share());
        held.push_back(std::move(copy));
        ++shared;
      } else {
        held.erase(held.begin() + static_cast<std::ptrdiff_t>(victim));
      }
    }
    pool.check_integrity();
  }
  EXPECT_GT(shared, 10U);
  held.clear();
  EXPECT_EQ(pool.free_blocks(), 37U);
}

TEST(BlockPoolDeathTest, EndsLoudlyWhenReferencesAreLeft) {
  EXPECT_DEATH(
      {
        std::optional<std::vector<BlockRef>> leaked;
        BlockPool pool(2);
        leaked = pool.try_take(1);
      },
      "still referenced");
}

}  // namespace
}  // namespace baton::kv
