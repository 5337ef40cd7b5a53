// The numerics of numerics rule 4 in plain C++: sixteen virtual lanes, the fixed tree, exp. This is
// the definition that the vector kernels are compared with.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace baton::kernels::ref {

using Lanes = std::array<float, 16>;

inline float fma(float a, float b, float c) { return std::fma(a, b, c); }
// MAXPS: the second operand when equal or not a number.
inline float max2(float a, float b) { return a > b ? a : b; }
inline float min2(float a, float b) { return a < b ? a : b; }

// Lane l takes l + 8, then l + 4, l + 2, l + 1.
template <class Combine>
float reduce(Lanes lanes, Combine&& combine) {
  for (std::size_t step = 8; step > 0; step /= 2) {
    for (std::size_t lane = 0; lane < step; ++lane) {
      lanes[lane] = combine(lanes[lane], lanes[lane + step]);
    }
  }
  return lanes[0];
}
inline float reduce_sum(const Lanes& lanes) {
  return reduce(lanes, [](float a, float b) { return a + b; });
}
inline float reduce_max(const Lanes& lanes) { return reduce(lanes, max2); }

// exp: x = n ln 2 + r, polynomial of degree 7 in r (coefficients: Cephes expf), 2^n in two factors.
inline float exp1(float x) {
  constexpr float kMagic = 0x1.8p23F;  // adding it rounds to an integer, to even
  const float shifted = fma(x, 0x1.715476p+0F, kMagic);
  const float n = shifted - kMagic;
  float r = fma(n, -0x1.62e430p-1F, x);
  r = fma(n, 0x1.05c610p-29F, r);
  float p = 1.9875691500e-4F;
  p = fma(p, r, 1.3981999507e-3F);
  p = fma(p, r, 8.3334519073e-3F);
  p = fma(p, r, 4.1665795894e-2F);
  p = fma(p, r, 1.6666665459e-1F);
  p = fma(p, r, 5.0000001201e-1F);
  p = fma(p, r * r, r) + 1.0F;
  const auto steps = static_cast<std::int32_t>(std::bit_cast<std::uint32_t>(shifted) -
                                               std::bit_cast<std::uint32_t>(kMagic));
  const std::int32_t half = steps >> 1;
  const auto power = [](std::int32_t exponent) {
    return std::bit_cast<float>((static_cast<std::uint32_t>(exponent) + 127U) << 23U);
  };
  const float y = p * power(half) * power(steps - half);
  if (x < -87.33654F) {
    return 0.0F;
  }
  return 88.72283F < x ? std::numeric_limits<float>::infinity() : y;
}

// tanh: below 0.625 an odd polynomial (coefficients: Cephes tanhf), else from exp.
inline float tanh1(float x) {
  const float z = x * x;
  float p = -5.70498872745e-3F;
  p = fma(p, z, 2.06390887954e-2F);
  p = fma(p, z, -5.37397155531e-2F);
  p = fma(p, z, 1.33314422036e-1F);
  p = fma(p, z, -3.33332819422e-1F);
  const float size = std::fabs(x);
  if (size < 0.625F) {
    return fma(p * z, x, x);
  }
  const float far = 1.0F - 2.0F / (exp1(size + size) + 1.0F);
  return x < 0.0F ? -far : far;
}

// The largest magnitude of a block of 32 and the nearest integer in [-127, 127] to x * inverse, to
// even, by the magic constant; NaN becomes -127. Activations and the q8_0 cache are quantised so.
inline float largest_magnitude(const float* x) {
  Lanes largest{};
  for (std::size_t i = 0; i < 32; ++i) {
    largest[i % 16] = max2(std::fabs(x[i]), largest[i % 16]);
  }
  return reduce_max(largest);
}
inline std::int8_t quantise(float x, float inverse) {
  const float bounded = min2(max2(x * inverse, -127.0F), 127.0F);
  constexpr float kMagic = 0x1.8p23F;
  return static_cast<std::int8_t>((bounded + kMagic) - kMagic);
}

}  // namespace baton::kernels::ref
