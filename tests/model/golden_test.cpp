// The bits of the logits of this numerics version. A change here means: raise kCpuNumericsVersion
// and write the new values down (docs/exactness.md), or find out which change was not meant.
#include "baton/backend/cpu/numerics_version.h"
#include "baton/backend/runner_for_test.h"

#include <gtest/gtest.h>

#include <bit>

namespace baton::backend {
namespace {

// FNV-1a over the logits' bytes.
std::uint64_t hash_bits(const std::vector<float>& logits) {
  std::uint64_t hash = 0xCBF29CE484222325ULL;
  for (const float logit : logits) {
    const auto bits = std::bit_cast<std::uint32_t>(logit);
    for (int byte = 0; byte < 4; ++byte) {
      hash = (hash ^ ((bits >> (8 * byte)) & 0xFF)) * 0x100000001B3ULL;
    }
  }
  return hash;
}

std::uint64_t golden(const std::string& path, kv::KvDtype kv_dtype, TokenId vocabulary) {
  CpuBackendOptions options = Runner::options(path);
  options.kv_dtype = kv_dtype;
  Runner runner(options);
  return hash_bits(runner.logits(random_tokens(130, 99, vocabulary), {1 << 20}));
}

TEST(Golden, BitsOfThisNumericsVersion) {
  ASSERT_EQ(kCpuNumericsVersion, 1U);
  const std::string smollm2 = test_model_path();
  const std::string qwen3 = "tests/fixtures/model/qwen3_tiny.gguf";
  EXPECT_EQ(golden(smollm2, kv::KvDtype::kBf16, 49152), 11135115627958100004ULL);
  EXPECT_EQ(golden(smollm2, kv::KvDtype::kF32, 49152), 14828402997432055888ULL);
  EXPECT_EQ(golden(qwen3, kv::KvDtype::kBf16, 256), 11766570486410819086ULL);
  EXPECT_EQ(golden(qwen3, kv::KvDtype::kF32, 256), 6515817094981391963ULL);
}

}  // namespace
}  // namespace baton::backend
