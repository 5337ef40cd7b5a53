// Row functions of the reference table: norms, rope, activations, sums over a vocabulary.
#include "baton/kernels/half.h"
#include "baton/kernels/ref/scalar.h"
#include "baton/kernels/ref/table.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace baton::kernels::ref {
namespace {

ActivationBlock quantise_block(const float* x) {
  ActivationBlock block{};
  block.scale = largest_magnitude(x) / 127.0F;
  const float inverse = 0.0F < block.scale ? 1.0F / block.scale : 0.0F;
  std::int32_t sum = 0;
  for (std::size_t i = 0; i < static_cast<std::size_t>(kQuantBlock); ++i) {
    block.q[i] = quantise(x[i], inverse);
    sum += block.q[i];
  }
  block.scaled_sum = block.scale * static_cast<float>(sum);
  block.minus_8_sums = -8 * sum;
  block.minus_128_sums = -128 * sum;
  return block;
}

ActivationHalves quantise_halves(const float* x) {
  ActivationHalves block{quantise_block(x), {}, {}};
  for (std::size_t half = 0; half < 2; ++half) {
    std::int32_t sum = 0;
    for (std::size_t i = 16 * half; i < 16 * (half + 1); ++i) {
      sum += block.whole.q[i];
    }
    block.minus_32_sums[half] = -32 * sum;
    block.scaled_sums[half] = block.whole.scale * static_cast<float>(sum);
  }
  return block;
}

}  // namespace

void prepare_activations(ActivationFormat format, const float* x, std::int64_t x_stride,
                         std::int64_t rows, std::int64_t k, std::byte* out) {
  const std::size_t row_bytes = activation_row_bytes(format, k);
  for (std::int64_t row = 0; row < rows; ++row) {
    const float* from = x + row * x_stride;
    std::byte* to = out + static_cast<std::size_t>(row) * row_bytes;
    if (format == ActivationFormat::kF32) {
      std::memcpy(to, from, static_cast<std::size_t>(k) * sizeof(float));
    } else if (format == ActivationFormat::kBf16) {
      for (std::int64_t i = 0; i < k; ++i) {
        reinterpret_cast<std::uint16_t*>(to)[i] = f32_to_bf16(from[i]);
      }
    } else if (format == ActivationFormat::kQ8Halves) {
      for (std::int64_t block = 0; block < k / kQuantBlock; ++block) {
        const ActivationHalves made = quantise_halves(from + block * kQuantBlock);
        std::memcpy(to + static_cast<std::size_t>(block) * sizeof made, &made, sizeof made);
      }
    } else {
      for (std::int64_t block = 0; block < k / kQuantBlock; ++block) {
        const ActivationBlock made = quantise_block(from + block * kQuantBlock);
        std::memcpy(to + static_cast<std::size_t>(block) * sizeof made, &made, sizeof made);
      }
    }
  }
}

void rmsnorm(float* x, std::int64_t x_stride, const float* residual, const float* weight, float eps,
             std::int64_t rows, std::int64_t n, float* out, std::int64_t out_stride) {
  for (std::int64_t row = 0; row < rows; ++row) {
    float* from = x + row * x_stride;
    if (residual != nullptr) {
      add(from, residual + row * x_stride, n);
    }
    Lanes squares{};
    for (std::int64_t i = 0; i < n; ++i) {
      float& lane = squares[static_cast<std::size_t>(i % 16)];
      lane = fma(from[i], from[i], lane);
    }
    const float mean = reduce_sum(squares) / static_cast<float>(n);
    const float scale = 1.0F / std::sqrt(mean + eps);
    for (std::int64_t i = 0; i < n; ++i) {
      out[row * out_stride + i] = from[i] * scale * weight[i];
    }
  }
}

void rope(const RopeTable& table, RopeStyle style, const std::int32_t* positions,
          std::int64_t tokens, std::int64_t heads, std::int64_t head_dim, float* x,
          std::int64_t token_stride) {
  const bool interleaved = style == RopeStyle::kInterleaved;
  for (std::int64_t token = 0; token < tokens; ++token) {
    const float* cosine = table.cosine.data() + positions[token] * table.half;
    const float* sine = table.sine.data() + positions[token] * table.half;
    for (std::int64_t head = 0; head < heads; ++head) {
      float* lanes = x + token * token_stride + head * head_dim;
      for (std::int64_t i = 0; i < table.half; ++i) {
        float& first = lanes[interleaved ? 2 * i : i];
        float& second = lanes[interleaved ? 2 * i + 1 : i + table.half];
        const float turned = fma(-second, sine[i], first * cosine[i]);
        second = fma(first, sine[i], second * cosine[i]);
        first = turned;
      }
    }
  }
}

void silu_mul(const float* gate, const float* up, std::int64_t n, float* out) {
  for (std::int64_t i = 0; i < n; ++i) {
    out[i] = gate[i] / (1.0F + exp1(-gate[i])) * up[i];
  }
}

void gelu_mul(const float* gate, const float* up, std::int64_t n, float* out) {
  for (std::int64_t i = 0; i < n; ++i) {
    const float g = gate[i];
    const float inner = fma(0.044715F * g, g * g, g) * 0.79788456F;
    out[i] = 0.5F * g * (1.0F + tanh1(inner)) * up[i];
  }
}

void add(float* x, const float* y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    x[i] += y[i];
  }
}

void exp(const float* x, std::int64_t n, float* out) {
  for (std::int64_t i = 0; i < n; ++i) {
    out[i] = exp1(x[i]);
  }
}

float max(const float* x, std::int64_t n) {
  Lanes lanes;
  lanes.fill(-std::numeric_limits<float>::infinity());
  for (std::int64_t i = 0; i < n; ++i) {
    float& lane = lanes[static_cast<std::size_t>(i % 16)];
    lane = max2(x[i], lane);
  }
  return reduce_max(lanes);
}

float sum_exp(const float* x, std::int64_t n, float max) {
  Lanes lanes{};
  for (std::int64_t i = 0; i < n; ++i) {
    lanes[static_cast<std::size_t>(i % 16)] += exp1(x[i] - max);
  }
  return reduce_sum(lanes);
}

std::int64_t argmax(const float* x, std::int64_t n) {
  const float largest = ref::max(x, n);
  const float* found = std::find(x, x + n, largest);
  return found == x + n ? 0 : found - x;
}

}  // namespace baton::kernels::ref
