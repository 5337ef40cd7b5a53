// The bits of the logits of this numerics version. A change here means: raise kCpuNumericsVersion
// and write the new values down (docs/exactness.md), or find out which change was not meant.
#include "baton/backend/cpu/numerics_version.h"
#include "baton/backend/runner_for_test.h"

#include <gtest/gtest.h>

namespace baton::backend {
namespace {

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
  EXPECT_EQ(golden(smollm2, kv::KvDtype::kF16, 49152), 1071616506093782173ULL);
  EXPECT_EQ(golden(smollm2, kv::KvDtype::kQ8_0, 49152), 10624728861240906830ULL);
  EXPECT_EQ(golden(qwen3, kv::KvDtype::kF16, 256), 15102775769556361558ULL);
  EXPECT_EQ(golden(qwen3, kv::KvDtype::kQ8_0, 256), 6693786994089065347ULL);
}

}  // namespace
}  // namespace baton::backend
