// Window groups in the engine: blocks that no query can see any more go back while a sequence runs,
// and the stream is that of a run that kept everything.
#include "baton/engine/engine_harness.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace baton::engine {
namespace {

constexpr std::int32_t kWindow = 50;

testing::FakeBackendOptions options(std::int32_t max_step_tokens, std::uint32_t window_blocks) {
  testing::FakeBackendOptions result;
  result.max_step_tokens = max_step_tokens;
  result.groups = {testing::FakeGroup{1, 1, 8, 64, 0},
                   testing::FakeGroup{2, 1, 8, window_blocks, kWindow}};
  return result;
}

// Steps until idle; the most blocks of group 1 that were in use.
std::uint32_t most_window_blocks(EngineHarness& node) {
  std::uint32_t most = 0;
  for (int step = 0; step < 20'000; ++step) {
    const bool stepped = node.engine.run_once();
    most = std::max(most, node.engine.stats().groups[1].used_blocks.load());
    node.engine.check_integrity();
    if (!stepped) {
      break;
    }
  }
  node.take_events();
  return most;
}

TEST(EngineWindow, HoldsAWindowAndAChunkWhateverTheLength) {
  for (const std::int32_t step_tokens : {64, 96, 512}) {
    for (const std::int32_t prompt_tokens : {1, 31, 49, 50, 51, 200, 1500}) {
      EngineConfig config;
      config.max_num_seqs = 4;
      EngineHarness node(options(step_tokens, 64), config);
      const message::Submit submit =
          submit_of(static_cast<std::uint64_t>(prompt_tokens), prompt_tokens, 120, 0.8F);
      node.post(message::RunLocally{submit});
      const std::uint32_t most = most_window_blocks(node);
      EXPECT_EQ(node.ids(submit.key), node.reference(submit)) << prompt_tokens;
      EXPECT_LE(most, static_cast<std::uint32_t>((kWindow - 1 + step_tokens - 2) / 32 + 2));
    }
  }
}

// Room for one long sequence at once: the second waits or gives way, and both are right.
TEST(EngineWindow, AFullWindowGroupPreempts) {
  EngineConfig config;
  config.max_num_seqs = 8;
  EngineHarness node(options(64, 6), config);
  std::vector<message::Submit> submits;
  for (std::uint64_t n = 1; n <= 6; ++n) {
    submits.push_back(submit_of(n, static_cast<std::int32_t>(5 * n), 200, 0.9F));
    submits.back().ignore_eos = true;
    node.post(message::RunLocally{submits.back()});
  }
  most_window_blocks(node);
  for (const message::Submit& submit : submits) {
    EXPECT_EQ(node.ids(submit.key).size(), 200U);
    message::Submit whole = submit;
    testing::FakeBackendOptions no_end = options(64, 6);
    no_end.end_tokens.clear();
    EXPECT_EQ(node.ids(submit.key),
              testing::FakeBackend::reference(no_end, whole.prompt, whole.sampling,
                                              whole.key.choice, whole.max_tokens));
  }
  EXPECT_GT(node.engine.stats().preemptions, 0U);
}

// A pool that cannot hold one window and chunk bounds the length; one that can does not.
TEST(EngineWindow, PoolTokensFollowTheWindow) {
  EngineConfig config;
  config.max_num_seqs = 4;
  EngineHarness small(options(64, 3), config);
  EXPECT_EQ(small.engine.probe_block_geometry().pool_tokens, 3 * 32);
  EngineHarness enough(options(64, 5), config);
  EXPECT_EQ(enough.engine.probe_block_geometry().pool_tokens, 64 * 32);
}

}  // namespace
}  // namespace baton::engine
