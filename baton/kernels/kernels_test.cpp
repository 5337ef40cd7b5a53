// Row functions, packing, picking: every table against ref/ with memcmp, and ref/ against plain
// double arithmetic with tolerances from the number of roundings.
#include "baton/kernels/kernels.h"

#include "baton/kernels/test_data.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <numbers>
#include <string>
#include <vector>

namespace baton::kernels {
namespace {

constexpr float kEpsilon = std::numeric_limits<float>::epsilon();
constexpr Kind kKinds[] = {Kind::kPlain, Kind::kWide, Kind::kTiny};
constexpr std::int64_t kLengths[] = {1, 2, 7, 8, 15, 16, 17, 31, 33, 64, 95, 576};

class Rows : public ::testing::Test {
 private:
  ScopedFloatMode mode_;
};

TEST(Pick, TellsWhatIsMissing) {
  EXPECT_EQ(parse_isa("avx2"), Isa::kAvx2);
  EXPECT_EQ(parse_isa("auto"), Isa::kAuto);
  EXPECT_EQ(parse_isa("sse9").error().code, ErrorCode::kInvalidArgument);
  ASSERT_TRUE(pick_kernels(Isa::kRef).has_value());
  EXPECT_STREQ((*pick_kernels(Isa::kRef))->name, "ref");
  const auto best = pick_kernels(Isa::kAuto);
  ASSERT_TRUE(best.has_value());
  EXPECT_EQ(*best, runnable_tables().back());
  for (const Isa isa : {Isa::kAvx2, Isa::kAvx512}) {
    const auto picked = pick_kernels(isa);
    const bool runs = isa == Isa::kAvx2 ? cpu_features().avx2 : cpu_features().avx512;
    ASSERT_EQ(picked.has_value(), runs);
    if (!runs) {
      EXPECT_EQ(picked.error().code, ErrorCode::kUnsupported);
      EXPECT_NE(picked.error().message.find("it lacks avx"), std::string::npos);
    }
  }
}

TEST_F(Rows, HalfConversionsAreExact) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const int exponent = static_cast<int>((bits >> 10U) & 31U);
    const double mantissa = bits & 0x3FFU;
    if (exponent == 31) {
      continue;
    }
    double expected =
        exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024.0 + mantissa, exponent - 25);
    expected = (bits & 0x8000U) != 0 ? -expected : expected;
    ASSERT_EQ(static_cast<double>(f16_to_f32(half)), expected) << bits;
    const float widened = bf16_to_f32(half);
    if (std::isnormal(widened)) {
      ASSERT_EQ(f32_to_bf16(widened), half);
    }
  }
  for (std::uint32_t bits = 0; bits < 0x7C00; ++bits) {
    // A half, the tie to the next one, and the floats beside the tie.
    const auto half = static_cast<std::uint16_t>(bits);
    const float value = f16_to_f32(half);
    const float next = bits == 0x7BFF ? 65536.0F : f16_to_f32(static_cast<std::uint16_t>(bits + 1));
    const float tie = value + (next - value) / 2.0F;
    ASSERT_EQ(f32_to_f16(value), half);
    ASSERT_EQ(f32_to_f16(-value), half | 0x8000U);
    ASSERT_EQ(f32_to_f16(tie), half + (bits & 1U)) << bits;
    ASSERT_EQ(f32_to_f16(std::nextafter(tie, 0.0F)), half) << bits;
    ASSERT_EQ(f32_to_f16(std::nextafter(tie, 1e9F)), half + 1) << bits;
  }
  EXPECT_EQ(f32_to_f16(1e30F), 0x7C00);
  EXPECT_EQ(f32_to_f16(std::bit_cast<float>(0xFF800001U)), 0xFE00);
  EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(0x3F808000U)), 0x3F80);  // ties to even
  EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(0x3F818000U)), 0x3F82);
  EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(0x80000001U)), 0x8000);
  EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(0x7F800001U)), 0x7FC0);
  EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(0x7F7FFFFFU)), 0x7F80);
}

TEST_F(Rows, DequantisedRowsAreTheSamePackedOrNot) {
  Source source(1);
  for (const DType dtype : kAllTypes) {
    for (const std::int64_t n : {1, 15, 16, 17, 40}) {
      const std::int64_t k = 2 * whole_blocks(dtype, 33);
      const auto stored = source.weight(dtype, n, k, Kind::kPlain);
      std::vector<std::byte> packed(packed_bytes(dtype, n, k));
      for (std::int64_t panel = panel_count(n); panel-- > 0;) {
        repack(dtype, stored.data(), n, k, panel, panel + 1, packed.data());
      }
      for (std::int64_t row = 0; row < n; ++row) {
        std::vector<float> plain(static_cast<std::size_t>(k));
        std::vector<float> unpacked(static_cast<std::size_t>(k));
        dequantize_row(dtype,
                       stored.data() + static_cast<std::size_t>(row) * tensor::row_bytes(dtype, k),
                       k, plain.data());
        dequantize_packed_row(dtype, packed.data(), k, row, unpacked.data());
        ASSERT_TRUE(same_bits(plain, unpacked)) << tensor::dtype_name(dtype) << " row " << row;
      }
    }
  }
}

std::vector<std::byte> from_hex(const std::string& hex) {
  std::vector<std::byte> bytes(hex.size() / 2);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::byte>(std::stoi(hex.substr(2 * i, 2), nullptr, 16));
  }
  return bytes;
}

// Against the `gguf` package: tests/fixtures/kernels/make_quants.py.
TEST_F(Rows, DequantisedValuesAreGgufs) {
  std::ifstream file("tests/fixtures/kernels/quants.txt");  // tests run in the source folder
  ASSERT_TRUE(file) << "tests/fixtures/kernels/quants.txt is missing";
  std::map<std::string, int, std::less<>> seen;
  std::string name;
  std::string stored_hex;
  std::string values_hex;
  while (file >> name >> stored_hex >> values_hex) {
    const auto* dtype = std::ranges::find(kAllTypes, name, tensor::dtype_name);
    ASSERT_NE(dtype, std::end(kAllTypes)) << name;
    const auto stored = from_hex(stored_hex);
    const auto bytes = from_hex(values_hex);
    std::vector<float> expected(bytes.size() / sizeof(float));
    std::memcpy(expected.data(), bytes.data(), bytes.size());
    const auto k = static_cast<std::int64_t>(expected.size());
    ASSERT_EQ(stored.size(), tensor::row_bytes(*dtype, k));
    std::vector<float> values(expected.size());
    dequantize_row(*dtype, stored.data(), k, values.data());
    for (std::size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(values[i], expected[i]) << name << " value " << i;
    }
    ++seen[name];
  }
  for (const DType dtype : kQuantisedTypes) {
    EXPECT_GT(seen[std::string(tensor::dtype_name(dtype))], 0) << tensor::dtype_name(dtype);
  }
}

// No type takes more than a twentieth more memory packed than in the file.
TEST(Pack, StaysNearTheFilesSize) {
  for (const DType dtype : kAllTypes) {
    const auto stored = static_cast<double>(16 * tensor::row_bytes(dtype, 1024));
    EXPECT_LE(static_cast<double>(packed_bytes(dtype, 16, 1024)), 1.05 * stored)
        << tensor::dtype_name(dtype);
  }
}

TEST(Pack, RefusesPartsOfBlocks) {
  EXPECT_TRUE(check_weight_shape(DType::kQ4_1, 5, 64).has_value());
  EXPECT_EQ(check_weight_shape(DType::kQ4_1, 5, 48).error().code, ErrorCode::kUnsupported);
  const auto refused = check_weight_shape(DType::kQ4K, 5, 576);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().message,
            "a q4_k weight of 5 outputs and 576 inputs: inputs must be a positive multiple of 256");
  EXPECT_FALSE(check_weight_shape(DType::kBf16, 5, 3).has_value());
  EXPECT_TRUE(check_weight_shape(DType::kF16, 5, 3).has_value());
  EXPECT_FALSE(check_weight_shape(DType::kF32, 0, 3).has_value());
  EXPECT_EQ(packed_bytes(DType::kQ8_0, 17, 64), 2U * 16 * 68);
  EXPECT_EQ(activation_row_bytes(ActivationFormat::kF32, 1024), 4096U + 64U);
}

TEST_F(Rows, ActivationsAreQuantisedAlike) {
  Source source(2);
  for (const Kind kind : kKinds) {
    for (const ActivationFormat format : {ActivationFormat::kF32, ActivationFormat::kBf16,
                                          ActivationFormat::kQ8, ActivationFormat::kQ8Halves}) {
      const std::int64_t k = format >= ActivationFormat::kQ8 ? 96 : 90;
      const std::int64_t rows = 9;
      const auto x = source.values(rows * (k + 5), kind);
      std::vector<std::byte> expected(static_cast<std::size_t>(rows) *
                                      activation_row_bytes(format, k));
      ref_kernels().prepare_activations(format, x.data(), k + 5, rows, k, expected.data());
      for (const KernelTable* table : runnable_tables()) {
        std::vector<std::byte> out(expected.size());
        table->prepare_activations(format, x.data(), k + 5, rows, k, out.data());
        ASSERT_TRUE(same_bits(expected, out)) << table->name;
      }
    }
  }
}

TEST_F(Rows, QuantisedActivationsAreNear) {
  Source source(3);
  for (const Kind kind : {Kind::kPlain, Kind::kWide}) {
    const auto x = source.values(3200, kind);
    std::vector<ActivationBlock> blocks(100);
    ref_kernels().prepare_activations(ActivationFormat::kQ8, x.data(), 3200, 1, 3200,
                                      reinterpret_cast<std::byte*>(blocks.data()));
    for (std::size_t b = 0; b < blocks.size(); ++b) {
      const ActivationBlock& block = blocks[b];
      std::int32_t sum = 0;
      for (std::size_t i = 0; i < 32; ++i) {
        sum += block.q[i];
        ASSERT_GE(block.q[i], -127);
        // Half a step, and a rounding of the quotient of at most 127 * 2^-23 steps.
        ASSERT_NEAR(block.scale * static_cast<float>(block.q[i]), x[32 * b + i],
                    block.scale * 0.5001F);
      }
      EXPECT_EQ(block.minus_8_sums, -8 * sum);
      EXPECT_EQ(block.minus_128_sums, -128 * sum);
    }
  }
  const auto x = source.values(64, Kind::kPlain);
  ActivationHalves halves[2];
  ref_kernels().prepare_activations(ActivationFormat::kQ8Halves, x.data(), 64, 1, 64,
                                    reinterpret_cast<std::byte*>(halves));
  for (const ActivationHalves& block : halves) {
    EXPECT_EQ((block.minus_32_sums[0] + block.minus_32_sums[1]) * 4, block.whole.minus_128_sums);
    EXPECT_NEAR(block.scaled_sums[0] + block.scaled_sums[1], block.whole.scaled_sum, 1e-5F);
    EXPECT_EQ(block.scaled_sums[1],
              block.whole.scale * static_cast<float>(-block.minus_32_sums[1]) / 32.0F);
  }
  // Not a number and infinity give bounded integers, the same everywhere.
  std::vector<float> odd(32, 1.0F);
  odd[3] = std::numeric_limits<float>::quiet_NaN();
  odd[4] = std::numeric_limits<float>::infinity();
  for (const KernelTable* table : runnable_tables()) {
    ActivationBlock block;
    table->prepare_activations(ActivationFormat::kQ8, odd.data(), 32, 1, 32,
                               reinterpret_cast<std::byte*>(&block));
    EXPECT_EQ(block.q[3], -127) << table->name;
    EXPECT_EQ(block.q[4], -127) << table->name;
    EXPECT_EQ(block.q[5], 0) << table->name;
  }
}

TEST_F(Rows, RmsNorm) {
  Source source(4);
  for (const Kind kind : kKinds) {
    for (const std::int64_t n : kLengths) {
      const std::int64_t rows = 3;
      const auto x = source.values(rows * n, kind);
      const auto residual = source.values(rows * n, kind);
      const auto weight = source.values(n, Kind::kPlain);
      for (const bool with_residual : {false, true}) {
        std::vector<float> expected_x;
        std::vector<float> expected;
        for (const KernelTable* table : runnable_tables()) {
          std::vector<float> input = x;
          std::vector<float> out(x.size());
          table->rmsnorm(input.data(), n, with_residual ? residual.data() : nullptr, weight.data(),
                         1e-5F, rows, n, out.data(), n);
          if (table == &ref_kernels()) {
            expected_x = input;
            expected = out;
          }
          ASSERT_TRUE(same_bits(expected_x, input)) << table->name << " n " << n;
          ASSERT_TRUE(same_bits(expected, out)) << table->name << " n " << n;
          if (kind != Kind::kPlain) {
            continue;
          }
          for (std::int64_t row = 0; row < rows; ++row) {
            double squares = 0.0;
            for (std::int64_t i = 0; i < n; ++i) {
              const double value = input[static_cast<std::size_t>(row * n + i)];
              squares += value * value;
            }
            const double scale = 1.0 / std::sqrt(squares / static_cast<double>(n) + 1e-5);
            for (std::int64_t i = 0; i < n; ++i) {
              const auto at = static_cast<std::size_t>(row * n + i);
              const double wanted =
                  input[at] * scale * static_cast<double>(weight[static_cast<std::size_t>(i)]);
              // n/16 + 4 roundings of the sum (halved by the root), and five more.
              const double roundings = static_cast<double>(n) / 32.0 + 8.0;
              ASSERT_NEAR(out[at], wanted, roundings * kEpsilon * std::fabs(wanted) + 1e-30);
            }
          }
        }
      }
    }
  }
}

TEST_F(Rows, ExpIsNearAndAlike) {
  std::vector<float> x;
  for (int i = -200000; i <= 200000; ++i) {
    x.push_back(static_cast<float>(i) * 0.00045F);
  }
  for (const float special :
       {0.0F, -0.0F, 1e-40F, 1e30F, -1e30F, 88.72283F, 88.7229F, -87.33654F, -87.3366F,
        std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()}) {
    x.push_back(special);
  }
  std::vector<float> expected(x.size());
  const auto n = static_cast<std::int64_t>(x.size());
  ref_kernels().exp(x.data(), n, expected.data());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double wanted = std::exp(static_cast<double>(x[i]));
    if (x[i] < -87.33F) {
      ASSERT_LT(expected[i], 1.3e-38F) << x[i];
    } else if (x[i] > 88.722F) {
      ASSERT_GT(expected[i], 3.3e38F) << x[i];
    } else {
      ASSERT_NEAR(expected[i], wanted, 1.01 * kEpsilon * wanted) << x[i];
    }
  }
  for (const KernelTable* table : runnable_tables()) {
    std::vector<float> out(x.size());
    table->exp(x.data(), n, out.data());
    ASSERT_TRUE(same_bits(expected, out)) << table->name;
  }
}

TEST_F(Rows, ElementwiseAndSums) {
  Source source(5);
  for (const Kind kind : kKinds) {
    for (const std::int64_t n : kLengths) {
      const auto gate = source.values(n, kind);
      const auto up = source.values(n, kind);
      std::vector<float> expected(gate.size());
      std::vector<float> expected_sum = gate;
      ref_kernels().silu_mul(gate.data(), up.data(), n, expected.data());
      std::vector<float> expected_gelu(gate.size());
      ref_kernels().gelu_mul(gate.data(), up.data(), n, expected_gelu.data());
      ref_kernels().add(expected_sum.data(), up.data(), n);
      for (const KernelTable* table : runnable_tables()) {
        std::vector<float> out(gate.size());
        table->silu_mul(gate.data(), up.data(), n, out.data());
        ASSERT_TRUE(same_bits(expected, out)) << table->name;
        table->gelu_mul(gate.data(), up.data(), n, out.data());
        ASSERT_TRUE(same_bits(expected_gelu, out)) << table->name;
        std::vector<float> sum = gate;
        table->add(sum.data(), up.data(), n);
        ASSERT_TRUE(same_bits(expected_sum, sum)) << table->name;
        const std::vector<float> pieces{table->max(gate.data(), n),
                                        table->sum_exp(gate.data(), n, 0.5F)};
        const std::vector<float> expected_pieces{ref_kernels().max(gate.data(), n),
                                                 ref_kernels().sum_exp(gate.data(), n, 0.5F)};
        ASSERT_TRUE(same_bits(expected_pieces, pieces)) << table->name << " n " << n;
        EXPECT_EQ(pieces[0], *std::max_element(gate.begin(), gate.end()));
        EXPECT_EQ(table->argmax(gate.data(), n),
                  std::max_element(gate.begin(), gate.end()) - gate.begin());
      }
      if (kind == Kind::kPlain) {
        double sum = 0.0;
        for (std::size_t i = 0; i < gate.size(); ++i) {
          const double g = gate[i];
          const double wanted = g / (1.0 + std::exp(-g)) * static_cast<double>(up[i]);
          ASSERT_NEAR(expected[i], wanted, 4.0 * kEpsilon * std::fabs(wanted) + 1e-37);
          sum += std::exp(g - 0.5);
        }
        ASSERT_NEAR(ref_kernels().sum_exp(gate.data(), n, 0.5F), sum,
                    (static_cast<double>(n) / 16 + 6) * kEpsilon * sum);
      }
    }
  }
}

// gelu goes through tanh: its polynomial, its exponential and where they meet.
TEST_F(Rows, GeluIsNear) {
  std::vector<float> gate;
  for (int i = -60000; i <= 60000; ++i) {
    gate.push_back(static_cast<float>(i) * 2e-4F);
  }
  const std::vector<float> up(gate.size(), 1.0F);
  std::vector<float> expected(gate.size());
  const auto n = static_cast<std::int64_t>(gate.size());
  ref_kernels().gelu_mul(gate.data(), up.data(), n, expected.data());
  for (std::size_t i = 0; i < gate.size(); ++i) {
    const double g = gate[i];
    const double inner = std::sqrt(2.0 / std::numbers::pi) * (g + 0.044715 * g * g * g);
    // 1 + tanh loses what it cancels: a few roundings of 1, times g / 2.
    ASSERT_NEAR(expected[i], 0.5 * g * (1.0 + std::tanh(inner)), 4.0 * kEpsilon * std::fabs(g))
        << g;
  }
  for (const KernelTable* table : runnable_tables()) {
    std::vector<float> out(gate.size());
    table->gelu_mul(gate.data(), up.data(), n, out.data());
    ASSERT_TRUE(same_bits(expected, out)) << table->name;
  }
}

TEST_F(Rows, ArgmaxTakesTheLowestOfEquals) {
  std::vector<float> x(100, -1.0F);
  x[37] = x[38] = x[70] = 2.0F;
  for (const KernelTable* table : runnable_tables()) {
    EXPECT_EQ(table->argmax(x.data(), 100), 37) << table->name;
  }
}

TEST_F(Rows, RopeTablesAreExact) {
  for (const double base : {10000.0, 100000.0, 1e6}) {
    const RopeTable table =
        build_rope_table({.positions = 9000, .rotated_lanes = 64, .base = base});
    for (std::int64_t position = 0; position < 9000; position += 13) {
      for (std::int64_t i = 0; i < 32; ++i) {
        const double angle =
            static_cast<double>(position) * std::pow(base, -static_cast<double>(2 * i) / 64.0);
        const auto at = static_cast<std::size_t>(position * 32 + i);
        ASSERT_NEAR(table.cosine[at], std::cos(angle), 0.51 * kEpsilon + 1e-11);
        ASSERT_NEAR(table.sine[at], std::sin(angle), 0.51 * kEpsilon + 1e-11);
      }
    }
  }
  const RopeTable scaled = build_rope_table({.positions = 8,
                                             .rotated_lanes = 4,
                                             .base = 100.0,
                                             .linear_factor = 2.0,
                                             .frequency_factors = {1.0F, 4.0F},
                                             .magnitude = 3.0F});
  EXPECT_NEAR(scaled.sine[14], 3.0 * std::sin(3.5), 1e-6);
  EXPECT_NEAR(scaled.cosine[15], 3.0 * std::cos(3.5 * 0.1 / 4.0), 1e-6);
}

TEST_F(Rows, RopeTurnsPairs) {
  Source source(6);
  for (const std::int64_t lanes : {2, 6, 16, 34, 64, 80, 128}) {
    const std::int64_t head_dim = lanes + 2;  // two lanes stay as they are
    const RopeTable table = build_rope_table({.positions = 70, .rotated_lanes = lanes});
    const std::vector<std::int32_t> positions{0, 69, 3};
    const std::int64_t stride = 2 * head_dim + 3;
    for (const RopeStyle style : {RopeStyle::kInterleaved, RopeStyle::kHalfSplit}) {
      const auto x = source.values(3 * stride, Kind::kPlain);
      std::vector<float> expected = x;
      ref_kernels().rope(table, style, positions.data(), 3, 2, head_dim, expected.data(), stride);
      for (const KernelTable* kernels : runnable_tables()) {
        std::vector<float> out = x;
        kernels->rope(table, style, positions.data(), 3, 2, head_dim, out.data(), stride);
        ASSERT_TRUE(same_bits(expected, out)) << kernels->name << " lanes " << lanes;
      }
      const bool adjacent = style == RopeStyle::kInterleaved;
      for (std::int64_t i = 0; i < lanes / 2; ++i) {
        const std::int64_t base = stride + head_dim;  // token 1 at position 69, head 1
        const auto first = static_cast<std::size_t>(base + (adjacent ? 2 * i : i));
        const auto second = static_cast<std::size_t>(base + (adjacent ? 2 * i + 1 : i + lanes / 2));
        const double angle =
            69.0 * std::pow(10000.0, -2.0 * static_cast<double>(i) / static_cast<double>(lanes));
        EXPECT_NEAR(expected[first], x[first] * std::cos(angle) - x[second] * std::sin(angle),
                    4.0 * kEpsilon);
        EXPECT_NEAR(expected[second], x[first] * std::sin(angle) + x[second] * std::cos(angle),
                    4.0 * kEpsilon);
      }
    }
  }
}

}  // namespace
}  // namespace baton::kernels
