// The matmul of the reference table: one output element at a time, K in order.
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

// Stored value i of a packed block's lane, bias taken off.
std::int32_t stored_value(DType dtype, const std::byte* values, std::size_t lane, std::size_t i) {
  if (dtype == DType::kQ8_0) {
    return static_cast<int>(values[i / 4 * 4 * kLanes + 4 * lane + i % 4]) - 128;
  }
  const std::size_t in_half = i % 16;
  const auto byte = static_cast<int>(values[in_half / 4 * 4 * kLanes + 4 * lane + in_half % 4]);
  const int nibble = i < 16 ? byte & 15 : byte >> 4;
  return dtype == DType::kQ4_0 ? nibble - 8 : nibble;
}

float quantised_dot(DType dtype, const Element& at) {
  const bool has_minimum = dtype == DType::kQ4_1;
  const std::size_t block_bytes = tensor::traits(dtype).block_bytes * kLanes;
  float sum = 0.0F;
  for (std::int64_t block = 0; block < at.k / kQuantBlock; ++block) {
    const std::byte* packed = at.panel + static_cast<std::size_t>(block) * block_bytes;
    const std::byte* values = packed + (has_minimum ? 4 : 2) * kLanes;
    ActivationBlock x;
    std::memcpy(&x, at.activations + static_cast<std::size_t>(block) * sizeof x, sizeof x);
    std::int32_t dot = 0;
    for (std::size_t i = 0; i < static_cast<std::size_t>(kQuantBlock); ++i) {
      dot += stored_value(dtype, values, at.lane, i) * x.q[i];
    }
    const float d = f16_to_f32(load_u16(packed + 2 * at.lane));
    sum = fma(static_cast<float>(dot) * d, x.scale, sum);
    if (has_minimum) {
      const float m = f16_to_f32(load_u16(packed + 2 * kLanes + 2 * at.lane));
      sum = fma(m, x.scaled_sum, sum);
    }
  }
  return sum;
}

float dot(DType dtype, const Element& at) {
  switch (activation_format(dtype)) {
    case ActivationFormat::kF32:
      return plain_dot(dtype, at);
    case ActivationFormat::kBf16:
      return bf16_dot(at);
    case ActivationFormat::kQ8:
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
