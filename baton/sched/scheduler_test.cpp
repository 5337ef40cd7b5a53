#include "baton/sched/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace baton::sched {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

SequenceKey key(std::uint64_t n) { return {RequestId{0, n}, Choice{0}, Epoch{0}}; }

SchedulerConfig config(std::uint32_t blocks = 16) {
  SchedulerConfig c;
  kv::KvGroup group;
  group.layers = {0};
  group.kv_heads = 1;
  group.head_dim = 8;
  c.layout = {{group}, 32};
  c.group_blocks = {blocks};
  c.max_num_seqs = 4;
  c.max_step_tokens = 256;
  c.max_step = milliseconds(40);
  c.max_waiting = 8;
  c.queue_deadline = seconds(10);
  return c;
}

// A scheduler with the caller's book of free blocks, as the engine keeps it.
class Bench {
 public:
  explicit Bench(const SchedulerConfig& c) : scheduler(c), free_(c.group_blocks) {}

  Status add(std::uint64_t n, const Demand& demand, TimePoint now = {}) {
    if (Status status = scheduler.can_add(demand); !status) {
      return status;
    }
    scheduler.add(key(n), demand, now);
    return {};
  }
  std::vector<std::uint64_t> admit() {
    std::vector<std::uint64_t> names;
    for (const SequenceKey& admitted : scheduler.admit(free_)) {
      names.push_back(admitted.request.low);
      free_[0] -= scheduler.blocks_needed(0, scheduler.demand(admitted).room_tokens);
    }
    return names;
  }
  void finish(std::uint64_t n) {
    if (scheduler.state(key(n)) != State::kWaiting) {
      free_[0] += scheduler.blocks_needed(0, scheduler.demand(key(n)).room_tokens);
    }
    scheduler.finish(key(n));
  }
  Batch step(Duration elapsed = milliseconds(1)) {
    Batch batch = scheduler.plan();
    scheduler.step_done(batch, elapsed);
    return batch;
  }
  [[nodiscard]] std::uint32_t free_blocks() const { return free_[0]; }

  Scheduler scheduler;

 private:
  std::vector<std::uint32_t> free_;
};

Demand local(std::int32_t prompt, std::int32_t room, std::int32_t priority = 0) {
  return {Kind::kLocal, prompt, room, priority};
}
Demand reserve(std::int32_t prompt, std::int32_t room) { return {Kind::kReserve, prompt, room, 0}; }

using Names = std::vector<std::uint64_t>;

// A prompt that can never fit (field report B28): refused at once with both numbers.
TEST(Admission, NeverFitting) {
  Bench bench(config(4));  // 128 tokens
  EXPECT_TRUE(bench.scheduler.can_add(local(127, 127)));
  EXPECT_TRUE(bench.scheduler.can_add(local(128, 128)));
  const Status refused = bench.scheduler.can_add(local(64, 129));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kContextTooLong);
  EXPECT_NE(refused.error().message.find("129"), std::string::npos);
  EXPECT_NE(refused.error().message.find("128"), std::string::npos);
  EXPECT_EQ(bench.scheduler.pool_tokens(), 128);
}

TEST(Admission, FirstComeFirstServedWithinPriority) {
  Bench bench(config());
  ASSERT_TRUE(bench.add(1, local(10, 32, 1)));
  ASSERT_TRUE(bench.add(2, local(10, 32, 0)));
  ASSERT_TRUE(bench.add(3, local(10, 32, 0)));
  EXPECT_EQ(bench.admit(), (Names{2, 3, 1}));
}

TEST(Admission, WhoDoesNotFitHoldsBackAllBehind) {
  Bench bench(config(4));
  ASSERT_TRUE(bench.add(1, local(32, 64)));  // 2 blocks
  ASSERT_TRUE(bench.add(2, local(64, 96)));  // 3 blocks
  ASSERT_TRUE(bench.add(3, local(1, 32)));   // 1 block
  EXPECT_EQ(bench.admit(), (Names{1}));
  bench.finish(1);
  EXPECT_EQ(bench.admit(), (Names{2, 3}));
  EXPECT_EQ(bench.free_blocks(), 0U);
}

TEST(Admission, SeatsAreBounded) {
  Bench bench(config());
  for (std::uint64_t n = 0; n < 6; ++n) {
    ASSERT_TRUE(bench.add(n, n % 2 == 0 ? local(1, 8) : reserve(1, 8)));
  }
  EXPECT_EQ(bench.admit(), (Names{0, 1, 2, 3}));
  bench.finish(1);
  EXPECT_EQ(bench.admit(), (Names{4}));
}

TEST(Admission, TheQueueIsBounded) {
  Bench bench(config());
  for (std::uint64_t n = 0; n < 8; ++n) {
    ASSERT_TRUE(bench.add(n, local(1, 8)));
  }
  const Status refused = bench.add(9, local(1, 8));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kOverloaded);
  EXPECT_GT(refused.error().retry_after_ms, 0);
}

TEST(Reservations, HoldAtMostHalfOfThePool) {
  Bench bench(config(8));
  ASSERT_TRUE(bench.add(1, reserve(32, 64)));  // 2 of 8
  ASSERT_TRUE(bench.add(2, reserve(32, 64)));  // 4 of 8
  ASSERT_TRUE(bench.add(3, reserve(32, 64)));  // would be 6: waits
  ASSERT_TRUE(bench.add(4, reserve(1, 8)));    // behind 3, though it would fit
  ASSERT_TRUE(bench.add(5, local(32, 64)));    // no reservation: passes
  EXPECT_EQ(bench.admit(), (Names{1, 2, 5}));
  bench.scheduler.adopt(key(1));  // its KV came: no longer counts
  EXPECT_EQ(bench.admit(), (Names{3}));
  EXPECT_EQ(bench.scheduler.counts().reserved, 2U);
}

TEST(Reservations, OneAloneMayHoldMoreThanHalf) {
  Bench bench(config(8));
  ASSERT_TRUE(bench.add(1, reserve(32 * 7, 32 * 8)));
  EXPECT_EQ(bench.admit(), (Names{1}));
}

TEST(Deadline, WaitingSequencesExpire) {
  Bench bench(config(1));
  const TimePoint start{};
  ASSERT_TRUE(bench.add(1, local(1, 32), start));
  ASSERT_TRUE(bench.add(2, local(1, 32), start + seconds(1)));
  EXPECT_EQ(bench.admit(), (Names{1}));
  EXPECT_EQ(bench.scheduler.next_deadline(), start + seconds(11));
  EXPECT_TRUE(bench.scheduler.expired(start + seconds(10)).empty());
  EXPECT_EQ(bench.scheduler.expired(start + seconds(11)), std::vector<SequenceKey>{key(2)});
  bench.finish(2);
  EXPECT_EQ(bench.scheduler.next_deadline(), TimePoint::max());
}

TEST(BatchChoice, DecodesFirstThenChunksOnTileBorders) {
  Bench bench(config());
  ASSERT_TRUE(bench.add(1, local(20, 40)));
  EXPECT_EQ(bench.admit(), (Names{1}));
  Batch first = bench.step();
  ASSERT_EQ(first.items.size(), 1U);
  EXPECT_EQ(first.items[0].tokens, 20);
  EXPECT_TRUE(first.items[0].samples);

  ASSERT_TRUE(bench.add(2, local(100, 120)));
  EXPECT_EQ(bench.admit(), (Names{2}));
  std::int32_t position = 0;
  while (position < 100) {
    const Batch batch = bench.step(milliseconds(60));
    ASSERT_EQ(batch.items.size(), 2U);
    EXPECT_TRUE(batch.items[0].decode);
    EXPECT_EQ(batch.items[0].key, key(1));
    const BatchItem& chunk = batch.items[1];
    EXPECT_EQ(chunk.start, position);
    position += chunk.tokens;
    EXPECT_TRUE(position % kv::kTileTokens == 0 || position == 100) << position;
    EXPECT_EQ(chunk.samples, position == 100);
  }
  EXPECT_EQ(bench.scheduler.state(key(2)), State::kDecoding);
  const Batch last = bench.step();
  EXPECT_EQ(last.decode_rows, 2);
  EXPECT_EQ(last.items[1].start, 100);  // the first new token's row is at position L
}

TEST(BatchChoice, TheOldestPromptGetsATileHoweverSlowTheStep) {
  Bench bench(config());
  ASSERT_TRUE(bench.add(1, local(200, 210)));
  ASSERT_TRUE(bench.add(2, local(200, 210)));
  EXPECT_EQ(bench.admit(), (Names{1, 2}));
  bench.step(seconds(5));  // dreadful measurement
  for (int i = 0; i < 3; ++i) {
    const Batch batch = bench.step(seconds(5));
    ASSERT_EQ(batch.items.size(), 1U);
    EXPECT_EQ(batch.items[0].key, key(1));
    EXPECT_EQ(batch.items[0].tokens, kv::kTileTokens);
  }
}

TEST(BatchChoice, AFastMachineTakesSeveralPromptsUpToTheRowsOfAStep) {
  Bench bench(config(64));
  for (std::uint64_t n = 1; n <= 3; ++n) {
    ASSERT_TRUE(bench.add(n, local(200, 210)));
  }
  EXPECT_EQ(bench.admit(), (Names{1, 2, 3}));
  bench.step(std::chrono::microseconds(10));
  const Batch batch = bench.step(std::chrono::microseconds(10));
  EXPECT_GE(batch.items.size(), 2U);
  EXPECT_LE(batch.prefill_rows + batch.decode_rows, 256);
}

// Whatever the times measured, every row is computed once and in order.
TEST(BatchChoice, EveryRowOnceInOrder) {
  for (const int slowness : {1, 7, 100, 4000}) {
    Bench bench(config(64));
    for (std::uint64_t n = 1; n <= 4; ++n) {
      ASSERT_TRUE(bench.add(n, local(static_cast<std::int32_t>(70 * n + 1), 500)));
    }
    bench.admit();
    std::vector<std::int32_t> computed(5, 0);
    for (int step = 0; step < 60; ++step) {
      const Batch batch = bench.step(std::chrono::microseconds(slowness * (step % 5) * 100));
      for (const BatchItem& item : batch.items) {
        std::int32_t& done = computed[item.key.request.low];
        EXPECT_EQ(item.start, done);
        done += item.tokens;
      }
    }
    for (std::size_t n = 1; n <= 4; ++n) {
      EXPECT_GT(computed[n], static_cast<std::int32_t>(70 * n + 1));
    }
  }
}

TEST(States, HandoffStopsAfterPrefill) {
  Bench bench(config());
  ASSERT_TRUE(bench.add(1, Demand{Kind::kHandoff, 40, 40, 0}));
  bench.admit();
  bench.step();
  EXPECT_EQ(bench.scheduler.state(key(1)), State::kHandingOff);
  EXPECT_FALSE(bench.scheduler.has_work());
  EXPECT_TRUE(bench.scheduler.plan().items.empty());
  bench.finish(1);
  EXPECT_FALSE(bench.scheduler.contains(key(1)));
}

TEST(States, FinishInEveryState) {
  Bench bench(config(64));
  ASSERT_TRUE(bench.add(1, local(1, 8)));
  ASSERT_TRUE(bench.add(2, Demand{Kind::kHandoff, 1, 1, 0}));
  bench.admit();
  bench.step();
  ASSERT_TRUE(bench.add(3, local(200, 250)));
  ASSERT_TRUE(bench.add(4, reserve(1, 8)));
  bench.admit();
  ASSERT_TRUE(bench.add(5, local(1, 8)));
  EXPECT_EQ(bench.scheduler.state(key(1)), State::kDecoding);
  EXPECT_EQ(bench.scheduler.state(key(2)), State::kHandingOff);
  EXPECT_EQ(bench.scheduler.state(key(3)), State::kPrefilling);
  EXPECT_EQ(bench.scheduler.state(key(4)), State::kReserved);
  EXPECT_EQ(bench.scheduler.state(key(5)), State::kWaiting);
  for (std::uint64_t n = 1; n <= 5; ++n) {
    bench.finish(n);
  }
  EXPECT_EQ(bench.free_blocks(), 64U);
  const Counts counts = bench.scheduler.counts();
  EXPECT_EQ(
      counts.waiting + counts.prefilling + counts.handing_off + counts.reserved + counts.decoding,
      0U);
}

}  // namespace
}  // namespace baton::sched
