// A pool that is too small for all that run: preemption, growth, who ends and how.
#include "baton/engine/engine_harness.h"

#include <gtest/gtest.h>

namespace baton::engine {
namespace {

using message::FinishReason;
using testing::FakeBackendOptions;

FakeBackendOptions small(std::uint32_t blocks, std::int32_t block_tokens = 32) {
  FakeBackendOptions options;
  options.groups = {{2, 1, 8, blocks}, {1, 1, 4, blocks}};
  options.block_tokens = block_tokens;
  options.end_tokens = {};
  return options;
}

// Eight that want more than the pool holds together: preempted, computed again, same tokens.
TEST(Preemption, ChangesNoToken) {
  for (const bool prefix_cache : {true, false}) {
    EngineConfig config;
    config.prefix_cache = prefix_cache;
    config.queue_deadline_ms = 1000;
    EngineHarness node(small(10), config);
    std::vector<message::Submit> submits;
    for (std::uint64_t n = 0; n < 8; ++n) {
      submits.push_back(
          submit_of(n, static_cast<std::int32_t>(10 + 9 * n), 120, n % 2 == 0 ? 0.0F : 0.9F));
      submits.back().sampling.repetition_penalty = 1.1F;
      node.post(message::RunLocally{submits.back()});
    }
    for (int step = 0; step < 20 && node.engine.stats().preemptions == 0; ++step) {
      node.engine.run_once();
    }
    while (node.engine.run_once()) {
      if (node.engine.stats().waiting == 0) {
        node.clock.advance(std::chrono::seconds(2));  // what is preempted later never expires
      }
    }
    node.take_events();
    EXPECT_GT(node.engine.stats().preemptions, 0U);
    for (const message::Submit& submit : submits) {
      EXPECT_EQ(node.ids(submit.key), node.reference(submit));
      EXPECT_EQ(node.tokens[submit.key].back().finish, FinishReason::kLength);
    }
  }
}

// The one that came first is never sent away; the one that came last is.
TEST(Preemption, FirstComeFirstDone) {
  EngineHarness node(small(8));
  for (std::uint64_t n = 0; n < 3; ++n) {
    node.post(message::RunLocally{submit_of(n, 40, 150)});
  }
  std::vector<SequenceKey> order;
  for (int step = 0; step < 2000 && order.size() < 3; ++step) {
    node.engine.run_once();
    node.take_events();
    for (std::uint64_t n = 0; n < 3; ++n) {
      if (node.finished(key_of(n)) &&
          std::find(order.begin(), order.end(), key_of(n)) == order.end()) {
        order.push_back(key_of(n));
      }
    }
  }
  EXPECT_EQ(order, (std::vector<SequenceKey>{key_of(0), key_of(1), key_of(2)}));
  EXPECT_GT(node.engine.stats().preemptions, 0U);
}

// An abort while it waits to be computed again.
TEST(Preemption, AbortOfAPreemptedSequence) {
  EngineHarness node(small(6));
  for (std::uint64_t n = 0; n < 2; ++n) {
    node.post(message::RunLocally{submit_of(n, 40, 120)});
  }
  while (node.engine.stats().preemptions == 0) {
    ASSERT_TRUE(node.engine.run_once());
  }
  node.engine.run_once();
  EXPECT_EQ(node.engine.stats().waiting, 1U);
  node.post(message::Abort{key_of(1), {}});
  node.run_until_idle();
  EXPECT_EQ(node.ended[key_of(1)].reason, FinishReason::kAborted);
  EXPECT_EQ(node.ids(key_of(0)), node.reference(submit_of(0, 40, 120)));
}

// A sequence that came by handoff grows like any other, and is computed here when it was preempted.
TEST(Preemption, OfAnAdoptedSequence) {
  for (const bool prefix_cache : {true, false}) {
    EngineConfig config;
    config.prefix_cache = prefix_cache;
    EngineHarness prefill(small(8));
    EngineHarness decode(small(8), config);
    const message::Submit local = submit_of(1, 40, 150);
    decode.post(message::RunLocally{local});
    decode.engine.run_once();
    const message::Submit handed = submit_of(2, 64, 120, 0.8F);
    prefill.post(message::PrefillForHandoff{handed});
    prefill.run_until_idle();
    decode.post(message::Reserve{handed});
    decode.engine.run_once();
    decode.take_events();
    const Prefilled& done = prefill.prefilled[handed.key];
    ASSERT_TRUE(decode.reserved.contains(handed.key));
    EXPECT_EQ(decode.reserved[handed.key].blocks.tables[0].size(), 2U);
    EXPECT_EQ(decode.engine.stats().groups[0].reserved_blocks, 3U);  // and the next row's
    for (std::size_t group = 0; group < done.blocks.tables.size(); ++group) {
      for (std::size_t block = 0; block < done.blocks.tables[group].size(); ++block) {
        std::ranges::copy(done.blocks.tables[group][block].bytes,
                          decode.reserved[handed.key].blocks.tables[group][block].bytes.begin());
      }
    }
    decode.post(message::Adopt{handed.key, done.first, 7});
    prefill.post(message::Release{done.blocks.lease});
    prefill.run_until_idle();
    decode.run_until_idle();
    EXPECT_GT(decode.engine.stats().preemptions, 0U);
    EXPECT_GT(decode.engine.stats().prompt_tokens_computed, 40U);
    EXPECT_EQ(decode.ids(local.key), decode.reference(local));
    EXPECT_EQ(decode.ids(handed.key), decode.reference(handed));
    EXPECT_EQ(decode.tokens[handed.key].back().kv_bytes, 7U);
  }
}

// Blocks that are lent cannot be given back: the one that needs them waits, and goes on later.
TEST(Preemption, WaitsForLeases) {
  EngineHarness node(small(8));
  const message::Submit lent = submit_of(1, 150, 10);  // 5 of 8 blocks
  node.post(message::PrefillForHandoff{lent});
  node.run_until_idle();
  const message::Submit local = submit_of(2, 40, 150);
  node.post(message::RunLocally{local});
  node.run_until_idle();
  EXPECT_GT(node.engine.stats().preemptions, 0U);
  EXPECT_EQ(node.engine.stats().waiting, 1U);
  EXPECT_LT(node.ids(local.key).size(), 150U);
  node.post(message::Release{node.prefilled[lent.key].blocks.lease});
  node.run_until_idle();
  EXPECT_EQ(node.ids(local.key), node.reference(local));
}

// Since when nobody was let in: what makes a node unready.
TEST(Room, SaysSinceWhenThereIsNone) {
  EngineHarness node(small(8));
  const auto since = [&] { return node.engine.stats().no_room_since_ns.load(); };
  node.clock.advance(std::chrono::seconds(5));
  node.post(message::PrefillForHandoff{submit_of(1, 200, 10)});  // 7 of 8 blocks
  node.run_until_idle();
  EXPECT_EQ(since(), 0);
  node.post(message::RunLocally{submit_of(2, 60, 10)});
  node.run_until_idle();
  const std::int64_t began = since();
  EXPECT_EQ(began, node.clock.now().time_since_epoch().count());
  node.clock.advance(std::chrono::seconds(7));
  node.run_until_idle();
  EXPECT_EQ(since(), began) << "still the same one";
  node.post(message::Release{node.prefilled[key_of(1)].blocks.lease});
  node.run_until_idle();
  EXPECT_EQ(since(), 0);
}

// Prompts and limits at the edge of a used pool (field reports B28 and B29).
TEST(Room, AtTheEdgeOfAUsedPool) {
  for (const std::int32_t block_tokens : {32, 64}) {
    EngineHarness node(small(4, block_tokens));
    const std::int32_t pool_tokens = 4 * block_tokens;
    std::uint64_t n = 0;
    for (int round = 0; round < 3; ++round) {
      for (const std::int32_t prompt :
           {block_tokens - 1, block_tokens, block_tokens + 1, 2 * block_tokens - 1,
            2 * block_tokens, 2 * block_tokens + 1, pool_tokens - 1, pool_tokens,
            pool_tokens + 1}) {
        for (const std::int32_t limit : {1, block_tokens + 3, 64}) {
          const message::Submit submit = submit_of(++n, prompt, limit);
          node.post(message::RunLocally{submit});
          node.post(message::RunLocally{submit_of(1000 + n, 10, 5)});
          node.run_until_idle();
          const bool fits = prompt + limit - 1 <= pool_tokens;
          EXPECT_EQ(node.refused.contains(submit.key), !fits) << prompt << ' ' << limit;
          EXPECT_EQ(node.ids(submit.key), fits ? node.reference(submit) : std::vector<TokenId>{});
          EXPECT_EQ(node.ids(key_of(1000 + n)).size(), 5U);
        }
      }
    }
  }
}

}  // namespace
}  // namespace baton::engine
