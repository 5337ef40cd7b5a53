#include "baton/sched/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <unordered_map>

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

// A scheduler with the caller's book of blocks, as the engine keeps it.
class Bench {
 public:
  explicit Bench(const SchedulerConfig& c) : scheduler(c), free_(c.group_blocks[0]) {}

  Status add(std::uint64_t n, const Demand& demand, TimePoint now = {}) {
    if (Status status = scheduler.can_add(demand); !status) {
      return status;
    }
    scheduler.add(key(n), demand, now);
    return {};
  }
  std::vector<std::uint64_t> admit() {
    std::vector<std::uint64_t> names;
    while (const auto next = scheduler.next_waiting()) {
      const std::vector<std::uint32_t> free = {free_};
      const std::vector<std::uint32_t> blocks = {
          scheduler.blocks_at_admission(0, scheduler.demand(*next), 0).count()};
      if (!scheduler.can_admit(free, blocks)) {
        break;
      }
      take(*next, blocks[0]);
      scheduler.admit(*next, 0, blocks);
      names.push_back(next->request.low);
    }
    return names;
  }
  void finish(std::uint64_t n) {
    give_back(key(n));
    scheduler.finish(key(n));
  }
  Batch step(Duration elapsed = milliseconds(1)) {
    grow();
    Batch batch = scheduler.plan();
    scheduler.step_done(batch, elapsed);
    return batch;
  }
  [[nodiscard]] std::uint32_t free_blocks() const { return free_; }

  Scheduler scheduler;
  std::vector<std::uint64_t> preempted;

 private:
  void take(const SequenceKey& of, std::uint32_t blocks) {
    ASSERT_LE(blocks, free_);
    free_ -= blocks;
    held_[of] += blocks;
  }
  void give_back(const SequenceKey& of) {
    free_ += held_[of];
    held_[of] = 0;
  }
  void grow() {
    for (const SequenceKey& of : scheduler.running()) {
      while (scheduler.state(of) == State::kDecoding) {
        const std::uint32_t needed = scheduler.blocks_needed(0, scheduler.computed_tokens(of) + 1);
        if (needed - held_[of] <= free_) {
          take(of, needed - held_[of]);
          break;
        }
        const SequenceKey last = *scheduler.last_running();
        give_back(last);
        scheduler.preempt(last);
        preempted.push_back(last.request.low);
      }
    }
  }

  std::uint32_t free_;
  std::unordered_map<SequenceKey, std::uint32_t> held_;
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

// Only what a sequence holds at first needs room; one block stays free for those that run.
TEST(Admission, TakesWhatIsNeededAtFirst) {
  Bench bench(config(4));
  for (std::uint64_t n = 1; n <= 4; ++n) {
    ASSERT_TRUE(bench.add(n, local(20, 128)));  // 1 block each at first, 4 in the end
  }
  EXPECT_EQ(bench.admit(), (Names{1, 2, 3}));
  EXPECT_EQ(bench.free_blocks(), 1U);
}

// A step of priority is worth kAgeing of waiting: it wins for a while, then age wins.
TEST(Admission, AgeOutweighsPriority) {
  const TimePoint start{};
  for (const bool late : {false, true}) {
    Bench bench(config(1));
    ASSERT_TRUE(bench.add(1, local(1, 32), start));
    EXPECT_EQ(bench.admit(), (Names{1}));
    ASSERT_TRUE(bench.add(2, local(1, 32, 1), start));
    ASSERT_TRUE(bench.add(3, local(1, 32, 0), start + kAgeing + seconds(late ? 1 : -1)));
    bench.finish(1);
    EXPECT_EQ(bench.admit(), (late ? Names{2} : Names{3}));
  }
  Bench bench(config(1));  // the widest priorities do not overflow
  ASSERT_TRUE(bench.add(1, local(1, 32, std::numeric_limits<std::int32_t>::max()), start));
  ASSERT_TRUE(bench.add(2, local(1, 32, std::numeric_limits<std::int32_t>::min()), start));
  EXPECT_EQ(bench.admit(), (Names{2}));
}

// A low priority is reached however many of high priority keep coming.
TEST(Admission, NobodyStarves) {
  Bench bench(config(1));
  TimePoint now{};
  ASSERT_TRUE(bench.add(0, local(1, 32, 2), now));
  std::uint64_t next = 1;
  for (int second = 0; second < 60; ++second) {
    ASSERT_TRUE(bench.add(next++, local(1, 32, 0), now));
    const Names admitted = bench.admit();
    ASSERT_EQ(admitted.size(), 1U);
    if (admitted[0] == 0) {
      EXPECT_GE(second, 19);
      EXPECT_LE(second, 21);
      return;
    }
    bench.finish(admitted[0]);
    now += seconds(1);
  }
  FAIL() << "never admitted";
}

TEST(Preemption, TheLastInOrderGivesBackAndComesBack) {
  Bench bench(config(4));
  ASSERT_TRUE(bench.add(1, local(60, 128)));  // 2 blocks at first, 4 in the end
  ASSERT_TRUE(bench.add(2, local(31, 128)));
  EXPECT_EQ(bench.admit(), (Names{1, 2}));
  bench.step();
  int steps = 0;
  while (bench.preempted.empty()) {
    bench.step();
    ASSERT_LT(++steps, 100);
  }
  EXPECT_EQ(bench.preempted, (Names{2}));
  EXPECT_EQ(bench.scheduler.state(key(2)), State::kWaiting);
  EXPECT_EQ(bench.scheduler.computed_tokens(key(2)), 0);
  const std::int32_t known = bench.scheduler.demand(key(2)).prefill_tokens;
  EXPECT_GT(known, 31);
  EXPECT_EQ(bench.scheduler.next_deadline(), TimePoint::max()) << "it never expires";
  EXPECT_TRUE(bench.scheduler.expired(TimePoint::max()).empty());
  ASSERT_TRUE(bench.add(3, local(1, 32)));
  EXPECT_TRUE(bench.admit().empty()) << "3 does not pass the preempted one";
  bench.finish(1);
  EXPECT_EQ(bench.admit(), (Names{2, 3}));
  const Batch batch = bench.step();
  EXPECT_EQ(batch.items[0].start, 0);
  EXPECT_TRUE(batch.items[0].tokens == known || batch.items[0].tokens % kv::kTileTokens == 0);
}

TEST(Preemption, PrefillingOnesToo) {
  Bench bench(config(4));
  ASSERT_TRUE(bench.add(1, local(31, 96)));
  EXPECT_EQ(bench.admit(), (Names{1}));
  bench.step();
  ASSERT_TRUE(bench.add(2, Demand{Kind::kHandoff, 60, 60, 0}));
  EXPECT_EQ(bench.admit(), (Names{2}));
  ASSERT_EQ(bench.scheduler.last_running(), key(2));
  bench.scheduler.preempt(key(2));
  EXPECT_EQ(bench.scheduler.demand(key(2)).prefill_tokens, 60);
  EXPECT_EQ(bench.scheduler.demand(key(2)).kind, Kind::kHandoff);
}

// What came by handoff and is preempted is computed here: it is no reservation any more.
TEST(Preemption, AnAdoptedSequenceBecomesLocal) {
  Bench bench(config(4));
  ASSERT_TRUE(bench.add(1, reserve(31, 96)));
  EXPECT_EQ(bench.admit(), (Names{1}));
  bench.scheduler.adopt(key(1));
  bench.step();
  bench.scheduler.preempt(key(1));
  EXPECT_EQ(bench.scheduler.demand(key(1)).kind, Kind::kLocal);
  EXPECT_EQ(bench.scheduler.demand(key(1)).prefill_tokens, 33);
  bench.scheduler.admit(key(1), 32);
  const Batch batch = bench.scheduler.plan();
  ASSERT_EQ(batch.items.size(), 1U);
  EXPECT_EQ(batch.items[0].start, 32);
  EXPECT_EQ(batch.items[0].tokens, 1);
  EXPECT_TRUE(batch.items[0].samples);
}

// Many that want all of the pool: all end, in a bounded number of steps.
TEST(Preemption, EverybodyFinishes) {
  Bench bench(config(6));
  for (std::uint64_t n = 0; n < 8; ++n) {
    ASSERT_TRUE(bench.add(n, local(static_cast<std::int32_t>(5 + 20 * n), 192)));
  }
  int left = 8;
  for (int step = 0; step < 5000 && left > 0; ++step) {
    bench.admit();
    bench.step();
    for (std::uint64_t n = 0; n < 8; ++n) {
      if (bench.scheduler.contains(key(n)) && bench.scheduler.computed_tokens(key(n)) == 192) {
        bench.finish(n);
        --left;
      }
    }
  }
  EXPECT_EQ(left, 0);
  EXPECT_FALSE(bench.preempted.empty());
  EXPECT_EQ(bench.free_blocks(), 6U);
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
