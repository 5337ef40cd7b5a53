// The loop on its own thread: sleep and wake, stop, aborts that stop a running step.
#include "baton/engine/engine_harness.h"

#include <gtest/gtest.h>

#include <latch>
#include <thread>

namespace baton::engine {
namespace {

constexpr Duration kLongEnough = std::chrono::seconds(20);

struct RunningEngine {
  RunningEngine() : events(10'000), backend(options()), engine(backend, clock, {}, events) {}
  ~RunningEngine() { stop(); }

  static testing::FakeBackendOptions options() {
    testing::FakeBackendOptions options;
    options.end_tokens = {};
    return options;
  }
  void start() {
    thread = std::thread([this] { engine.run(); });
  }
  void stop() {
    engine.stop();
    if (thread.joinable()) {
      thread.join();
    }
  }
  // Waits for the end of one sequence; its tokens.
  std::vector<TokenId> tokens_until_end(bool* aborted = nullptr) {
    std::vector<TokenId> ids;
    while (true) {
      const auto arrived = events.wait_and_drain(kLongEnough);
      if (arrived.empty()) {
        ADD_FAILURE() << "no event";
        return ids;
      }
      for (const message::EngineEvent& event : arrived) {
        if (const auto* step = std::get_if<message::StepTokens>(&event)) {
          for (const message::Token& token : step->tokens) {
            ids.push_back(token.token);
            if (token.finish != message::FinishReason::kNone) {
              return ids;
            }
          }
        } else if (std::holds_alternative<message::Finished>(event)) {
          if (aborted != nullptr) {
            *aborted = true;
          }
          return ids;
        }
      }
    }
  }

  SystemClock clock;
  EventQueue events;
  testing::FakeBackend backend;
  BatchScheduler engine;
  std::thread thread;
};

TEST(EngineThread, SleepsWakesAndStops) {
  RunningEngine node;
  node.start();
  for (std::uint64_t n = 0; n < 3; ++n) {
    const message::Submit submit = submit_of(n, 40, 12, 0.5F);
    ASSERT_TRUE(node.engine.post(message::RunLocally{submit}));
    EXPECT_EQ(node.tokens_until_end(),
              testing::FakeBackend::reference(RunningEngine::options(), submit.prompt,
                                              submit.sampling, Choice{0}, 12));
  }
  EXPECT_GT(node.engine.stats().last_turn_ns.load(), 0);
  node.stop();
  EXPECT_FALSE(node.engine.post(message::RunLocally{submit_of(9, 40, 12)}));
  node.engine.check_integrity();
  EXPECT_TRUE(node.engine.idle());
}

// An abort that leaves nobody in the running step stops it between layers; its rows do not count.
TEST(EngineThread, AnAbortStopsTheRunningStep) {
  RunningEngine node;
  std::latch in_step(1);
  std::latch aborted(1);
  node.backend.set_on_launch([&, first = true](const backend::StepPlan&) mutable {
    if (std::exchange(first, false)) {
      in_step.count_down();
      aborted.wait();
    }
  });
  node.start();
  ASSERT_TRUE(node.engine.post(message::RunLocally{submit_of(1, 40, 50)}));
  in_step.wait();
  ASSERT_TRUE(node.engine.post(message::Abort{key_of(1), {}}));
  aborted.count_down();
  bool was_aborted = false;
  EXPECT_TRUE(node.tokens_until_end(&was_aborted).empty());
  EXPECT_TRUE(was_aborted);
  node.stop();
  EXPECT_EQ(node.backend.rows_computed(), 0U);
  EXPECT_EQ(node.engine.stats().prompt_tokens_computed, 0U);
  node.engine.check_integrity();
}

TEST(EngineThread, StopEndsWhatIsAlive) {
  RunningEngine node;
  std::latch in_step(1);
  node.backend.set_on_launch([&, first = true](const backend::StepPlan&) mutable {
    if (std::exchange(first, false)) {
      in_step.count_down();
    }
  });
  node.start();
  ASSERT_TRUE(node.engine.post(message::RunLocally{submit_of(1, 40, 1900)}));
  in_step.wait();
  node.stop();
  bool was_aborted = false;
  node.tokens_until_end(&was_aborted);
  EXPECT_TRUE(was_aborted);
  EXPECT_TRUE(node.engine.idle());
  EXPECT_EQ(node.engine.stats().ended_as(EndReason::kAborted), 1U);
}

}  // namespace
}  // namespace baton::engine
