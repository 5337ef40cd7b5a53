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

// A prefix of which the cache has what its last window needs is not computed again, and changes no
// bit; where the window is gone, less of the prefix is used.
TEST(EngineWindow, PrefixHitsNeedTheLastWindow) {
  for (const std::int32_t block_tokens : {32, 128}) {
    for (const std::uint32_t window_blocks : {64U, 8U}) {
      EngineConfig config;
      config.max_num_seqs = 4;
      testing::FakeBackendOptions backend = options(96, window_blocks);
      backend.block_tokens = block_tokens;
      EngineHarness node(backend, config);
      for (const std::int32_t shared : {0, 33, 64, 100, 383, 384, 500, 700}) {
        message::Submit submit = submit_of(static_cast<std::uint64_t>(7 + shared), 700, 20, 0.7F);
        const std::vector<TokenId> family = prompt_of(1, 700);
        std::copy_n(family.begin(), shared, submit.prompt.begin());
        node.post(message::RunLocally{submit});
        most_window_blocks(node);
        EXPECT_EQ(node.ids(submit.key), node.reference(submit)) << shared;
      }
      if (window_blocks == 64) {
        EXPECT_GT(node.engine.stats().prompt_tokens_cached, 500U);
      }
      // The same again, longer by its answer: as the next turn of a conversation.
      message::Submit turn = submit_of(99, 10, 20);
      turn.prompt = prompt_of(1, 700);
      node.post(message::RunLocally{turn});
      most_window_blocks(node);
      const std::uint64_t cached = node.engine.stats().prompt_tokens_cached;
      message::Submit next = submit_of(100, 10, 20);
      next.prompt = turn.prompt;
      const std::vector<TokenId> answer = node.ids(turn.key);
      next.prompt.insert(next.prompt.end(), answer.begin(), answer.end());
      next.prompt.push_back(3);
      node.post(message::RunLocally{next});
      most_window_blocks(node);
      EXPECT_EQ(node.ids(next.key), node.reference(next));
      EXPECT_GE(node.engine.stats().prompt_tokens_cached - cached, 700U / 32 * 32);
    }
  }
}

// What came by handoff is in the index from its last window on, and serves what it can.
TEST(EngineWindow, AnAdoptedSequenceIsIndexedAsFarAsItCame) {
  EngineHarness prefill(options(96, 64));
  EngineHarness decode(options(96, 64));
  message::Submit submit = submit_of(5, 333, 200, 0.7F);
  submit.ignore_eos = true;
  prefill.post(message::PrefillForHandoff{submit});
  prefill.run_until_idle();
  decode.post(message::Reserve{submit});
  decode.run_until_idle();
  const Prefilled& done = prefill.prefilled.at(submit.key);
  const message::Reserved& held = decode.reserved.at(submit.key);
  const kv::KvLayout layout = decode.engine.probe_block_geometry().layout;
  for (std::size_t group = 0; group < 2; ++group) {
    for (std::size_t block = 0; block < held.blocks.tables[group].size(); ++block) {
      const auto bytes = held.blocks.tables[group][block].bytes;
      const bool needed = static_cast<std::int32_t>(block) >=
                          layout.groups[group].tiles_needed(333).begin;  // blocks of one tile
      EXPECT_EQ(bytes.empty(), !needed);
      if (needed) {
        std::ranges::copy(done.blocks.tables[group][block].bytes, bytes.begin());
      }
    }
  }
  decode.post(message::Adopt{submit.key, done.first, 1});
  prefill.post(message::Release{done.blocks.lease});
  prefill.run_until_idle();
  most_window_blocks(decode);
  const std::vector<TokenId> answer = decode.ids(submit.key);
  ASSERT_EQ(answer.size(), 200U);
  message::Submit next = submit_of(6, 10, 20);
  next.prompt = submit.prompt;
  next.prompt.insert(next.prompt.end(), answer.begin(), answer.end());
  decode.post(message::RunLocally{next});
  most_window_blocks(decode);
  EXPECT_EQ(decode.ids(next.key), decode.reference(next));
  EXPECT_GE(decode.engine.stats().prompt_tokens_cached, 500U);
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
