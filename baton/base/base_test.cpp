// Compute thread pool, floating-point mode, queues, failpoints, results.
#include "baton/base/bounded_queue.h"
#include "baton/base/check.h"
#include "baton/base/cpu_features.h"
#include "baton/base/failpoints.h"
#include "baton/base/float_mode.h"
#include "baton/base/result.h"
#include "baton/base/thread_pool.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

namespace baton {
namespace {

class ThreadPoolTest : public ::testing::TestWithParam<int> {
 private:
  ScopedFloatMode mode_;
};

TEST_P(ThreadPoolTest, EveryIndexOnceOnAnyThread) {
  ThreadPool pool(GetParam());
  EXPECT_EQ(pool.threads(), GetParam());
  for (int round = 0; round < 300; ++round) {
    for (const std::int64_t count : {0, 1, 2, 17, 400}) {
      for (const std::int64_t grain : {1, 3, 1000}) {
        std::vector<std::atomic<int>> seen(static_cast<std::size_t>(count));
        pool.parallel_for(count, grain, [&](std::int64_t first, std::int64_t last, int thread) {
          ASSERT_LT(first, last);
          ASSERT_LE(last - first, grain);
          ASSERT_GE(thread, 0);
          ASSERT_LT(thread, pool.threads());
          for (std::int64_t i = first; i < last; ++i) {
            seen[static_cast<std::size_t>(i)].fetch_add(1);
          }
        });
        for (const auto& one : seen) {
          ASSERT_EQ(one.load(), 1);
        }
      }
    }
  }
}

TEST_P(ThreadPoolTest, ResultsOfWorkersAreVisibleAfterReturn) {
  ThreadPool pool(GetParam());
  std::vector<std::int64_t> values(1000);
  std::int64_t expected = 0;
  for (int round = 0; round < 2000; ++round) {
    pool.parallel_for_even(1000, [&](std::int64_t first, std::int64_t last, int /*thread*/) {
      for (std::int64_t i = first; i < last; ++i) {
        values[static_cast<std::size_t>(i)] += i;  // plain memory: a race would show under tsan
      }
    });
    expected += 999 * 1000 / 2;
    ASSERT_EQ(std::accumulate(values.begin(), values.end(), std::int64_t{0}), expected);
  }
}

// Each chunk waits for the others, so the pool must really run them side by side.
TEST_P(ThreadPoolTest, ChunksRunAtTheSameTimeInFloatMode) {
  ThreadPool pool(GetParam());
  std::atomic<int> arrived{0};
  std::atomic<int> in_mode{0};
  std::vector<std::atomic<int>> used(static_cast<std::size_t>(GetParam()));
  pool.parallel_for(GetParam(), 1, [&](std::int64_t, std::int64_t, int thread) {
    in_mode.fetch_add(float_mode_is_set() ? 1 : 0);
    used[static_cast<std::size_t>(thread)].fetch_add(1);
    arrived.fetch_add(1);
    while (arrived.load() < GetParam()) {
      std::this_thread::yield();
    }
  });
  EXPECT_EQ(in_mode.load(), GetParam());
  for (const auto& one : used) {
    EXPECT_EQ(one.load(), 1);
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, ThreadPoolTest, ::testing::Values(1, 2, 3, 8));

TEST(ThreadPool, StartsAndStopsIdle) {
  for (int round = 0; round < 50; ++round) {
    const ThreadPool pool(4);
  }
}

TEST(ThreadPoolDeathTest, WantsTheFloatModeAndAThread) {
  ASSERT_FALSE(float_mode_is_set());
  ThreadPool pool(1);
  EXPECT_DEATH(pool.parallel_for(1, 1, [](std::int64_t, std::int64_t, int) {}), "mxcsr");
  EXPECT_DEATH(ThreadPool(0), "0 threads");
}

TEST(FloatMode, FlushesAndRoundsToEven) {
  volatile float tiny = std::numeric_limits<float>::min();
  volatile float half = 0.5F;
  volatile float subnormal = std::numeric_limits<float>::denorm_min();
  volatile float huge = 0x1p127F;
  EXPECT_NE(tiny * half, 0.0F);
  {
    const ScopedFloatMode mode;
    EXPECT_TRUE(float_mode_is_set());
    EXPECT_EQ(tiny * half, 0.0F);       // results are flushed
    EXPECT_EQ(subnormal * huge, 0.0F);  // inputs read as zero
    volatile float one = 1.0F;
    volatile float half_step = 0x1p-24F;
    EXPECT_EQ(one + half_step, 1.0F);  // tie to even, down
    volatile float odd = 1.0F + 0x1p-23F;
    EXPECT_EQ(odd + half_step, 1.0F + 0x1p-22F);  // tie to even, up
  }
  EXPECT_FALSE(float_mode_is_set());
  EXPECT_NE(tiny * half, 0.0F);
}

TEST(CpuFeatures, FlagsAgreeWithWhatIsMissing) {
  const CpuFeatures& cpu = cpu_features();
  EXPECT_EQ(cpu.avx2, cpu.missing_for_avx2.empty());
  EXPECT_EQ(cpu.avx512, cpu.missing_for_avx512.empty());
  EXPECT_TRUE(cpu.avx2 || !cpu.avx512);
  EXPECT_GE(available_cpus(), 1);
}

TEST(BoundedQueue, RefusesWhenFullAndKeepsOrder) {
  BoundedQueue<std::unique_ptr<int>> queue(2);
  int wakes = 0;
  queue.set_on_ready([&] { ++wakes; });
  EXPECT_TRUE(queue.try_push(std::make_unique<int>(1)));
  EXPECT_TRUE(queue.try_push(std::make_unique<int>(2)));
  auto third = std::make_unique<int>(3);
  EXPECT_FALSE(queue.try_push(std::move(third)));
  ASSERT_NE(third, nullptr);  // NOLINT(bugprone-use-after-move): untouched is the contract
  EXPECT_TRUE(queue.push_unbounded(std::move(third)));
  EXPECT_EQ(queue.depth(), 3U);
  EXPECT_EQ(wakes, 1);  // only from empty to non-empty
  const auto taken = queue.drain();
  ASSERT_EQ(taken.size(), 3U);
  EXPECT_EQ(*taken[2], 3);
  EXPECT_TRUE(queue.try_push(std::make_unique<int>(4)));
  EXPECT_EQ(wakes, 2);
  queue.close();
  EXPECT_FALSE(queue.push_unbounded(std::make_unique<int>(5)));
  EXPECT_EQ(queue.drain().size(), 1U);  // what was in before stays
}

TEST(BoundedQueue, ManyProducersLoseNothing) {
  constexpr int kProducers = 4;
  constexpr int kEach = 2000;
  BoundedQueue<int> queue(64);
  std::vector<std::jthread> producers;
  for (int p = 0; p < kProducers; ++p) {
    producers.emplace_back([&queue, p] {
      for (int i = 0; i < kEach; ++i) {
        while (!queue.try_push(p * kEach + i)) {
          std::this_thread::yield();
        }
      }
    });
  }
  std::vector<int> last(kProducers, -1);
  for (int received = 0; received < kProducers * kEach;) {
    for (const int value : queue.wait_and_drain(std::chrono::seconds(10))) {
      const auto producer = static_cast<std::size_t>(value / kEach);
      ASSERT_EQ(value % kEach, last[producer] + 1);
      last[producer] = value % kEach;
      ++received;
    }
  }
}

TEST(BoundedQueue, CloseWakesTheConsumer) {
  BoundedQueue<int> queue(1);
  std::jthread closer([&queue] { queue.close(); });
  EXPECT_TRUE(queue.wait_and_drain(std::chrono::hours(1)).empty());
  EXPECT_TRUE(queue.closed());
}

#ifdef BATON_FAILPOINTS
TEST(Failpoints, FireOnTheHitThatWasAsked) {
  EXPECT_FALSE(BATON_FAILPOINT("base_test.second"));
  ASSERT_TRUE(failpoints::arm("base_test.second@2,base_test.always=on,base_test.error=error,"
                              "base_test.sleep=sleep:1")
                  .has_value());
  EXPECT_TRUE(BATON_FAILPOINT("base_test.error"));
  EXPECT_FALSE(BATON_FAILPOINT("base_test.sleep")) << "late is not wrong";
  EXPECT_FALSE(BATON_FAILPOINT("base_test.second"));
  EXPECT_TRUE(BATON_FAILPOINT("base_test.second"));
  EXPECT_FALSE(BATON_FAILPOINT("base_test.second"));
  EXPECT_TRUE(BATON_FAILPOINT("base_test.always"));
  EXPECT_TRUE(BATON_FAILPOINT("base_test.always"));
  EXPECT_FALSE(BATON_FAILPOINT("base_test.other"));
}

TEST(FailpointsDeathTest, Kill) {
  ASSERT_TRUE(failpoints::arm("base_test.kill=kill").has_value());
  EXPECT_EXIT(static_cast<void>(failpoints::hit("base_test.kill")),
              ::testing::KilledBySignal(SIGKILL), "");
}
#endif

TEST(Failpoints, BadSyntaxIsRefused) {
  EXPECT_TRUE(failpoints::arm("").has_value());
  for (const char* bad : {"=on", "a=later", "a@0", "a@x", "a=sleep:", "a=sleep:-1", ",", "a,,b"}) {
    const Status armed = failpoints::arm(bad);
    ASSERT_FALSE(armed.has_value()) << bad;
    EXPECT_EQ(armed.error().code, ErrorCode::kInvalidArgument);
  }
}

Result<int> half_of(int value) {
  if (value % 2 != 0) {
    return fail(ErrorCode::kInvalidArgument, "odd", "value");
  }
  return value / 2;
}
Result<std::string> quarter_of(int value) {
  BATON_TRY(const int half, half_of(value));
  BATON_TRY(const int quarter, half_of(half));
  return std::to_string(quarter);
}
Status quarter_exists(int value) {
  BATON_TRY_VOID(quarter_of(value));
  return {};
}

TEST(Result, TryReturnsTheFirstError) {
  EXPECT_EQ(quarter_of(12), "3");
  const auto failed = quarter_of(6);
  ASSERT_FALSE(failed.has_value());
  EXPECT_EQ(failed.error().message, "odd");
  EXPECT_EQ(failed.error().param, "value");
  EXPECT_TRUE(quarter_exists(8).has_value());
  EXPECT_EQ(quarter_exists(7).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(error_code_name(ErrorCode::kInvalidArgument), "invalid_argument");
}

TEST(CpuMask, IsHex) {
  EXPECT_EQ(parse_cpu_mask("f0").value(), (std::vector<int>{4, 5, 6, 7}));
  EXPECT_EQ(parse_cpu_mask("0x3").value(), (std::vector<int>{0, 1}));
  EXPECT_EQ(parse_cpu_mask("80000000000000001").value(), (std::vector<int>{0, 67}));
  for (const char* bad : {"", "0", "0x", "g1", "-1", "1,2", "0x0000"}) {
    EXPECT_EQ(parse_cpu_mask(bad).error().code, ErrorCode::kInvalidArgument) << bad;
  }
}

TEST(CpuMask, HoldsForThreadsMadeLater) {
  std::thread([] {  // a thread of its own: the mask stays on it
    ASSERT_TRUE(use_cpu_mask(""));
    cpu_set_t before;
    ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
    std::size_t first = 0;
    while (!CPU_ISSET(first, &before)) {
      ++first;
    }
    std::string mask(first / 4 + 1, '0');
    mask[0] = static_cast<char>('0' + (1 << (first % 4)));
    ASSERT_TRUE(use_cpu_mask(mask));
    EXPECT_EQ(available_cpus(), 1);
    std::thread([] { EXPECT_EQ(available_cpus(), 1); }).join();
  })
      .join();
}

TEST(CpuMask, NamesAbsentCpus) {
  const std::string far(CPU_SETSIZE / 4 + 1, '8');  // every fourth CPU, and one past all
  const Status refused = use_cpu_mask(far);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(refused.error().message.find(std::to_string(CPU_SETSIZE + 3)), std::string::npos);
}

TEST(CheckDeathTest, PrintsTheCondition) {
  const int value = 3;
  BATON_CHECK(value == 3, "never seen");
  EXPECT_DEATH(BATON_CHECK(value == 4, "value {}", value), "value == 4.*value 3");
  const auto before = bug_count();
  BATON_BUG("counted {}", 1);
  EXPECT_EQ(bug_count(), before + 1);
}

}  // namespace
}  // namespace baton
