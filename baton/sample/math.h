// exp and log of our own: plain IEEE multiplications and additions in a written order, so that
// every compiler setting, vector width and libm gives the same bits. (No FMA: at the baseline
// instruction set it would be a call.) No value here is ever subnormal, so FTZ and DAZ change
// nothing.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

namespace baton::sample {

// Four floats; arithmetic on them is element by element whatever the machine.
using Float4 = float __attribute__((vector_size(16)));
using Int4 = std::int32_t __attribute__((vector_size(16)));

// Below it exp4 is +0. exp(-86) = 4.5e-38 is the last power of e that is surely not subnormal.
inline constexpr float kExpLowest = -86.0F;

// e^x for x <= 0, within 2 ulp; +0 below kExpLowest. x is not NaN.
//   x = n ln 2 + r, |r| <= ln 2 / 2; Taylor series of e^r to r^7 (its rest is below 6e-9); times
//   2^n.
inline Float4 exp4(Float4 x) {
  constexpr float kLog2E = 0x1.715476p+0F;
  constexpr float kRoundToInteger =
      0x1.8p+23F;                         // adding it leaves the nearest integer in the low bits
  constexpr float kLn2High = 0x1.63p-1F;  // 10 bits: n x kLn2High is exact
  constexpr float kLn2Low = -0x1.bd0106p-13F;
  const Float4 lowest = Float4{} + kExpLowest;
  const Float4 clamped = x < lowest ? lowest : x;
  const Float4 shifted = clamped * kLog2E + kRoundToInteger;
  const Float4 n = shifted - kRoundToInteger;
  const Float4 r = (clamped - n * kLn2High) - n * kLn2Low;
  Float4 y = Float4{} + 1.0F / 5040.0F;
  y = y * r + 1.0F / 720.0F;
  y = y * r + 1.0F / 120.0F;
  y = y * r + 1.0F / 24.0F;
  y = y * r + 1.0F / 6.0F;
  y = y * r + 0.5F;
  y = y * r + 1.0F;
  y = y * r + 1.0F;
  const Int4 power_bits =
      (std::bit_cast<Int4>(shifted) - (Int4{} + std::bit_cast<std::int32_t>(kRoundToInteger)) + 127)
      << 23;
  const Float4 scaled = y * std::bit_cast<Float4>(power_bits);
  return x < lowest ? Float4{} : scaled;
}

inline Float4 load4(const float* values) {
  Float4 loaded;
  std::memcpy(&loaded, values, sizeof(loaded));
  return loaded;
}

inline void store4(float* values, Float4 stored) { std::memcpy(values, &stored, sizeof(stored)); }

inline float exp1(float x) { return exp4(Float4{x, x, x, x})[0]; }

// Natural logarithm of a positive normal number, within 4 ulp.
//   x = 2^k m, m in [sqrt 1/2, sqrt 2), s = (m - 1) / (m + 1): ln m = 2 (s + s^3/3 + ... +
//   s^23/23).
inline double log_positive(double x) {
  constexpr double kLn2 = 0x1.62e42fefa39efp-1;
  constexpr std::uint64_t kMantissa = (std::uint64_t{1} << 52) - 1;
  const auto bits = std::bit_cast<std::uint64_t>(x);
  auto k = static_cast<std::int64_t>(bits >> 52) - 1023;
  auto m = std::bit_cast<double>((bits & kMantissa) | (std::uint64_t{1023} << 52));
  if (m > 0x1.6a09e667f3bcdp+0) {
    m *= 0.5;
    ++k;
  }
  const double s = (m - 1.0) / (m + 1.0);
  const double z = s * s;
  double series = 1.0 / 23.0;
  for (int odd = 21; odd >= 1; odd -= 2) {
    series = series * z + 1.0 / static_cast<double>(odd);
  }
  return static_cast<double>(k) * kLn2 + 2.0 * s * series;
}

}  // namespace baton::sample
