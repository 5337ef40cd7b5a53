// Bits of a model with window layers (the Gemma 3 fixture: a window of 40 tokens): the same
// whatever the chunks, the threads, the vector width and the block size, over contexts of several
// key parts. The runner takes away every block that a chunk cannot see.
#include "baton/backend/cpu/memory_plan.h"
#include "baton/backend/runner_for_test.h"
#include "baton/base/cpu_features.h"

#include <gtest/gtest.h>

namespace baton::backend {
namespace {

constexpr std::size_t kWhole = 1 << 20;
constexpr const char* kModel = "tests/fixtures/model/gemma3_tiny.gguf";

CpuBackendOptions options() {
  CpuBackendOptions result = Runner::options(kModel);
  result.kv_memory_bytes = 64ULL << 20;
  result.block_tokens = 64;
  result.max_step_tokens = 2048;
  return result;
}

std::vector<TokenId> prompt(std::size_t tokens) { return random_tokens(tokens, 21, 256); }

TEST(WindowModel, ChunksDoNotChangeBits) {
  Runner runner(options());
  for (const std::size_t tokens : {33U, 40U, 41U, 200U, 1100U}) {
    const auto whole = runner.logits(prompt(tokens), {kWhole});
    EXPECT_TRUE(same_bits(whole, runner.logits(prompt(tokens), {32})));
    EXPECT_TRUE(same_bits(whole, runner.logits(prompt(tokens), {96, 1, 1, 2, 64})));
    EXPECT_TRUE(same_bits(whole, runner.logits(prompt(tokens), {1, 3, 7, 100})));
  }
}

TEST(WindowModel, ThreadsBlocksAndInstructionSetsDoNotChangeBits) {
  const std::size_t tokens = 1060;  // one query sees two key parts of the window group
  const auto wanted = Runner(options()).logits(prompt(tokens), {512});
  for (const int threads : {1, 3}) {
    for (const std::int32_t block_tokens : {32, 256}) {
      CpuBackendOptions other = options();
      other.threads = threads;
      other.block_tokens = block_tokens;
      EXPECT_TRUE(same_bits(wanted, Runner(other).logits(prompt(tokens), {kWhole})));
      EXPECT_TRUE(same_bits(wanted, Runner(other).logits(prompt(tokens), {1024, 1})));
    }
  }
  CpuBackendOptions scalar = options();
  scalar.isa = "ref";
  EXPECT_TRUE(same_bits(wanted, Runner(scalar).logits(prompt(tokens), {512})));
  if (cpu_features().avx2) {
    CpuBackendOptions avx2 = options();
    avx2.isa = "avx2";
    EXPECT_TRUE(same_bits(wanted, Runner(avx2).logits(prompt(tokens), {512})));
  }
}

TEST(WindowModel, WhatIsOutsideOfEveryWindowStillCounts) {
  Runner runner(options());
  auto tokens = prompt(300);
  const auto before = runner.logits(tokens, {kWhole});
  tokens[5] ^= 1;  // the layer without a window sees it
  EXPECT_FALSE(same_bits(before, runner.logits(tokens, {kWhole})));
}

TEST(WindowModel, LayoutHasTwoGroupsAndAPoolForEach) {
  CpuBackendOptions small = options();
  small.max_num_seqs = 3;
  small.max_step_tokens = 128;
  Runner runner(small);
  const BackendInfo& info = runner.backend().info();
  ASSERT_EQ(info.layout.groups.size(), 2U);
  EXPECT_EQ(info.layout.groups[0].layers, std::vector<std::int32_t>{5});
  EXPECT_EQ(info.layout.groups[1].layers, (std::vector<std::int32_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(info.layout.groups[1].window_tokens, 40);
  // A window and a chunk: 39 + 128 tokens touch at most 4 blocks of 64.
  EXPECT_EQ(info.group_blocks[1], 3U * 4);
  EXPECT_EQ(info.group_blocks[0],
            ((64U << 20) - 12 * info.layout.block_bytes(1)) / info.layout.block_bytes(0));
  EXPECT_EQ(info.max_context_tokens, 2048);
  EXPECT_NE(info.exactness_tag.find(";window=40,"), std::string::npos);
}

// Below one sequence's window and chunk both groups are cut alike, and the context is short.
TEST(WindowModel, ASmallBudgetIsCutEvenly) {
  CpuBackendOptions small = options();
  const std::uint64_t column =
      6ULL * 1 * 2 * 8192 / 2;  // a block of 64 of six layers: 2 tiles each
  small.kv_memory_bytes = 2 * 6 * 2 * (2 * 32 * 32 * 2);
  Runner runner(small);
  const BackendInfo& info = runner.backend().info();
  EXPECT_EQ(info.layout.block_bytes(0) + info.layout.block_bytes(1), column);
  EXPECT_EQ(info.group_blocks, (std::vector<std::uint32_t>{2, 2}));
  EXPECT_EQ(info.max_context_tokens, 128);
  small.kv_memory_bytes = column - 1;
  const auto refused = make_cpu_backend(small);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("holds no block"), std::string::npos);
}

}  // namespace
}  // namespace baton::backend
