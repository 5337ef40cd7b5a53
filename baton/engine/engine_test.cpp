// One node: identity whatever the batch, the door, ends, aborts in every state.
#include "baton/engine/engine_harness.h"

#include <gtest/gtest.h>

namespace baton::engine {
namespace {

using message::FinishReason;
using testing::FakeBackendOptions;

FakeBackendOptions roomy() {
  FakeBackendOptions options;
  options.groups = {{2, 2, 8, 256}};
  options.end_tokens = {};
  return options;
}

TEST(Identity, AloneEqualsTheColdRun) {
  for (const std::int32_t prompt : {1, 31, 32, 33, 100, 500}) {
    EngineHarness node(roomy());
    const message::Submit submit = submit_of(1, prompt, 20);
    node.post(message::RunLocally{submit});
    node.run_until_idle();
    EXPECT_EQ(node.ids(submit.key), node.reference(submit)) << prompt;
    EXPECT_EQ(node.tokens[submit.key].back().finish, FinishReason::kLength);
    EXPECT_EQ(node.engine.stats().prompt_tokens_computed, static_cast<std::uint64_t>(prompt));
    EXPECT_EQ(node.engine.stats().tokens_generated, 20U);
  }
}

// Batch, chunk sizes (by the step's time budget and the machine's speed), block size, two groups:
// no token changes. Seeded and greedy.
TEST(Identity, WhateverTheBatchTheChunksAndTheBlocks) {
  for (const int step_ms : {1, 40}) {
    for (const int row_us : {1, 400}) {
      for (const std::int32_t block_tokens : {32, 128}) {
        FakeBackendOptions options = roomy();
        options.groups = {{1, 2, 8, 128}, {2, 1, 4, 128}};
        options.block_tokens = block_tokens;
        EngineConfig config;
        config.max_step_ms = step_ms;
        config.max_num_seqs = 5;
        EngineHarness node(options, config);
        node.backend.set_cost([&](const backend::StepPlan& plan) {
          std::size_t rows = 0;
          for (const auto& sequence : plan.sequences) {
            rows += sequence.tokens.size();
          }
          return Duration(std::chrono::microseconds(rows * static_cast<std::size_t>(row_us)));
        });
        std::vector<message::Submit> submits;
        for (std::uint64_t n = 0; n < 8; ++n) {
          submits.push_back(
              submit_of(n, static_cast<std::int32_t>(1 + n * 33), 12, n % 2 == 0 ? 0.0F : 0.9F));
          node.post(message::RunLocally{submits.back()});
          if (n % 3 == 0) {
            node.engine.run_once();  // joins a batch that is under way
          }
        }
        node.run_until_idle();
        for (const message::Submit& submit : submits) {
          EXPECT_EQ(node.ids(submit.key), node.reference(submit));
        }
      }
    }
  }
}

// A seed is private to its request (field report B21).
TEST(Identity, ASeedIsPrivateToItsRequest) {
  const message::Submit a = submit_of(42, 40, 24, 0.9F);
  std::vector<TokenId> alone;
  for (int round = 0; round < 20; ++round) {
    EngineHarness node(roomy());
    const auto neighbour = [&](std::uint64_t n) {
      message::Submit other = submit_of(n, 20, 24, 1.0F);
      other.prompt = prompt_of(0, 20);
      other.sampling.seed = static_cast<std::uint64_t>(round) * 10 + n;
      return other;
    };
    if (round > 0) {
      node.post(message::RunLocally{neighbour(1)});
      node.engine.run_once();
    }
    node.post(message::RunLocally{a});
    if (round > 0) {
      node.post(message::RunLocally{neighbour(2)});
      node.engine.run_once();
      node.engine.run_once();
      node.post(message::RunLocally{neighbour(3)});
    }
    node.run_until_idle();
    if (round == 0) {
      alone = node.ids(a.key);
      continue;
    }
    EXPECT_EQ(node.ids(a.key), alone);
    EXPECT_NE(node.ids(key_of(1)), node.ids(key_of(2)));
    EXPECT_NE(node.ids(key_of(2)), node.ids(key_of(3)));
  }
}

TEST(Identity, ChoicesDiffer) {
  EngineHarness node(roomy());
  message::Submit first = submit_of(1, 10, 16, 1.0F);
  message::Submit second = first;
  second.key.choice = Choice{1};
  node.post(message::RunLocally{first});
  node.post(message::RunLocally{second});
  node.run_until_idle();
  EXPECT_NE(node.ids(first.key), node.ids(second.key));
  EXPECT_EQ(node.ids(second.key), node.reference(second));
}

// Everything is (request, emitted): a replay goes on where the client stopped.
TEST(Identity, AReplayContinues) {
  message::Submit submit = submit_of(3, 50, 30, 0.8F);
  submit.sampling.repetition_penalty = 1.3F;
  submit.sampling.frequency_penalty = 0.2F;
  EngineHarness cold(roomy());
  cold.post(message::RunLocally{submit});
  cold.run_until_idle();
  const std::vector<TokenId> whole = cold.ids(submit.key);
  for (const std::size_t given : {1U, 7U, 29U}) {
    EngineHarness node(roomy());
    message::Submit replay = submit;
    replay.key.epoch = Epoch{1};
    replay.emitted.assign(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(given));
    node.post(message::RunLocally{replay});
    node.run_until_idle();
    EXPECT_EQ(node.tokens[replay.key].front().index, static_cast<std::int32_t>(given));
    std::vector<TokenId> joined = replay.emitted;
    for (const TokenId token : node.ids(replay.key)) {
      joined.push_back(token);
    }
    EXPECT_EQ(joined, whole);
  }
}

// Block borders on a pool whose every block was used and freed: dev builds fill freed blocks with
// NaN, the harness counts rows that are not real KV (field report B29).
TEST(Identity, OnAUsedPool) {
  FakeBackendOptions options = roomy();
  options.groups = {{2, 2, 8, 24}};
  EngineHarness node(options);
  for (std::uint64_t n = 100; n < 104; ++n) {
    node.post(message::RunLocally{submit_of(n, 150, 40)});
  }
  node.run_until_idle();
  std::uint64_t n = 0;
  for (const std::int32_t prompt : {31, 32, 33, 63, 64, 65}) {
    const message::Submit submit = submit_of(++n, prompt, 2 * 32 + 3);
    node.post(message::RunLocally{submit});
    node.run_until_idle();
    EXPECT_EQ(node.ids(submit.key), node.reference(submit)) << prompt;
  }
}

TEST(Ends, OnAnEndTokenAStopIdAndTheLimit) {
  EngineHarness plain(roomy());
  const message::Submit submit = submit_of(5, 40, 12);
  plain.post(message::RunLocally{submit});
  plain.run_until_idle();
  const std::vector<TokenId> all = plain.ids(submit.key);
  const TokenId fifth = all[4];
  const auto first_use = std::find(all.begin(), all.end(), fifth) - all.begin();

  EngineHarness node(roomy());
  message::Submit stop = submit;
  stop.stop_token_ids = {fifth};
  node.post(message::RunLocally{stop});
  message::Submit barred = submit_of(6, 40, 12);
  barred.prompt = submit.prompt;
  barred.stop_token_ids = {fifth};
  barred.min_tokens = static_cast<std::int32_t>(first_use) + 1;
  node.post(message::RunLocally{barred});
  node.run_until_idle();
  EXPECT_EQ(node.tokens[stop.key].size(), static_cast<std::size_t>(first_use) + 1);
  EXPECT_EQ(node.tokens[stop.key].back().finish, FinishReason::kStop);
  EXPECT_GT(node.tokens[barred.key].size(), node.tokens[stop.key].size());
  EXPECT_NE(node.ids(barred.key)[static_cast<std::size_t>(first_use)], fifth);
  EXPECT_EQ(node.engine.stats().ended_as(EndReason::kStop) +
                node.engine.stats().ended_as(EndReason::kLength),
            2U);

  FakeBackendOptions with_end = roomy();
  with_end.end_tokens = {fifth};
  EngineHarness ending(with_end);
  ending.post(message::RunLocally{submit});
  message::Submit ignoring = submit_of(7, 40, 12);
  ignoring.prompt = submit.prompt;
  ignoring.ignore_eos = true;
  ending.post(message::RunLocally{ignoring});
  ending.run_until_idle();
  EXPECT_EQ(ending.tokens[submit.key].size(), static_cast<std::size_t>(first_use) + 1);
  EXPECT_EQ(ending.ids(ignoring.key), all);
}

// Rejected requests leave the pool exactly as it was, and a healthy stream beside them unchanged
// (field reports B23 and B28).
TEST(Guards, RejectBeforeAnythingIsAllocated) {
  FakeBackendOptions options = roomy();
  options.groups = {{2, 2, 8, 8}};  // 256 tokens
  EngineHarness node(options);
  const message::Submit healthy = submit_of(1, 40, 30);
  node.post(message::RunLocally{healthy});
  node.engine.run_once();
  const std::uint32_t free_before = node.free_blocks();

  std::uint64_t n = 100;
  std::vector<std::pair<SequenceKey, ErrorCode>> expected;
  const auto bad = [&](ErrorCode code, auto change) {
    for (int kind = 0; kind < 3; ++kind) {
      message::Submit submit = submit_of(++n, 10, 10);
      change(submit);
      expected.emplace_back(submit.key, code);
      if (kind == 0) {
        node.post(message::RunLocally{submit});
      } else if (kind == 1) {
        node.post(message::PrefillForHandoff{submit});
      } else {
        node.post(message::Reserve{submit});
      }
    }
  };
  using message::Submit;
  bad(ErrorCode::kInvalidArgument, [](Submit& s) { s.prompt.clear(); });
  bad(ErrorCode::kInvalidArgument, [](Submit& s) { s.prompt[3] = 257; });
  bad(ErrorCode::kInvalidArgument, [](Submit& s) { s.prompt[3] = -1; });
  bad(ErrorCode::kInvalidArgument, [](Submit& s) { s.emitted = {257}; });
  bad(ErrorCode::kInvalidArgument, [](Submit& s) { s.stop_token_ids = {257}; });
  bad(ErrorCode::kInvalidArgument, [](Submit& s) { s.sampling.logit_bias = {{257, 1.0F}}; });
  bad(ErrorCode::kInvalidArgument, [](Submit& s) { s.sampling.temperature = -1.0F; });
  bad(ErrorCode::kInvalidArgument, [](Submit& s) { s.max_tokens = 0; });
  bad(ErrorCode::kInvalidArgument, [](Submit& s) { s.max_tokens = -5; });
  bad(ErrorCode::kInvalidArgument, [](Submit& s) { s.min_tokens = 11; });
  bad(ErrorCode::kInvalidArgument, [](Submit& s) { s.emitted.assign(10, 1); });
  bad(ErrorCode::kContextTooLong, [](Submit& s) { s.prompt.resize(5000, 1); });
  bad(ErrorCode::kContextTooLong, [](Submit& s) { s.max_tokens = 4090; });
  bad(ErrorCode::kContextTooLong,
      [](Submit& s) { s.max_tokens = std::numeric_limits<std::int32_t>::max(); });
  bad(ErrorCode::kContextTooLong, [](Submit& s) { s.prompt.resize(257, 1); });
  bad(ErrorCode::kUnsupported, [](Submit& s) { s.key.choice = kAllChoices; });
  node.engine.run_once();
  node.take_events();
  EXPECT_EQ(node.free_blocks(), free_before);
  for (const auto& [key, code] : expected) {
    ASSERT_TRUE(node.refused.contains(key));
    EXPECT_EQ(node.refused[key].error.code, code) << node.refused[key].error.message;
    EXPECT_FALSE(node.refused[key].later);
  }
  EXPECT_EQ(node.engine.stats().refused, expected.size());
  node.run_until_idle();
  EXPECT_EQ(node.ids(healthy.key), node.reference(healthy));
}

// A prompt that can never fit is refused at once; one that just fits runs; those behind are not
// held up (field report B28).
TEST(Guards, AtThePoolsEdge) {
  FakeBackendOptions options = roomy();
  options.groups = {{1, 1, 4, 8}};
  constexpr std::int32_t kPool = 8 * 32;
  std::uint64_t n = 0;
  for (const std::int32_t prompt : {kPool - 1, kPool, kPool + 1}) {
    for (const std::int32_t limit : {1, 64}) {
      EngineHarness node(options);
      const message::Submit big = submit_of(++n, prompt, limit);
      node.post(message::RunLocally{big});
      for (std::uint64_t small = 100; small < 105; ++small) {
        node.post(message::RunLocally{submit_of(small, 10, 5)});
      }
      node.run_until_idle();
      const bool fits = prompt + limit - 1 <= kPool;
      EXPECT_EQ(node.refused.contains(big.key), !fits);
      EXPECT_EQ(node.ids(big.key).size(), fits ? static_cast<std::size_t>(limit) : 0U);
      if (!fits) {
        const std::string& message = node.refused[big.key].error.message;
        EXPECT_NE(message.find(std::to_string(prompt + limit - 1)), std::string::npos) << message;
        EXPECT_NE(message.find(std::to_string(kPool)), std::string::npos) << message;
      }
      for (std::uint64_t small = 100; small < 105; ++small) {
        EXPECT_EQ(node.ids(key_of(small)).size(), 5U);
      }
    }
  }
}

TEST(Guards, AFullQueueAndADeadlineSayLater) {
  FakeBackendOptions options = roomy();
  options.groups = {{1, 1, 4, 4}};
  EngineConfig config;
  config.max_waiting = 2;
  config.queue_deadline_ms = 500;
  EngineHarness node(options, config);
  node.post(message::RunLocally{submit_of(1, 10, 100)});
  node.engine.run_once();
  for (std::uint64_t n = 2; n <= 4; ++n) {
    node.post(message::RunLocally{submit_of(n, 100, 10)});  // needs the whole pool
  }
  node.engine.run_once();
  node.take_events();
  ASSERT_TRUE(node.refused.contains(key_of(4)));
  EXPECT_TRUE(node.refused[key_of(4)].later);
  EXPECT_EQ(node.refused[key_of(4)].error.code, ErrorCode::kOverloaded);
  EXPECT_GT(node.refused[key_of(4)].error.retry_after_ms, 0);
  EXPECT_EQ(node.engine.stats().waiting, 2U);
  node.clock.advance(std::chrono::milliseconds(500));
  node.engine.run_once();
  node.take_events();
  EXPECT_TRUE(node.refused[key_of(2)].later);
  EXPECT_TRUE(node.refused[key_of(3)].later);
  EXPECT_EQ(node.engine.stats().ended_as(EndReason::kExpired), 2U);
  node.run_until_idle();
  EXPECT_EQ(node.ids(key_of(1)).size(), 100U);
}

// Abort in every state of a local sequence; the neighbour never notices.
TEST(Aborts, InEveryState) {
  FakeBackendOptions options = roomy();
  options.max_step_tokens = 96;
  EngineConfig config;
  config.max_num_seqs = 2;
  for (const std::int32_t steps : {0, 1, 2, 8}) {  // not yet seen, waiting, prefilling, decoding
    EngineHarness node(options, config);
    const message::Submit neighbour = submit_of(1, 40, 40);
    const message::Submit victim = submit_of(2, 300, 40);
    const message::Submit behind = submit_of(3, 20, 10);
    node.post(message::RunLocally{neighbour});
    node.post(message::RunLocally{victim});
    node.post(message::RunLocally{behind});
    for (std::int32_t i = 0; i < steps; ++i) {
      node.engine.run_once();
    }
    node.post(message::Abort{victim.key, Error{ErrorCode::kCancelled, "client left"}});
    node.post(message::Abort{victim.key, Error{ErrorCode::kCancelled, "client left"}});
    node.run_until_idle();
    ASSERT_TRUE(node.ended.contains(victim.key));
    EXPECT_EQ(node.ended[victim.key].reason, FinishReason::kAborted);
    EXPECT_EQ(node.engine.stats().ended_as(EndReason::kAborted), 1U);
    EXPECT_EQ(node.ids(neighbour.key), node.reference(neighbour));
    EXPECT_EQ(node.ids(behind.key), node.reference(behind));
  }
}

TEST(Aborts, NameAllChoicesAndLowerEpochsOnly) {
  EngineHarness node(roomy());
  for (std::uint32_t choice = 0; choice < 3; ++choice) {
    message::Submit submit = submit_of(1, 20, 50);
    submit.key = key_of(1, choice, choice);  // epochs 0, 1, 2
    node.post(message::RunLocally{submit});
  }
  node.engine.run_once();
  node.post(message::Abort{{RequestId{7, 1}, kAllChoices, Epoch{1}}, {}});
  node.run_until_idle();
  EXPECT_TRUE(node.ended.contains(key_of(1, 0, 0)));
  EXPECT_TRUE(node.ended.contains(key_of(1, 1, 1)));
  EXPECT_EQ(node.ids(key_of(1, 2, 2)).size(), 50U);
}

TEST(Aborts, AHigherEpochReplacesALowerOne) {
  EngineHarness node(roomy());
  message::Submit submit = submit_of(1, 20, 20);
  node.post(message::RunLocally{submit});
  node.engine.run_once();
  submit.key.epoch = Epoch{3};
  node.post(message::RunLocally{submit});
  message::Submit late = submit;
  late.key.epoch = Epoch{2};
  node.post(message::RunLocally{late});
  node.run_until_idle();
  EXPECT_TRUE(node.ended.contains(key_of(1, 0, 0)));
  EXPECT_TRUE(node.refused.contains(late.key));
  EXPECT_EQ(node.ids(submit.key), node.reference(submit));
}

// Gauges after everyone leaves: true without another step (field report B44).
TEST(Stats, GaugesAfterEveryoneLeaves) {
  EngineHarness node(roomy());
  for (std::uint64_t n = 0; n < 20; ++n) {
    node.post(message::RunLocally{submit_of(n, 30, 200)});
  }
  for (int i = 0; i < 5; ++i) {
    node.engine.run_once();
  }
  EXPECT_EQ(node.engine.stats().running, 20U);
  EXPECT_GT(node.engine.stats().groups[0].used_blocks, 0U);
  for (std::uint64_t n = 0; n < 20; ++n) {
    node.post(message::Abort{key_of(n), {}});
  }
  const std::uint64_t steps = node.engine.stats().step_count;
  EXPECT_FALSE(node.engine.run_once());
  EXPECT_EQ(node.engine.stats().step_count, steps);
  EXPECT_EQ(node.engine.stats().running, 0U);
  EXPECT_EQ(node.engine.stats().groups[0].used_blocks, 0U);
  EXPECT_EQ(node.engine.stats().ended_as(EndReason::kAborted), 20U);
}

// A Beat that is written between the last token and the end of the turn must not count what ended.
TEST(Stats, WhoHearsOfAnEndFindsItInTheGauges) {
  EngineHarness node(roomy());
  std::uint32_t running = 99;
  node.events.set_on_ready([&] { running = node.engine.stats().running; });
  node.post(message::RunLocally{submit_of(1, 30, 3)});
  node.engine.run_once();
  node.take_events();
  EXPECT_EQ(running, 1U);
  node.engine.run_once();
  node.take_events();
  node.engine.run_once();
  EXPECT_EQ(running, 0U);
  node.take_events();
  EXPECT_EQ(node.ids(key_of(1)).size(), 3U);
}

TEST(Drain, RefusesNewWorkRunsWhatIsThereThenSaysSo) {
  EngineHarness node(roomy());
  node.post(message::RunLocally{submit_of(1, 20, 10)});
  node.engine.run_once();
  node.post(message::Drain{});
  node.post(message::RunLocally{submit_of(2, 20, 10)});
  node.engine.run_once();
  node.take_events();
  EXPECT_EQ(node.drained, 0);
  EXPECT_TRUE(node.refused[key_of(2)].later);
  EXPECT_EQ(node.refused[key_of(2)].error.code, ErrorCode::kUnavailable);
  node.run_until_idle();
  EXPECT_EQ(node.ids(key_of(1)).size(), 10U);
  EXPECT_EQ(node.drained, 1);
}

TEST(Logprobs, TravelWithTheToken) {
  EngineHarness node(roomy());
  message::Submit submit = submit_of(1, 10, 3);
  submit.sampling.top_logprobs = 2;
  node.post(message::RunLocally{submit});
  node.run_until_idle();
  for (const message::Token& token : node.tokens[submit.key]) {
    ASSERT_EQ(token.top.size(), 2U);
    EXPECT_EQ(token.top[0].token, token.token);  // greedy
    EXPECT_EQ(token.top[0].logprob, token.logprob);
    EXPECT_LT(token.logprob, 0.0F);
  }
}

}  // namespace
}  // namespace baton::engine
