// Every quantised type through a whole small model: the promise (chunks, threads, instruction
// sets), logits near those of the same weights in F32, a tied embedding read back from its packed
// form, and what is said about rows that are not whole blocks.
#include "baton/backend/cpu/numerics_version.h"
#include "baton/backend/runner_for_test.h"
#include "baton/files/gguf_builder_for_test.h"
#include "baton/kernels/half.h"
#include "baton/kernels/pack.h"
#include "baton/tensor/dtype.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

namespace baton::backend {
namespace {

using tensor::DType;
using ::testing::HasSubstr;

constexpr std::int64_t kDim = 256;
constexpr std::int64_t kFfn = 512;
constexpr std::int64_t kVocabulary = 300;  // the last panel is not full
constexpr std::uint32_t kF32 = 0;

struct Quantised {
  DType dtype;
  std::uint32_t number;  // of ggml
  std::vector<std::size_t> halves;
  float minimum;         // in units of the scale, so that values lie around zero
  std::uint64_t golden;  // of the logits in this numerics version, see tests/model/golden_test.cpp
};
const Quantised kTypes[] = {
    {DType::kQ4_0, 2, {0}, 0.0F, 1772371239152698525ULL},
    {DType::kQ4_1, 3, {0, 2}, -7.5F, 7765335408016774319ULL},
    {DType::kQ5_0, 6, {0}, 0.0F, 5745492153668876102ULL},
    {DType::kQ5_1, 7, {0, 2}, -15.5F, 13129364866152361844ULL},
    {DType::kQ8_0, 8, {0}, 0.0F, 6021414947905049894ULL},
    {DType::kQ2K, 10, {80, 82}, 1.5F, 8957572708811505367ULL},
    {DType::kQ3K, 11, {108}, 0.0F, 7067481497723355609ULL},
    {DType::kQ4K, 12, {0, 2}, 7.5F, 8794505722870259091ULL},
    {DType::kQ5K, 13, {0, 2}, 15.5F, 14737863107282739959ULL},
    {DType::kQ6K, 14, {208}, 0.0F, 4490202302645198996ULL},
    {DType::kIq4Nl, 20, {0}, 0.0F, 14111553021409281725ULL},
    {DType::kMxfp4, 39, {}, 0.0F, 5856390890993997017ULL},
};

// Random codes of about unit variance over the inputs, as GGUF stores them, and as f32.
struct Weight {
  std::string stored;
  std::string widened;

  Weight(const Quantised& type, std::int64_t n, std::int64_t k, unsigned seed) {
    std::mt19937 random(seed);
    const std::size_t row_bytes = tensor::row_bytes(type.dtype, k);
    stored.resize(static_cast<std::size_t>(n) * row_bytes);
    for (char& byte : stored) {
      byte = static_cast<char>(random());
    }
    set_scales(type, 1.0F);
    widen(type, n, k);
    double squares = 0.0;
    for (std::int64_t i = 0; i < n * k; ++i) {
      squares += std::pow(static_cast<double>(value(i)), 2.0);
    }
    const double spread = std::sqrt(squares / static_cast<double>(n));
    set_scales(type, static_cast<float>(1.0 / spread));
    widen(type, n, k);
  }

 private:
  [[nodiscard]] float value(std::int64_t i) const {
    float read;
    std::memcpy(&read, widened.data() + 4 * i, sizeof read);
    return read;
  }
  void set_scales(const Quantised& type, float scale) {
    const float factors[2] = {scale, scale * type.minimum};
    const std::size_t block = tensor::traits(type.dtype).block_bytes;
    for (std::size_t at = 0; at < stored.size(); at += block) {
      for (std::size_t i = 0; i < type.halves.size(); ++i) {
        const std::uint16_t half = kernels::f32_to_f16(factors[i]);
        std::memcpy(stored.data() + at + type.halves[i], &half, sizeof half);
      }
      if (type.dtype == DType::kMxfp4) {
        stored[at] = static_cast<char>(128 + std::lround(std::log2(scale)));
      }
    }
  }
  void widen(const Quantised& type, std::int64_t n, std::int64_t k) {
    widened.resize(static_cast<std::size_t>(n * k) * sizeof(float));
    const std::size_t row_bytes = tensor::row_bytes(type.dtype, k);
    for (std::int64_t row = 0; row < n; ++row) {
      kernels::dequantize_row(type.dtype,
                              reinterpret_cast<const std::byte*>(stored.data()) +
                                  static_cast<std::size_t>(row) * row_bytes,
                              k, reinterpret_cast<float*>(widened.data()) + row * k);
    }
  }
};

// A Llama of one layer; the embedding is tied. As stored, or widened to F32.
std::string small_llama(const Quantised& type, bool widened) {
  files::GgufBuilder builder;
  builder.string("general.architecture", "llama");
  builder.u32("llama.block_count", 1);
  builder.u32("llama.context_length", 512);
  builder.u32("llama.embedding_length", kDim);
  builder.u32("llama.feed_forward_length", kFfn);
  builder.u32("llama.attention.head_count", 4);
  builder.u32("llama.attention.head_count_kv", 2);
  builder.f32("llama.attention.layer_norm_rms_epsilon", 1e-5F);
  builder.f32("llama.rope.freq_base", 10000.0F);
  unsigned seed = type.number;
  const auto matrix = [&](std::string_view name, std::int64_t n, std::int64_t k) {
    const Weight weight(type, n, k, seed += 100);
    builder.tensor(name, widened ? kF32 : type.number,
                   {static_cast<std::uint64_t>(k), static_cast<std::uint64_t>(n)},
                   widened ? weight.widened : weight.stored);
  };
  const auto ones = [&](std::string_view name) {
    std::string bytes;
    const float one = 1.0F;
    for (std::int64_t i = 0; i < kDim; ++i) {
      bytes.append(reinterpret_cast<const char*>(&one), sizeof one);
    }
    builder.tensor(name, kF32, {static_cast<std::uint64_t>(kDim)}, bytes);
  };
  matrix("token_embd.weight", kVocabulary, kDim);
  ones("output_norm.weight");
  ones("blk.0.attn_norm.weight");
  ones("blk.0.ffn_norm.weight");
  matrix("blk.0.attn_q.weight", kDim, kDim);
  matrix("blk.0.attn_k.weight", kDim / 2, kDim);
  matrix("blk.0.attn_v.weight", kDim / 2, kDim);
  matrix("blk.0.attn_output.weight", kDim, kDim);
  matrix("blk.0.ffn_gate.weight", kFfn, kDim);
  matrix("blk.0.ffn_up.weight", kFfn, kDim);
  matrix("blk.0.ffn_down.weight", kDim, kFfn);
  return builder.build();
}

TEST(QuantisedModel, EveryTypeKeepsThePromiseAndIsNearF32) {
  ASSERT_EQ(kCpuNumericsVersion, 1U);
  for (const Quantised& type : kTypes) {
    SCOPED_TRACE(tensor::dtype_name(type.dtype));
    const files::TemporaryFile stored(small_llama(type, false));
    const files::TemporaryFile widened(small_llama(type, true));
    CpuBackendOptions options = Runner::options(stored.path());
    options.kv_memory_bytes = 4ULL << 20;
    Runner two(options);
    const auto tokens = random_tokens(75, 3, kVocabulary);
    const auto logits = two.logits(tokens, {1 << 20});
    EXPECT_EQ(hash_bits(logits), type.golden);
    EXPECT_TRUE(same_bits(logits, two.logits(tokens, {40, 1, 33})));
    options.threads = 1;
    options.isa = "ref";
    Runner ref(options);
    EXPECT_TRUE(same_bits(logits, ref.logits(tokens, {74, 1})));

    options.model_path = widened.path();
    options.isa = "auto";
    Runner plain(options);
    const auto expected = plain.logits(tokens, {1 << 20});
    double squares = 0.0;
    double differences = 0.0;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      squares += std::pow(static_cast<double>(expected[i]), 2.0);
      differences += std::pow(static_cast<double>(expected[i] - logits[i]), 2.0);
    }
    // What differs is the activations' rounding to 8 bits: uniform over a step of about 3 / 127 of
    // their deviation, 0.7 % each, in seven products one after the other and side by side. A wrong
    // code or scale in one of 32 values is above 10 %.
    EXPECT_LT(std::sqrt(differences / squares), 0.03);
  }
}

TEST(QuantisedModel, RowsOfPartsOfBlocksAreRefused) {
  files::GgufBuilder builder;
  builder.tensor("blk.0.attn_q.weight", 12, {576, 64}, 64 * 324);
  const files::TemporaryFile file(builder.build());
  const auto made = make_cpu_backend(Runner::options(file.path()));
  ASSERT_FALSE(made);
  EXPECT_THAT(made.error().message,
              ::testing::AllOf(HasSubstr("blk.0.attn_q.weight"), HasSubstr("rows of 576"),
                               HasSubstr("Q4_K needs a multiple of 256")));
}

}  // namespace
}  // namespace baton::backend
