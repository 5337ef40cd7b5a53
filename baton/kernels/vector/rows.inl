// Row functions over sixteen lanes, included by avx2/rows.cpp and avx512/rows.cpp after their
// simd.h, inside the namespace of the instruction set. Absent lanes of a tail
// are +0 in sums and minus infinity in maxima: neither changes a bit.
#include "baton/kernels/vector/exp.inl"

namespace {

constexpr float kMinusInfinity = -__builtin_inff();

// body(offset, lanes): 16 at a time, then the rest.
template <class Body>
BATON_INLINE void for_lanes(std::int64_t n, Body body) {
  std::int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    body(i, std::integral_constant<std::int64_t, 16>{});
  }
  if (i < n) {
    body(i, n - i);
  }
}
// A whole register when the count is the constant 16.
BATON_INLINE V load_some(const float* p, std::integral_constant<std::int64_t, 16> /*n*/) {
  return load(p);
}
BATON_INLINE V load_some(const float* p, std::int64_t n) { return load_first(p, n); }
BATON_INLINE void store_some(float* p, V a, std::integral_constant<std::int64_t, 16> /*n*/) {
  store(p, a);
}
BATON_INLINE void store_some(float* p, V a, std::int64_t n) { store_first(p, a, n); }

template <bool kHalves>
void quantise_block(const float* x, std::byte* out) {
  const V low = load(x);
  const V high = load(x + 16);
  const V largest = max2(abs(high), max2(abs(low), zero()));
  const float scale = reduce_max(largest) / 127.0F;
  const float inverse = 0.0F < scale ? 1.0F / scale : 0.0F;
  const auto quantise = [&](V value) {
    const V bounded = min2(max2(mul(value, set1(inverse)), set1(-127.0F)), set1(127.0F));
    return sub(add(bounded, set1(0x1.8p23F)), set1(0x1.8p23F));
  };
  const V low_q = quantise(low);
  const V high_q = quantise(high);
  // Written in place: a copy through the stack would wait for its own small stores.
  auto& block = *reinterpret_cast<ActivationBlock*>(out);
  store_int8(block.q, low_q);
  store_int8(block.q + 16, high_q);
  // Integers up to 32 * 127: exact in f32 whatever the order.
  const float sum = reduce_sum(add(low_q, high_q));
  block.scale = scale;
  block.scaled_sum = scale * sum;
  block.minus_8_sums = -8 * static_cast<std::int32_t>(sum);
  block.minus_128_sums = -128 * static_cast<std::int32_t>(sum);
  if constexpr (kHalves) {
    auto& halves = *reinterpret_cast<ActivationHalves*>(out);
    const float sums[2] = {reduce_sum(low_q), reduce_sum(high_q)};
    for (int half = 0; half < 2; ++half) {
      halves.minus_32_sums[half] = -32 * static_cast<std::int32_t>(sums[half]);
      halves.scaled_sums[half] = scale * sums[half];
    }
  }
}

void round_row(const float* x, std::int64_t k, std::byte* out) {
  auto* to = reinterpret_cast<std::uint16_t*>(out);
  std::int64_t i = 0;
  for (; i + 16 <= k; i += 16) {
    store_bf16(to + i, load(x + i));
  }
  for (; i < k; ++i) {
    to[i] = f32_to_bf16(x[i]);
  }
}

BATON_INLINE void turn_adjacent(float* lanes, const float* cosine, const float* sine,
                                std::int64_t half) {
  std::int64_t i = 0;
  for (; i + 8 <= half; i += 8) {
    const V x = load(lanes + 2 * i);
    const V s = negate_even(load_doubled(sine + i));
    store(lanes + 2 * i, fma(swap_pairs(x), s, mul(x, load_doubled(cosine + i))));
  }
  for (; i < half; ++i) {
    const float first = lanes[2 * i];
    const float second = lanes[2 * i + 1];
    lanes[2 * i] = __builtin_fmaf(-second, sine[i], first * cosine[i]);
    lanes[2 * i + 1] = __builtin_fmaf(first, sine[i], second * cosine[i]);
  }
}

BATON_INLINE void turn_halves(float* lanes, const float* cosine, const float* sine,
                              std::int64_t half) {
  for_lanes(half, [&](std::int64_t i, auto count) {
    const V first = load_some(lanes + i, count);
    const V second = load_some(lanes + half + i, count);
    const V c = load_some(cosine + i, count);
    const V s = load_some(sine + i, count);
    store_some(lanes + i, fnma(second, s, mul(first, c)), count);
    store_some(lanes + half + i, fma(first, s, mul(second, c)), count);
  });
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
      round_row(from, k, to);
    } else if (format == ActivationFormat::kQ8Halves) {
      for (std::int64_t block = 0; block < k / kQuantBlock; ++block) {
        quantise_block<true>(from + block * kQuantBlock,
                             to + static_cast<std::size_t>(block) * sizeof(ActivationHalves));
      }
    } else {
      for (std::int64_t block = 0; block < k / kQuantBlock; ++block) {
        quantise_block<false>(from + block * kQuantBlock,
                              to + static_cast<std::size_t>(block) * sizeof(ActivationBlock));
      }
    }
  }
}

void rmsnorm(float* x, std::int64_t x_stride, const float* residual, const float* weight, float eps,
             std::int64_t rows, std::int64_t n, float* out, std::int64_t out_stride) {
  for (std::int64_t row = 0; row < rows; ++row) {
    float* from = x + row * x_stride;
    V squares = zero();
    for_lanes(n, [&](std::int64_t i, auto count) {
      V value = load_some(from + i, count);
      if (residual != nullptr) {
        value = add(value, load_some(residual + row * x_stride + i, count));
        store_some(from + i, value, count);
      }
      squares = fma(value, value, squares);
    });
    const float mean = reduce_sum(squares) / static_cast<float>(n);
    const V scale = div(set1(1.0F), sqrt1(set1(mean + eps)));
    float* to = out + row * out_stride;
    for_lanes(n, [&](std::int64_t i, auto count) {
      const V scaled = mul(load_some(from + i, count), scale);
      store_some(to + i, mul(scaled, load_some(weight + i, count)), count);
    });
  }
}

void rope(const RopeTable& table, RopeStyle style, const std::int32_t* positions,
          std::int64_t tokens, std::int64_t heads, std::int64_t head_dim, float* x,
          std::int64_t token_stride) {
  for (std::int64_t token = 0; token < tokens; ++token) {
    const float* cosine = table.cosine.data() + positions[token] * table.half;
    const float* sine = table.sine.data() + positions[token] * table.half;
    for (std::int64_t head = 0; head < heads; ++head) {
      float* lanes = x + token * token_stride + head * head_dim;
      if (style == RopeStyle::kInterleaved) {
        turn_adjacent(lanes, cosine, sine, table.half);
      } else {
        turn_halves(lanes, cosine, sine, table.half);
      }
    }
  }
}

void silu_mul(const float* gate, const float* up, std::int64_t n, float* out) {
  for_lanes(n, [&](std::int64_t i, auto count) {
    const V g = load_some(gate + i, count);
    const V sigmoid_below = add(set1(1.0F), exp16(negate(g)));
    store_some(out + i, mul(div(g, sigmoid_below), load_some(up + i, count)), count);
  });
}

void gelu_mul(const float* gate, const float* up, std::int64_t n, float* out) {
  for_lanes(n, [&](std::int64_t i, auto count) {
    const V g = load_some(gate + i, count);
    const V inner = mul(fma(mul(set1(0.044715F), g), mul(g, g), g), set1(0.79788456F));
    const V gelu = mul(mul(set1(0.5F), g), add(set1(1.0F), tanh16(inner)));
    store_some(out + i, mul(gelu, load_some(up + i, count)), count);
  });
}

void add(float* x, const float* y, std::int64_t n) {
  for_lanes(n, [&](std::int64_t i, auto count) {
    store_some(x + i, add(load_some(x + i, count), load_some(y + i, count)), count);
  });
}

void exp(const float* x, std::int64_t n, float* out) {
  for_lanes(n, [&](std::int64_t i, auto count) {
    store_some(out + i, exp16(load_some(x + i, count)), count);
  });
}

float max(const float* x, std::int64_t n) {
  V largest = set1(kMinusInfinity);
  for_lanes(n, [&](std::int64_t i, auto count) {
    const V value = select_lanes(load_some(x + i, count), set1(kMinusInfinity), 0, count);
    largest = max2(value, largest);
  });
  return reduce_max(largest);
}

float sum_exp(const float* x, std::int64_t n, float max) {
  V sum = zero();
  for_lanes(n, [&](std::int64_t i, auto count) {
    const V value = exp16(sub(load_some(x + i, count), set1(max)));
    sum = add(sum, select_lanes(value, zero(), 0, count));
  });
  return reduce_sum(sum);
}

std::int64_t argmax(const float* x, std::int64_t n) {
  const float largest = max(x, n);
  std::int64_t i = 0;
  while (i + 16 <= n && !any_equal(load(x + i), set1(largest))) {
    i += 16;
  }
  for (; i < n; ++i) {
    if (x[i] == largest) {
      return i;
    }
  }
  return 0;  // nothing but NaN
}
