// The matmul of the reference table: one output element at a time, K in order.
#include "baton/kernels/block_values.h"
#include "baton/kernels/half.h"
#include "baton/kernels/ref/scalar.h"
#include "baton/kernels/ref/table.h"

#include <cstring>

namespace baton::kernels::ref {
namespace {

constexpr std::size_t kLanes = kPanelOutputs;

struct Element {
  const std::byte* panel;
  std::size_t lane;
  const std::byte* activations;
  std::int64_t k;
};

float plain_dot(DType dtype, const Element& at) {
  float sum = 0.0F;
  for (std::int64_t i = 0; i < at.k; ++i) {
    const std::size_t index = static_cast<std::size_t>(i) * kLanes + at.lane;
    float x;
    std::memcpy(&x, at.activations + static_cast<std::size_t>(i) * sizeof x, sizeof x);
    float w;
    if (dtype == DType::kF32) {
      std::memcpy(&w, at.panel + index * sizeof w, sizeof w);
    } else {
      w = f16_to_f32(load_u16(at.panel + 2 * index));
    }
    sum = fma(w, x, sum);
  }
  return sum;
}

float bf16_dot(const Element& at) {
  float sum = 0.0F;
  for (std::int64_t pair = 0; pair < at.k / 2; ++pair) {
    const std::byte* w = at.panel + (static_cast<std::size_t>(pair) * kLanes + at.lane) * 4;
    const std::byte* x = at.activations + static_cast<std::size_t>(pair) * 4;
    sum = fma(bf16_to_f32(load_u16(w + 2)), bf16_to_f32(load_u16(x + 2)), sum);
    sum = fma(bf16_to_f32(load_u16(w)), bf16_to_f32(load_u16(x)), sum);
  }
  return sum;
}

// The integer dot of one half of a block: exact.
std::int32_t half_dot(const LaneBlock& w, const ActivationBlock& x, std::size_t half) {
  std::int32_t dot = 0;
  for (std::size_t i = 16 * half; i < 16 * (half + 1); ++i) {
    dot += w.values[i] * x.q[i];
  }
  return dot;
}

// Scales over 32 values: dot, scale, minimum. Scales over 16 (Q6_K): both halves are scaled before
// they meet the activations' scale; minima over 16 (Q2_K) come one after the other.
template <DType kType>
float add_block(float sum, const LaneBlock& w, const std::byte* activations) {
  constexpr bool kHasMinimum = packing(kType).halves == 2;
  ActivationHalves x{};
  constexpr bool kInHalves = kType == DType::kQ6K || kType == DType::kQ2K;
  std::memcpy(&x, activations, kInHalves ? sizeof x : sizeof x.whole);
  const std::int32_t low = half_dot(w, x.whole, 0);
  const std::int32_t high = half_dot(w, x.whole, 1);
  if (kType == DType::kQ6K) {
    const float scaled = static_cast<float>(low) * w.scales[0];
    sum = fma(fma(static_cast<float>(high), w.scales[1], scaled), x.whole.scale, sum);
  } else {
    sum = fma(static_cast<float>(low + high) * w.scales[0], x.whole.scale, sum);
  }
  if (kType == DType::kQ2K) {
    return fma(w.minima[1], x.scaled_sums[1], fma(w.minima[0], x.scaled_sums[0], sum));
  }
  return kHasMinimum ? fma(w.minima[0], x.whole.scaled_sum, sum) : sum;
}

float quantised_dot(DType dtype, const Element& at) {
  float sum = 0.0F;
  with_quantised_type(dtype, [&](auto type) {
    constexpr Packing kPacking = packing(type);
    const std::size_t x_bytes = activation_format(type) == ActivationFormat::kQ8Halves
                                    ? sizeof(ActivationHalves)
                                    : sizeof(ActivationBlock);
    for (std::size_t block = 0; block < static_cast<std::size_t>(at.k / kQuantBlock); ++block) {
      const std::byte* super = at.panel + block / kPacking.blocks * packed_super_bytes(kPacking);
      const std::size_t sub = block % kPacking.blocks;
      const LaneBlock w =
          decode<type>(packed_scales<type>(super, sub, at.lane),
                       [&](std::size_t j) { return packed_word<type>(super, sub, at.lane, j); });
      sum = add_block<type>(sum, w, at.activations + block * x_bytes);
    }
  });
  return sum;
}

float dot(DType dtype, const Element& at) {
  switch (activation_format(dtype)) {
    case ActivationFormat::kF32:
      return plain_dot(dtype, at);
    case ActivationFormat::kBf16:
      return bf16_dot(at);
    case ActivationFormat::kQ8:
    case ActivationFormat::kQ8Halves:
      return quantised_dot(dtype, at);
  }
  return 0.0F;
}

}  // namespace

void matmul(const MatmulArgs& args, std::int64_t first_panel, std::int64_t last_panel,
            std::int64_t first_row, std::int64_t last_row) {
  const std::size_t panel_bytes = packed_panel_bytes(args.dtype, args.k);
  const std::size_t row_bytes = activation_row_bytes(activation_format(args.dtype), args.k);
  for (std::int64_t panel = first_panel; panel < last_panel; ++panel) {
    for (std::int64_t row = first_row; row < last_row; ++row) {
      for (std::int64_t lane = 0; lane < kPanelOutputs; ++lane) {
        const std::int64_t output = panel * kPanelOutputs + lane;
        if (output >= args.n) {
          break;
        }
        const Element at{args.packed + static_cast<std::size_t>(panel) * panel_bytes,
                         static_cast<std::size_t>(lane),
                         args.activations + static_cast<std::size_t>(row) * row_bytes, args.k};
        float& out = args.out[row * args.out_stride + output];
        const float value = dot(args.dtype, at);
        out = args.accumulate ? out + value : value;
      }
    }
  }
}

}  // namespace baton::kernels::ref
