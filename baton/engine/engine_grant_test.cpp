// Prefills for other nodes on a full pool: what a decode node has room for does not wait for what
// none has room for (decision 013).
#include "baton/engine/engine_harness.h"

#include <gtest/gtest.h>

namespace baton::engine {
namespace {

using message::FinishReason;

testing::FakeBackendOptions pool_of_8(std::int32_t max_step_tokens = 256) {
  testing::FakeBackendOptions options;
  options.groups = {{2, 1, 8, 8}};
  options.block_tokens = 32;
  options.max_step_tokens = max_step_tokens;
  options.end_tokens = {};
  return options;
}

// Claims nothing, as long as no grants are there.
struct Ungranted : EngineHarness {
  explicit Ungranted(std::int32_t max_step_tokens = 256)
      : EngineHarness(pool_of_8(max_step_tokens)) {
    claims = false;
  }
  void grant(const SequenceKey& key) {
    claims = true;
    post(message::Granted{key});
  }
  void release(const SequenceKey& key) {
    post(message::Release{prefilled[key].blocks.lease});
    run_until_idle();
  }
};

const message::Submit kFirst = submit_of(1, 150, 10);  // 5 of 8 blocks
const message::Submit kSecond = submit_of(2, 150, 10);

TEST(Granted, EndsTheLastThatIsDoneAndThatNobodyHasRoomFor) {
  Ungranted node;
  node.post(message::PrefillForHandoff{kFirst});
  node.run_until_idle();
  node.post(message::PrefillForHandoff{kSecond});
  node.run_until_idle();
  EXPECT_EQ(node.engine.stats().waiting, 1U) << "without a grant it waits";
  EXPECT_FALSE(node.ended.contains(kFirst.key));

  node.grant(kSecond.key);
  node.run_until_idle();
  ASSERT_TRUE(node.ended.contains(kFirst.key));
  EXPECT_EQ(node.ended[kFirst.key].reason, FinishReason::kError);
  EXPECT_EQ(node.ended[kFirst.key].error.code, ErrorCode::kOverloaded) << "ask again";
  EXPECT_EQ(node.ids(kSecond.key)[0], node.reference(kSecond)[0]);
  node.release(kSecond.key);

  message::Submit again = kFirst;
  again.key.epoch.value = 1;
  again.emitted = node.ids(kFirst.key);
  node.post(message::PrefillForHandoff{again});
  node.run_until_idle();
  EXPECT_EQ(node.ids(again.key)[0], node.reference(kFirst)[1]);
  node.release(again.key);
}

TEST(Granted, SendsTheLastThatIsUnderWayBackToTheQueue) {
  Ungranted node(64);
  node.post(message::PrefillForHandoff{kFirst});
  node.engine.run_once();
  node.take_events();
  node.post(message::PrefillForHandoff{kSecond});
  node.grant(kSecond.key);
  node.run_until_idle();
  EXPECT_EQ(node.engine.stats().preemptions, 1U);
  EXPECT_FALSE(node.ended.contains(kFirst.key));
  EXPECT_EQ(node.ids(kSecond.key)[0], node.reference(kSecond)[0]);
  node.release(kSecond.key);
  EXPECT_EQ(node.ids(kFirst.key)[0], node.reference(kFirst)[0]);
  node.release(kFirst.key);
}

TEST(Granted, TakesNothingThatIsBeingRead) {
  Ungranted node;
  node.claims = true;  // granted before it had blocks
  node.post(message::PrefillForHandoff{kFirst});
  node.run_until_idle();
  node.post(message::PrefillForHandoff{kSecond});
  node.grant(kSecond.key);
  node.run_until_idle();
  EXPECT_EQ(node.engine.stats().waiting, 1U);
  EXPECT_FALSE(node.ended.contains(kFirst.key));
  node.release(kFirst.key);
  EXPECT_EQ(node.ids(kSecond.key)[0], node.reference(kSecond)[0]);
  node.release(kSecond.key);
}

// Another one, not granted either, is first in the queue: it is passed.
TEST(Granted, PassesThoseThatAreNot) {
  Ungranted node;
  const message::Submit third = submit_of(3, 150, 10);
  for (const message::Submit& submit : {kFirst, kSecond, third}) {
    node.post(message::PrefillForHandoff{submit});
    node.run_until_idle();
  }
  node.grant(third.key);
  node.run_until_idle();
  EXPECT_TRUE(node.ended.contains(kFirst.key));
  EXPECT_EQ(node.ids(third.key)[0], node.reference(third)[0]);
  EXPECT_TRUE(node.ids(kSecond.key).empty());
  node.release(third.key);
  EXPECT_EQ(node.ids(kSecond.key)[0], node.reference(kSecond)[0]);
  node.release(kSecond.key);
}

// While the granted one cannot have enough, nobody else is let in to be sent away again. (The
// simulation's seed 114: each turn of the loop did, without an end.)
TEST(Granted, LetsNobodyInOnlyToSendThemAway) {
  Ungranted node(64);
  node.claims = true;
  node.post(message::PrefillForHandoff{kFirst});
  node.run_until_idle();
  node.claims = false;
  const message::Submit small = submit_of(7, 90, 10);
  for (const message::Submit& submit : {small, submit_of(8, 150, 10), kSecond}) {
    node.post(message::PrefillForHandoff{submit});
  }
  node.post(message::Granted{kSecond.key});
  for (int turn = 0; turn < 20; ++turn) {
    node.engine.run_once();
    node.take_events();
  }
  EXPECT_LE(node.engine.stats().preemptions, 1U);
  node.claims = true;
  node.release(kFirst.key);
  EXPECT_EQ(node.ids(kSecond.key)[0], node.reference(kSecond)[0]);
  node.release(kSecond.key);
  EXPECT_EQ(node.ids(small.key)[0], node.reference(small)[0]);
  node.release(small.key);
  node.release(key_of(8));
}

// What runs here for itself keeps its turn: nobody takes from it, and with nothing to take from
// others it is not passed.
TEST(Granted, LeavesLocalOnesTheirTurn) {
  Ungranted node;
  const message::Submit running = submit_of(4, 100, 20);
  const message::Submit waiting = submit_of(5, 200, 20);
  node.post(message::RunLocally{running});
  node.engine.run_once();
  node.post(message::RunLocally{waiting});
  node.engine.run_once();
  node.post(message::PrefillForHandoff{submit_of(6, 30, 10)});
  node.grant(key_of(6));
  node.engine.run_once();
  EXPECT_EQ(node.engine.stats().waiting, 2U) << "it would fit, but came later";
  node.run_until_idle();
  EXPECT_EQ(node.engine.stats().preemptions, 0U);
  EXPECT_EQ(node.ids(running.key), node.reference(running));
  EXPECT_EQ(node.ids(waiting.key), node.reference(waiting));
  node.release(key_of(6));
  node.post(message::Granted{key_of(99)});  // unknown
  node.run_until_idle();
}

}  // namespace
}  // namespace baton::engine
