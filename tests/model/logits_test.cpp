// Our logits against references that know nothing of our code: llama.cpp and a float64 forward pass
// for the files of SmolLM2 and Gemma 3, transformers for small Qwen3 and Gemma 3 shapes. Fixtures
// and how they were made: tests/fixtures/model/.
//
// The tolerance for the real files. Two engines that quantise activations to 8 bits differ from the
// exact model by rounding noise of one and the same size (step = max |x| / 127 over 32 values, in
// every matmul), drawn independently as soon as the first rounding falls the other way. So the
// fixture measures that noise on llama.cpp, e = rms(llama - exact), and ours must be of its size:
//   - over all prompts together, rms(ours - exact) <= 1.25 rms(llama - exact);
//   - for each prompt, where noise over correlated logits scatters, at most 3 times the larger of
//     that prompt's e and the mean e;
//   - rms(ours - llama) <= rms(ours - exact) + rms(llama - exact) follows (triangle inequality).
// bf16 KV rounds K, V, Q and weights to 8 bits of mantissa, 2^-9 relative at most: below the noise
// of 8-bit activations (2^-8 of each block's maximum), so the same bounds hold.
#include "baton/backend/runner_for_test.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <fstream>

namespace baton::backend {
namespace {

const char* const kFolder = "tests/fixtures/model/";  // tests run in the source folder
constexpr std::size_t kWhole = 1 << 20;
constexpr std::size_t kStepRows = 512;  // the most of one step

nlohmann::json read_json(const std::string& name) {
  std::ifstream file(kFolder + name);
  EXPECT_TRUE(file.good()) << kFolder << name;
  return nlohmann::json::parse(file);
}

struct Noise {
  double squares = 0;
  double count = 0;
  void add(double difference) {
    squares += difference * difference;
    count += 1;
  }
  [[nodiscard]] double rms() const { return std::sqrt(squares / count); }
};

double log_sum_exp(const std::vector<float>& logits) {
  const double top = *std::ranges::max_element(logits);
  double sum = 0;
  for (const float logit : logits) {
    sum += std::exp(logit - top);
  }
  return top + std::log(sum);
}

void compare_with_llama(const std::string& model_path, const std::string& fixture_name,
                        kv::KvDtype kv_dtype, std::size_t prompts) {
  CpuBackendOptions options = Runner::options(model_path);
  options.kv_dtype = kv_dtype;
  Runner runner(options);
  const nlohmann::json fixture = read_json(fixture_name);
  ASSERT_GE(fixture["prompts"].size(), prompts);
  double mean_noise = 0;
  for (const auto& prompt : fixture["prompts"]) {
    mean_noise += prompt["rms_llama_minus_exact"].get<double>() /
                  static_cast<double>(fixture["prompts"].size());
  }
  Noise all_ours;
  Noise all_llama;
  for (const auto& prompt : fixture["prompts"]) {
    const auto tokens = prompt["tokens"].get<std::vector<TokenId>>();
    const auto exact = prompt["exact"].get<std::vector<double>>();
    const auto llama = prompt["llama"].get<std::vector<double>>();
    const auto ids = prompt["ids"].get<std::vector<std::size_t>>();
    const std::vector<float> logits = runner.logits(tokens, {kStepRows, kWhole});
    Noise ours_exact;
    Noise llama_exact;
    Noise ours_llama;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const double ours = logits[ids[i]];
      ours_exact.add(ours - exact[i]);
      llama_exact.add(llama[i] - exact[i]);
      ours_llama.add(ours - llama[i]);
      all_ours.add(ours - exact[i]);
      all_llama.add(llama[i] - exact[i]);
    }
    const double bound = 3 * std::max(llama_exact.rms(), mean_noise);
    EXPECT_LE(ours_exact.rms(), bound) << prompt["tokens"].dump();
    EXPECT_LE(ours_llama.rms(), bound + llama_exact.rms()) << prompt["tokens"].dump();
    // log-sum-exp is a mean of logits weighted by probability: it moves no more than they do.
    EXPECT_NEAR(log_sum_exp(logits), prompt["exact_log_sum_exp"].get<double>(), 2 * bound);
    std::printf("%4zu tokens: rms ours-exact %.3f, llama-exact %.3f, ours-llama %.3f\n",
                tokens.size(), ours_exact.rms(), llama_exact.rms(), ours_llama.rms());
  }
  std::printf("all prompts: rms ours-exact %.4f, llama-exact %.4f\n", all_ours.rms(),
              all_llama.rms());
  EXPECT_LE(all_ours.rms(), 1.25 * all_llama.rms());
}

void compare_smollm2(kv::KvDtype kv_dtype) {
  compare_with_llama(test_model_path(), "smollm2_logits.json", kv_dtype, 20);
}

TEST(Logits, SmolLm2AgreesWithLlamaCpp) { compare_smollm2(kv::KvDtype::kF32); }
TEST(Logits, SmolLm2WithBf16CacheAgreesToo) { compare_smollm2(kv::KvDtype::kBf16); }
TEST(Logits, SmolLm2WithF16CacheAgreesToo) { compare_smollm2(kv::KvDtype::kF16); }
TEST(Logits, SmolLm2WithQ8CacheAgreesToo) { compare_smollm2(kv::KvDtype::kQ8_0); }

// The same derivation. Here llama.cpp rounds activations over 256 values where we do over 32, so
// its noise is the larger one. One prompt is longer than the window of 512.
void compare_gemma3(kv::KvDtype kv_dtype) {
  if (!std::filesystem::exists(testing::gemma_path())) {
    GTEST_SKIP() << testing::gemma_path() << " is not there: scripts/nightly fetches it";
  }
  compare_with_llama(testing::gemma_path(), "gemma3_logits.json", kv_dtype, 20);
}

TEST(Logits, Gemma3sOwnFileAgreesWithLlamaCpp) { compare_gemma3(kv::KvDtype::kF32); }
TEST(Logits, Gemma3sOwnFileWithBf16CacheAgreesToo) { compare_gemma3(kv::KvDtype::kBf16); }

// `name`: of a fixture with its logits beside it.
double largest_difference(const std::string& name, kv::KvDtype kv_dtype, const std::string& isa) {
  CpuBackendOptions options = Runner::options(kFolder + name + ".gguf");
  options.kv_dtype = kv_dtype;
  options.isa = isa;
  options.kv_memory_bytes = 4ULL << 20;
  Runner runner(options);
  const nlohmann::json fixture = read_json(name + "_logits.json");
  double largest = 0;
  for (const auto& prompt : fixture["prompts"]) {
    const auto tokens = prompt["tokens"].get<std::vector<TokenId>>();
    const auto expected = prompt["logits"].get<std::vector<double>>();
    const std::vector<float> logits = runner.logits(tokens, {64, 32, kWhole});
    EXPECT_EQ(logits.size(), expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      largest = std::max(largest, std::abs(logits[i] - expected[i]));
    }
  }
  std::printf("largest difference: %g\n", largest);
  return largest;
}

// F16 weights and an f32 cache leave fp32 rounding only: 2 layers of 7 sums over at most 128
// products each lose at most 128 * 2^-24 of their size, and logits are of size 4 at most (unit
// variance): 14 * 128 * 2^-24 * 4 = 4e-4.
TEST(Logits, Qwen3AgreesWithTransformers) {
  EXPECT_LE(largest_difference("qwen3_tiny", kv::KvDtype::kF32, "auto"), 4e-4);
}
TEST(Logits, Qwen3ByScalarCodeAgreesToo) {
  EXPECT_LE(largest_difference("qwen3_tiny", kv::KvDtype::kF32, "ref"), 4e-4);
}
// bf16: Q, K, V and weights are each rounded, by at most 2^-9 of their size, rms 2^-9 / sqrt(3) =
// 1.1e-3. V and the weights move a layer's attention by 1.6e-3 of itself; scores (of size 2 with
// head norms) are sums over 32 products, each off by 1.6e-3: they move by 2 * 1.6e-3, and the
// attention with them. Two layers: sqrt(2) * 3.6e-3 = 5e-3 of logits of unit variance; 5 sigma over
// 2,560 logits.
TEST(Logits, Qwen3WithBf16CacheStaysWithinItsRounding) {
  EXPECT_LE(largest_difference("qwen3_tiny", kv::KvDtype::kBf16, "auto"), 0.025);
}

// As for Qwen3, with 6 layers: 42 * 128 * 2^-24 * 4 = 1.3e-3. A layer that saw one token more or
// less, or turned by the other base, would be off by some tenths.
TEST(Logits, Gemma3AgreesWithTransformers) {
  EXPECT_LE(largest_difference("gemma3_tiny", kv::KvDtype::kF32, "auto"), 1.3e-3);
}
TEST(Logits, Gemma3ByScalarCodeAgreesToo) {
  EXPECT_LE(largest_difference("gemma3_tiny", kv::KvDtype::kF32, "ref"), 1.3e-3);
}
// As for Qwen3: sqrt(6) * 3.6e-3 = 9e-3 of logits of unit variance; 5 sigma.
TEST(Logits, Gemma3WithBf16CacheStaysWithinItsRounding) {
  EXPECT_LE(largest_difference("gemma3_tiny", kv::KvDtype::kBf16, "auto"), 0.045);
}

}  // namespace
}  // namespace baton::backend
