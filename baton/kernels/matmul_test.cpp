// Matmul: every table against ref/ with memcmp, rows alone against rows in a batch, and ref/
// against double arithmetic.
#include "baton/kernels/block_values.h"
#include "baton/kernels/kernels.h"
#include "baton/kernels/test_data.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

namespace baton::kernels {
namespace {

struct Problem {
  DType dtype;
  std::int64_t n;
  std::int64_t k;
  std::int64_t rows;
  std::vector<std::byte> stored;
  std::vector<std::byte> packed;
  std::vector<float> x;
  std::vector<std::byte> activations;

  Problem(DType type, std::int64_t outputs, std::int64_t inputs, std::int64_t row_count, Kind kind,
          std::uint32_t seed)
      : dtype(type), n(outputs), k(whole_blocks(type, inputs)), rows(row_count) {
    Source source(seed);
    stored = source.weight(dtype, n, k, kind);
    packed.resize(packed_bytes(dtype, n, k));
    repack(dtype, stored.data(), n, k, 0, panel_count(n), packed.data());
    x = source.values(rows * k, kind);
    activations.resize(static_cast<std::size_t>(rows) * row_bytes());
    ref_kernels().prepare_activations(activation_format(dtype), x.data(), k, rows, k,
                                      activations.data());
  }
  [[nodiscard]] std::size_t row_bytes() const {
    return activation_row_bytes(activation_format(dtype), k);
  }
  [[nodiscard]] MatmulArgs args(float* out, std::int64_t stride) const {
    return {dtype, packed.data(), n, k, activations.data(), out, stride, false};
  }
  [[nodiscard]] std::vector<float> run(const KernelTable& table) const {
    std::vector<float> out(static_cast<std::size_t>(rows * n), -7.0F);
    table.matmul(args(out.data(), n), 0, panel_count(n), 0, rows);
    return out;
  }
};

class Matmul : public ::testing::Test {
 private:
  ScopedFloatMode mode_;
};

TEST_F(Matmul, TablesAgreeBitForBit) {
  std::uint32_t seed = 100;
  for (const DType dtype : kAllTypes) {
    for (const Kind kind : {Kind::kPlain, Kind::kWide, Kind::kTiny}) {
      for (const std::int64_t n : {1, 16, 37}) {
        for (const std::int64_t k : {32, 96, 288}) {
          for (const std::int64_t rows : {1, 2, 3, 5, 12, 13, 70}) {
            if (rows == 70 && (n != 37 || k != 288)) {
              continue;
            }
            const Problem problem(dtype, n, k, rows, kind, ++seed);
            const auto expected = problem.run(ref_kernels());
            for (const KernelTable* table : runnable_tables()) {
              ASSERT_TRUE(same_bits(expected, problem.run(*table)))
                  << table->name << ' ' << tensor::dtype_name(dtype) << " n " << n << " k " << k
                  << " rows " << rows << " kind " << static_cast<int>(kind);
            }
          }
        }
      }
    }
  }
}

// Odd K that only the plain types allow.
TEST_F(Matmul, PlainTypesTakeAnyLength) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBf16}) {
    for (const std::int64_t k : {1, 2, 7, 50}) {
      if (!check_weight_shape(dtype, 20, k)) {
        continue;
      }
      const Problem problem(dtype, 20, k, 6, Kind::kPlain, static_cast<std::uint32_t>(k));
      const auto expected = problem.run(ref_kernels());
      for (const KernelTable* table : runnable_tables()) {
        ASSERT_TRUE(same_bits(expected, problem.run(*table))) << table->name << " k " << k;
      }
    }
  }
}

// A row's result depends neither on the rows beside it, nor on the ranges of a call.
TEST_F(Matmul, RowsAndPanelsAreIndependent) {
  for (const DType dtype : kAllTypes) {
    const Problem problem(dtype, 75, 160, 41, Kind::kPlain, 9);
    for (const KernelTable* table : runnable_tables()) {
      const auto whole = problem.run(*table);
      for (const std::int64_t rows : {1, 3, 4, 11}) {
        for (const std::int64_t panels : {1, 2, 3}) {
          std::vector<float> out(whole.size(), 0.0F);
          const MatmulArgs args = problem.args(out.data(), problem.n);
          for (std::int64_t row = 0; row < problem.rows; row += rows) {
            for (std::int64_t panel = 0; panel < panel_count(problem.n); panel += panels) {
              table->matmul(args, panel, std::min(panel + panels, panel_count(problem.n)), row,
                            std::min(row + rows, problem.rows));
            }
          }
          ASSERT_TRUE(same_bits(whole, out)) << table->name << ' ' << tensor::dtype_name(dtype);
        }
      }
    }
  }
}

// More activations than stay resident: the rows are cut, the bits are not.
TEST_F(Matmul, ManyRows) {
  const Problem problem(DType::kQ4_1, 33, 2048, 400, Kind::kPlain, 10);
  std::vector<float> expected(static_cast<std::size_t>(problem.n));
  for (const KernelTable* table : runnable_tables()) {
    if (table == &ref_kernels()) {
      continue;
    }
    const auto out = problem.run(*table);
    for (const std::int64_t row : {0, 1, 191, 192, 399}) {
      MatmulArgs args = problem.args(expected.data() - row * problem.n, problem.n);
      ref_kernels().matmul(args, 0, panel_count(problem.n), row, row + 1);
      const auto from = out.begin() + row * problem.n;
      ASSERT_TRUE(same_bits(expected, std::vector<float>(from, from + problem.n))) << table->name;
    }
  }
}

TEST_F(Matmul, AccumulatesAndLeavesTheRestAlone) {
  for (const DType dtype : kAllTypes) {
    const Problem problem(dtype, 21, 64, 5, Kind::kPlain, 11);
    const auto product = problem.run(ref_kernels());
    for (const KernelTable* table : runnable_tables()) {
      const std::int64_t stride = 40;
      std::vector<float> out(static_cast<std::size_t>(problem.rows * stride), 3.0F);
      MatmulArgs args = problem.args(out.data(), stride);
      args.accumulate = true;
      table->matmul(args, 0, panel_count(problem.n), 0, problem.rows);
      for (std::int64_t row = 0; row < problem.rows; ++row) {
        for (std::int64_t i = 0; i < stride; ++i) {
          const float added =
              i < problem.n ? 3.0F + product[static_cast<std::size_t>(row * problem.n + i)] : 3.0F;
          ASSERT_EQ(out[static_cast<std::size_t>(row * stride + i)], added) << table->name;
        }
      }
    }
  }
}

// The exact product of the stored weight and the prepared activations, in double. `magnitude` is
// the sum of what is added up, before anything cancels: each rounding is relative to that at most.
struct Exact {
  double sum = 0.0;
  double magnitude = 0.0;
};
Exact exact_product(const Problem& problem, std::int64_t row, std::int64_t output) {
  Exact exact;
  const std::byte* x =
      problem.activations.data() + static_cast<std::size_t>(row) * problem.row_bytes();
  const std::byte* stored = problem.stored.data() + static_cast<std::size_t>(output) *
                                                        tensor::row_bytes(problem.dtype, problem.k);
  const auto add = [&](double scaled, double minimum, double value) {
    exact.sum += (scaled + minimum) * value;
    exact.magnitude += (std::fabs(scaled) + std::fabs(minimum)) * std::fabs(value);
  };
  const ActivationFormat format = activation_format(problem.dtype);
  if (format == ActivationFormat::kF32 || format == ActivationFormat::kBf16) {
    std::vector<float> w(static_cast<std::size_t>(problem.k));
    dequantize_row(problem.dtype, stored, problem.k, w.data());
    for (std::size_t i = 0; i < w.size(); ++i) {
      const float given = problem.x[static_cast<std::size_t>(row * problem.k) + i];
      add(w[i], 0.0, format == ActivationFormat::kBf16 ? bf16_to_f32(load_u16(x + 2 * i)) : given);
    }
    return exact;
  }
  with_quantised_type(problem.dtype, [&](auto type) {
    constexpr Packing kPacking = packing(type);
    const std::size_t stride =
        format == ActivationFormat::kQ8Halves ? sizeof(ActivationHalves) : sizeof(ActivationBlock);
    for (std::size_t block = 0; block < static_cast<std::size_t>(problem.k) / 32; ++block) {
      const std::byte* super = stored + block / kPacking.blocks * tensor::traits(type).block_bytes;
      const std::size_t sub = block % kPacking.blocks;
      const LaneBlock w = decode<type>(stored_scales<type>(super, sub), [&](std::size_t j) {
        return stored_word<type>(super, sub, j);
      });
      ActivationBlock values;
      std::memcpy(&values, x + block * stride, sizeof values);
      for (std::size_t i = 0; i < 32; ++i) {
        add(static_cast<double>(w.scales[i / 16]) * w.values[i],
            kPacking.halves == 2 ? w.minima[i / 16] : 0.0F,
            static_cast<double>(values.scale) * values.q[i]);
      }
    }
  });
  return exact;
}

TEST_F(Matmul, ReferenceIsNearDouble) {
  for (const DType dtype : kAllTypes) {
    const Problem problem(dtype, 19, 320, 4, Kind::kPlain, 12);
    const auto out = problem.run(ref_kernels());
    const auto format = activation_format(dtype);
    const bool plain = format == ActivationFormat::kF32 || format == ActivationFormat::kBf16;
    // One rounding for a step of a plain type; at most six for a block: dot, scales, two additions,
    // and the activations' scaled sum.
    const auto steps = static_cast<double>(plain ? problem.k : 6 * problem.k / 32);
    for (std::int64_t row = 0; row < problem.rows; ++row) {
      for (std::int64_t output = 0; output < problem.n; ++output) {
        const Exact exact = exact_product(problem, row, output);
        if (!std::isfinite(exact.magnitude)) {
          continue;  // random f16 bits
        }
        ASSERT_NEAR(out[static_cast<std::size_t>(row * problem.n + output)], exact.sum,
                    steps * 6e-8 * exact.magnitude)
            << tensor::dtype_name(dtype);
      }
    }
  }
}

// Extremes of the integers: all products of one sign, -128 weights, every activation at the bound.
TEST_F(Matmul, IntegersDoNotSaturate) {
  for (const DType dtype : kQuantisedTypes) {
    for (const int fill : {0x00, 0xFF, 0x80, 0x7F, 0x0F, 0xF0}) {
      for (const float x : {1.0F, -1.0F}) {
        Problem problem(dtype, 16, 64, 3, Kind::kPlain, 13);
        problem.stored.assign(problem.stored.size(), static_cast<std::byte>(fill));
        const std::uint16_t one = 0x3C00;
        const std::size_t block_bytes = tensor::traits(dtype).block_bytes;
        for (std::size_t at = 0; at < problem.stored.size(); at += block_bytes) {
          for (const std::size_t half : half_offsets(dtype)) {
            std::memcpy(problem.stored.data() + at + half, &one, 2);
          }
          if (dtype == DType::kMxfp4) {
            problem.stored[at] = std::byte{128};  // a scale of 1
          }
        }
        repack(dtype, problem.stored.data(), 16, problem.k, 0, 1, problem.packed.data());
        const std::vector<float> ones(static_cast<std::size_t>(problem.k) * 3, x * 127.0F);
        ref_kernels().prepare_activations(activation_format(dtype), ones.data(), problem.k, 3,
                                          problem.k, problem.activations.data());
        const auto expected = problem.run(ref_kernels());
        const Exact exact = exact_product(problem, 2, 15);
        // Integers: exact below 2^24, and beyond it a rounding for each addition of a block.
        const double tolerance = exact.magnitude < 0x1p24 ? 0.0 : 1e-6 * exact.magnitude;
        for (const float value : expected) {
          ASSERT_NEAR(value, exact.sum, tolerance) << tensor::dtype_name(dtype) << ' ' << fill;
        }
        for (const KernelTable* table : runnable_tables()) {
          ASSERT_TRUE(same_bits(expected, problem.run(*table)))
              << table->name << ' ' << tensor::dtype_name(dtype) << ' ' << fill;
        }
      }
    }
  }
}

// Numerics rule 5: what vdpbf16ps does is two FMAs, the odd element first; also for values whose
// products or sums are subnormal, overflow or cancel.
TEST_F(Matmul, Bf16PairsAreTwoFusedStepsOddFirst) {
  Source source(14);
  for (int round = 0; round < 200; ++round) {
    const Kind kind = round % 3 == 0 ? Kind::kPlain : round % 3 == 1 ? Kind::kWide : Kind::kTiny;
    const std::int64_t n = 64;
    const auto w = source.weight(DType::kBf16, n, 4, kind);
    std::vector<std::byte> packed(packed_bytes(DType::kBf16, n, 4));
    repack(DType::kBf16, w.data(), n, 4, 0, panel_count(n), packed.data());
    const auto x = source.values(4, round % 2 == 0 ? kind : Kind::kPlain);
    std::vector<std::byte> prepared(activation_row_bytes(ActivationFormat::kBf16, 4));
    ref_kernels().prepare_activations(ActivationFormat::kBf16, x.data(), 4, 1, 4, prepared.data());
    std::vector<float> expected(static_cast<std::size_t>(n));
    for (std::size_t output = 0; output < expected.size(); ++output) {
      float sum = 0.0F;
      for (const std::size_t i : {1, 0, 3, 2}) {
        sum = std::fma(bf16_to_f32(load_u16(w.data() + output * 8 + 2 * i)),
                       bf16_to_f32(load_u16(prepared.data() + 2 * i)), sum);
      }
      expected[output] = sum;
    }
    for (const KernelTable* table : runnable_tables()) {
      std::vector<float> out(expected.size());
      table->matmul({DType::kBf16, packed.data(), n, 4, prepared.data(), out.data(), n, false}, 0,
                    panel_count(n), 0, 1);
      for (std::size_t i = 0; i < out.size(); ++i) {
        if (std::isnan(expected[i])) {
          ASSERT_TRUE(std::isnan(out[i]));
          out[i] = expected[i];
        }
      }
      ASSERT_TRUE(same_bits(expected, out)) << table->name << " round " << round;
    }
  }
}

}  // namespace
}  // namespace baton::kernels
