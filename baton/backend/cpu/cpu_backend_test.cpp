// The promise at the level of logits: the same bits whatever the chunks, the neighbours, the
// threads, the vector width, the block size and what was in the pool before. On the shipped model.
#include "baton/backend/cpu/cpu_backend.h"

#include "baton/backend/cpu/kv_memory.h"
#include "baton/backend/no_cuda/cuda_backend.h"
#include "baton/backend/runner_for_test.h"
#include "baton/base/cpu_features.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <functional>

namespace baton::backend {
namespace {

using ::testing::HasSubstr;

constexpr std::size_t kWhole = 1 << 20;

class CpuBackendTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { shared_ = new Runner(Runner::options(test_model_path())); }
  static void TearDownTestSuite() {
    delete shared_;
    shared_ = nullptr;
  }
  static Runner& shared() { return *shared_; }

 private:
  static Runner* shared_;  // two threads, the best instruction set
};
Runner* CpuBackendTest::shared_ = nullptr;

TEST_F(CpuBackendTest, ChunksDoNotChangeBits) {
  const auto tokens = random_tokens(200, 1);
  const auto whole = shared().logits(tokens, {kWhole});
  for (const float logit : whole) {
    ASSERT_TRUE(std::isfinite(logit));
  }
  EXPECT_TRUE(same_bits(whole, shared().logits(tokens, {32})));
  EXPECT_TRUE(same_bits(whole, shared().logits(tokens, {96})));
  EXPECT_TRUE(same_bits(whole, shared().logits(tokens, {160, 32, 1})));
  // Not on tile borders either: a decode step is a chunk of one token.
  EXPECT_TRUE(same_bits(whole, shared().logits(tokens, {1, 2, 3, 5, 50, 130})));
  // One bit elsewhere in the prompt is seen.
  auto other = tokens;
  other[0] ^= 1;
  EXPECT_FALSE(same_bits(whole, shared().logits(other, {kWhole})));
}

TEST_F(CpuBackendTest, NeighboursDoNotChangeBits) {
  const auto tokens = random_tokens(77, 2);
  const auto alone = shared().logits(tokens, {kWhole});
  for (const std::size_t neighbours : {1U, 3U, 7U}) {
    std::vector<Runner::Sequence> others;
    for (std::size_t i = 0; i < neighbours; ++i) {
      others.push_back(shared().start(random_tokens(10 + 13 * i, static_cast<unsigned>(50 + i))));
    }
    // Some neighbours already run (they decode), others arrive in the same step.
    StepPlan before;
    for (std::size_t i = 0; i < neighbours; i += 2) {
      before.sequences.push_back(shared().part(others[i], others[i].tokens.size() - 1));
    }
    shared().step(before);
    Runner::Sequence sequence = shared().start(tokens);
    StepPlan plan;
    for (std::size_t i = 0; i < neighbours; ++i) {
      if (i == neighbours / 2) {
        plan.sequences.push_back(shared().part(sequence, kWhole));
      }
      plan.sequences.push_back(shared().part(others[i], kWhole));
    }
    const StepResult result = shared().step(plan);
    ASSERT_EQ(result.tokens.size(), neighbours + 1);
    EXPECT_EQ(result.tokens[neighbours / 2].sequence, neighbours / 2);
    EXPECT_TRUE(same_bits(alone, result.tokens[neighbours / 2].logits));
    for (Runner::Sequence& other : others) {
      shared().finish(other);
    }
    shared().finish(sequence);
  }
}

TEST_F(CpuBackendTest, BatchedDecodeHasTheBitsOfDecodeAlone) {
  std::vector<std::vector<float>> alone;
  std::vector<Runner::Sequence> sequences;
  StepPlan prompts;
  for (unsigned i = 0; i < 12; ++i) {
    const auto tokens = random_tokens(5 + 7 * i, 100 + i);
    alone.push_back(shared().logits(tokens, {tokens.size() - 1, 1}));
    sequences.push_back(shared().start(tokens));
  }
  for (Runner::Sequence& sequence : sequences) {
    prompts.sequences.push_back(shared().part(sequence, sequence.tokens.size() - 1));
  }
  shared().step(prompts);
  StepPlan decode;
  for (Runner::Sequence& sequence : sequences) {
    decode.sequences.push_back(shared().part(sequence, 1));
  }
  const StepResult result = shared().step(decode);
  ASSERT_EQ(result.tokens.size(), sequences.size());
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    EXPECT_TRUE(same_bits(alone[i], result.tokens[i].logits)) << i;
    shared().finish(sequences[i]);
  }
}

TEST_F(CpuBackendTest, ThreadsAndBlockSizesDoNotChangeBits) {
  // Over two parts of 512 keys: with two threads the decode step splits attention by parts.
  const auto tokens = random_tokens(1100, 3);
  const auto two = shared().logits(tokens, {512, 512, 75, 1});
  CpuBackendOptions options = Runner::options(test_model_path());
  options.threads = 1;
  options.block_tokens = 32;
  options.max_step_tokens = 600;
  Runner one(options);
  EXPECT_TRUE(same_bits(two, one.logits(tokens, {600, 480, 20})));
  options.threads = 3;
  options.block_tokens = 256;
  options.max_step_tokens = 32;
  Runner three(options);
  EXPECT_TRUE(same_bits(two, three.logits(tokens, {32})));
}

TEST_F(CpuBackendTest, VectorWidthDoesNotChangeBits) {
  if (!cpu_features().avx2) {
    GTEST_SKIP() << "this CPU lacks " << cpu_features().missing_for_avx2;
  }
  const auto tokens = random_tokens(40, 4);
  CpuBackendOptions options = Runner::options(test_model_path());
  options.isa = "avx2";
  Runner avx2(options);
  EXPECT_TRUE(same_bits(shared().logits(tokens, {kWhole}), avx2.logits(tokens, {39, 1})));
}

TEST_F(CpuBackendTest, ScalarCodeHasTheSameBits) {
  const auto tokens = random_tokens(3, 5);
  CpuBackendOptions options = Runner::options(test_model_path());
  options.isa = "ref";
  Runner ref(options);
  EXPECT_TRUE(same_bits(shared().logits(tokens, {kWhole}), ref.logits(tokens, {2, 1})));
}

// The other way through everything: F16 weights, head norms, rope over halves, a separate output
// matrix, two query heads per kv head, every type of cache.
TEST(Qwen3Fixture, KeepsThePromiseToo) {
  CpuBackendOptions options = Runner::options("tests/fixtures/model/qwen3_tiny.gguf");
  options.kv_memory_bytes = 8ULL << 20;
  for (const kv::KvDtype dtype :
       {kv::KvDtype::kBf16, kv::KvDtype::kF16, kv::KvDtype::kF32, kv::KvDtype::kQ8_0}) {
    options.kv_dtype = dtype;
    options.isa = "auto";
    options.threads = 2;
    Runner two(options);
    options.threads = 1;
    options.isa = "ref";
    Runner ref(options);
    const auto tokens = random_tokens(301, 11, 256);
    const auto whole = two.logits(tokens, {kWhole});
    EXPECT_TRUE(same_bits(whole, two.logits(tokens, {96, 1, 32})));
    EXPECT_TRUE(same_bits(whole, ref.logits(tokens, {160, 140, 1})));
  }
}

TEST_F(CpuBackendTest, B29UsedPoolAnswersAsAFreshOne) {
  CpuBackendOptions options = Runner::options(test_model_path());
  options.kv_memory_bytes = 32ULL << 20;
  for (const std::int32_t block_tokens : {32, 128}) {
    options.block_tokens = block_tokens;
    Runner fresh(options);
    Runner used(options);
    used.poison_free_blocks();
    for (const std::int32_t length :
         {block_tokens - 1, block_tokens, block_tokens + 1, 2 * block_tokens - 1, 2 * block_tokens,
          2 * block_tokens + 1}) {
      const auto tokens =
          random_tokens(static_cast<std::size_t>(length), static_cast<unsigned>(length));
      const std::vector<std::size_t> chunks{static_cast<std::size_t>(length) - 1, 1};
      const auto expected = fresh.logits(tokens, chunks);
      for (const float logit : expected) {
        ASSERT_FALSE(std::isnan(logit));
      }
      EXPECT_TRUE(same_bits(expected, used.logits(tokens, chunks))) << length;
    }
  }
}

TEST_F(CpuBackendTest, OnlyTheLastChunkGivesATokenAndItIsTheLargestLogit) {
  Runner::Sequence sequence = shared().start(random_tokens(64, 6));
  StepPlan first;
  first.sequences.push_back(shared().part(sequence, 32));
  EXPECT_TRUE(shared().step(first).tokens.empty());
  StepPlan second;
  second.sequences.push_back(shared().part(sequence, 32));
  const StepResult result = shared().step(second);
  ASSERT_EQ(result.tokens.size(), 1U);
  const SampledToken& token = result.tokens[0];
  const auto largest = std::ranges::max_element(token.logits);
  EXPECT_EQ(token.token, largest - token.logits.begin());
  double sum = 0;
  for (const float logit : token.logits) {
    sum += std::exp(static_cast<double>(logit - *largest));
  }
  EXPECT_NEAR(token.logprob, -std::log(sum), 1e-5);
  EXPECT_GT(result.elapsed.count(), 0);
  shared().finish(sequence);
}

struct Recorder final : ProgressQueue {
  void push(const LayerDone& layer) override { done.push_back(layer); }
  std::vector<LayerDone> done;
};

TEST_F(CpuBackendTest, LayersAreReportedInOrder) {
  Runner::Sequence a = shared().start(random_tokens(33, 7));
  Runner::Sequence b = shared().start(random_tokens(2, 8));
  Recorder recorder;
  StepPlan plan;
  plan.sequences = {shared().part(a, 32), shared().part(b, 2)};
  plan.sequences[1].key.choice.value = 5;
  plan.progress = &recorder;
  shared().step(plan);
  ASSERT_EQ(recorder.done.size(), 60U);
  for (std::size_t i = 0; i < recorder.done.size(); ++i) {
    EXPECT_EQ(recorder.done[i].layer, i / 2);
    EXPECT_EQ(recorder.done[i].key.choice.value, i % 2 == 0 ? 0U : 5U);
  }
  shared().finish(a);
  shared().finish(b);
}

// What is told of is read, and may be sent, while the step goes on.
TEST_F(CpuBackendTest, ALayerIsFinalWhenItIsReported) {
  struct Watch final : ProgressQueue {
    void push(const LayerDone& done) override { seen.push_back(layer_bytes(done.layer)); }
    std::function<std::vector<std::byte>(std::uint32_t)> layer_bytes;
    std::vector<std::vector<std::byte>> seen;
  } watch;
  Runner::Sequence sequence = shared().start(random_tokens(70, 11));
  StepPlan before;
  before.sequences = {shared().part(sequence, 40)};
  shared().step(before);
  StepPlan plan;
  plan.sequences = {shared().part(sequence, kWhole)};
  plan.progress = &watch;
  const kv::BlockId block = plan.sequences[0].tables[0][0];
  const kv::KvLayout& layout = shared().backend().info().layout;
  watch.layer_bytes = [&](std::uint32_t layer) {
    const auto bytes = shared().backend().block_bytes(0, block);
    const std::size_t size = layout.block_bytes(0) / layout.groups[0].layers.size();
    const auto of_layer = bytes.subspan(layer * size, size);
    return std::vector<std::byte>(of_layer.begin(), of_layer.end());
  };
  shared().step(plan);
  ASSERT_EQ(watch.seen.size(), 30U);
  for (std::uint32_t layer = 0; layer < 30; ++layer) {
    EXPECT_EQ(watch.seen[layer], watch.layer_bytes(layer)) << layer;
  }
  shared().finish(sequence);
}

TEST_F(CpuBackendTest, AnAbortedStepStopsBetweenLayers) {
  struct StopAtThree final : ProgressQueue {
    void push(const LayerDone& layer) override {
      layers = layer.layer + 1;
      stop = layers == 3;
    }
    std::atomic<bool> stop{false};
    std::uint32_t layers = 0;
  } queue;
  Runner::Sequence sequence = shared().start(random_tokens(20, 9));
  StepPlan plan;
  plan.sequences = {shared().part(sequence, kWhole)};
  plan.progress = &queue;
  plan.all_aborted = &queue.stop;
  const StepResult result = shared().step(plan);
  EXPECT_TRUE(result.stopped);
  EXPECT_TRUE(result.tokens.empty());
  EXPECT_EQ(queue.layers, 3U);
  shared().finish(sequence);
}

TEST_F(CpuBackendTest, InfoSaysWhatWasMade) {
  const BackendInfo& info = shared().backend().info();
  EXPECT_EQ(info.vocabulary, 49152);
  EXPECT_EQ(info.layout.block_bytes(0), 128U * 30 * 3 * 64 * 2 * 2);
  EXPECT_EQ(info.group_blocks[0], (128U << 20) / info.layout.block_bytes(0));
  EXPECT_EQ(info.max_context_tokens,
            static_cast<std::int32_t>(info.group_blocks[0]) * info.layout.block_tokens);
  EXPECT_THAT(info.end_tokens, ::testing::Contains(2));
  EXPECT_THAT(info.exactness_tag, ::testing::AllOf(HasSubstr("backend=cpu"), HasSubstr("kv=bf16"),
                                                   HasSubstr("numerics=")));
}

TEST(CpuBackendErrors, EachNamesWhatIsWrong) {
  const auto error = [](const std::function<void(CpuBackendOptions&)>& change) {
    CpuBackendOptions options = Runner::options(test_model_path());
    change(options);
    const auto made = make_cpu_backend(options);
    return made ? "no error" : made.error().message;
  };
  EXPECT_THAT(error([](auto& o) { o.kv_memory_bytes = 1000; }),
              ::testing::AllOf(HasSubstr("1000 bytes"), HasSubstr("needs 2949120 bytes")));
  EXPECT_THAT(error([](auto& o) { o.kv_memory_bytes = 1ULL << 60; }), HasSubstr("available"));
  EXPECT_THAT(error([](auto& o) { o.block_tokens = 48; }), HasSubstr("48 tokens"));
  EXPECT_THAT(error([](auto& o) { o.max_context_tokens = 8193; }), HasSubstr("the model has 8192"));
  EXPECT_THAT(error([](auto& o) { o.isa = "sse9"; }), HasSubstr("sse9"));
  EXPECT_THAT(error([](auto& o) { o.threads = -1; }), HasSubstr("-1 threads"));
  EXPECT_THAT(error([](auto& o) { o.max_num_seqs = 0; }), HasSubstr("0 sequences"));
  EXPECT_THAT(error([](auto& o) { o.max_step_tokens = 1; }), HasSubstr("step of 1 tokens"));
  EXPECT_THAT(error([](auto& o) { o.model_path = "/no/such.gguf"; }), HasSubstr("/no/such.gguf"));
}

TEST(KvLayoutErrors, Q8NeedsWholeBlocksOfLanes) {
  model::ModelConfig config;
  config.layers = 2;
  config.kv_heads = 3;
  config.head_dim = 48;
  const auto refused = make_kv_layout(config, kv::KvDtype::kQ8_0, 128);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(refused.error().message, HasSubstr("multiple of 32 elements, this model's have 48"));
  EXPECT_TRUE(make_kv_layout(config, kv::KvDtype::kF16, 128));
  config.head_dim = 64;
  const auto made = make_kv_layout(config, kv::KvDtype::kQ8_0, 128);
  ASSERT_TRUE(made);
  EXPECT_EQ(made->block_bytes(0), 2U * 3 * 4 * 2 * (34 * 64));
}

TEST(NoCuda, SaysWhatIsMissing) {
  const auto made = make_cuda_backend("model.gguf");
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(made.error().message, HasSubstr("without CUDA"));
}

// Perplexity asks for many rows at once; each has the bits that a prompt ending there would get.
TEST(CpuBackend, SeveralRowsOfLogitsAreThoseOfShorterPrompts) {
  CpuBackendOptions options = Runner::options(test_model_path());
  options.max_num_seqs = 80;
  Runner runner(options);
  for (const std::int32_t rows : {3, 70}) {  // the panel way and row blocks
    Runner::Sequence sequence = runner.start(random_tokens(100, 5));
    StepPlan plan;
    plan.sequences.push_back(runner.part(sequence, 100));
    plan.sequences[0].logit_rows = rows;
    const StepResult result = runner.step(plan);
    runner.finish(sequence);
    ASSERT_EQ(result.tokens.size(), 1U);
    const std::size_t vocabulary = static_cast<std::size_t>(runner.backend().info().vocabulary);
    const std::vector<float>& logits = result.tokens[0].logits;
    ASSERT_EQ(logits.size(), vocabulary * static_cast<std::size_t>(rows));
    for (const std::int32_t row : {0, rows / 2, rows - 1}) {
      std::vector<TokenId> prompt = random_tokens(100, 5);
      prompt.resize(static_cast<std::size_t>(100 - rows + 1 + row));
      const auto begin =
          logits.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(row) * vocabulary);
      EXPECT_TRUE(same_bits(runner.logits(prompt, {64}),
                            {begin, begin + static_cast<std::ptrdiff_t>(vocabulary)}))
          << "row " << row << " of " << rows;
    }
  }
}

}  // namespace
}  // namespace baton::backend
