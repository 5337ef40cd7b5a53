// Sine, cosine and power in double with own argument reduction and polynomials: only + - * / and
// rounding, which IEEE 754 fixes, so the tables have the same bits everywhere. Errors are below
// 1e-11 for angles up to 1e6, far under the f32 rounding of the table.
#include "baton/kernels/rope.h"

#include "baton/base/check.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace baton::kernels {
namespace {

constexpr double kLn2 = 0.693147180559945309417;

// log(x), x > 0 and normal: x = m 2^e, m in [sqrt(1/2), sqrt(2)); log m = 2 atanh((m - 1) / (m +
// 1)).
double natural_log(double x) {
  const auto bits = std::bit_cast<std::uint64_t>(x);
  auto exponent = static_cast<std::int64_t>(bits >> 52U) - 1023;
  double mantissa = std::bit_cast<double>((bits & 0xFFFFFFFFFFFFFULL) | 0x3FF0000000000000ULL);
  if (mantissa > 1.4142135623730951) {
    mantissa *= 0.5;
    exponent += 1;
  }
  const double z = (mantissa - 1.0) / (mantissa + 1.0);
  const double z2 = z * z;
  double sum = 0.0;
  for (int term = 23; term >= 1; term -= 2) {  // |z| < 0.172: z^25 / 25 < 3e-21
    sum = sum * z2 + 1.0 / term;
  }
  return static_cast<double>(exponent) * kLn2 + 2.0 * z * sum;
}

// exp(x), |x| < 700: x = n ln 2 + r, Taylor in r.
double exponential(double x) {
  const double n = std::floor(x / kLn2 + 0.5);
  const double r = x - n * kLn2;
  double sum = 1.0;
  for (int term = 18; term >= 1; --term) {  // |r| < 0.347: r^19 / 19! < 1e-25
    sum = sum * r / term + 1.0;
  }
  const auto exponent = static_cast<std::uint64_t>(static_cast<std::int64_t>(n) + 1023);
  return sum * std::bit_cast<double>(exponent << 52U);
}

struct SineCosine {
  double sine;
  double cosine;
};

// 1 / (t (t + 1)) and 1 / ((t - 1) t) for t = 18, 16, ... 2: the series in Horner form.
struct Factors {
  double sine;
  double cosine;
};
constexpr std::array<Factors, 9> kFactors = [] {
  std::array<Factors, 9> factors{};
  double term = 18.0;
  for (Factors& f : factors) {
    f = {1.0 / (term * (term + 1.0)), 1.0 / ((term - 1.0) * term)};
    term -= 2.0;
  }
  return factors;
}();

// x = q pi/2 + r with pi/2 in two parts (33 bits and the rest: q * high is exact for q < 2^20).
SineCosine sine_cosine(double x) {
  constexpr double kHalfPiHigh = 0x1.921fb544p+0;
  constexpr double kHalfPiLow = 0x1.0b4611a626331p-34;
  const double q = std::floor(x / (kHalfPiHigh + kHalfPiLow) + 0.5);
  const double r = (x - q * kHalfPiHigh) - q * kHalfPiLow;
  const double r2 = r * r;
  double sine = 1.0;
  double cosine = 1.0;
  for (const Factors& factors : kFactors) {  // |r| < 0.786
    sine = 1.0 - sine * r2 * factors.sine;
    cosine = 1.0 - cosine * r2 * factors.cosine;
  }
  sine *= r;
  switch (static_cast<std::uint64_t>(static_cast<std::int64_t>(q)) & 3U) {
    case 0:
      return {sine, cosine};
    case 1:
      return {cosine, -sine};
    case 2:
      return {-sine, -cosine};
    default:
      return {-cosine, sine};
  }
}

}  // namespace

RopeTable build_rope_table(const RopeParams& params) {
  BATON_CHECK(params.positions > 0 && params.rotated_lanes > 0 && params.rotated_lanes % 2 == 0 &&
                  params.base > 0.0 && params.linear_factor > 0.0,
              "rope: {} positions, {} lanes, base {}, factor {}", params.positions,
              params.rotated_lanes, params.base, params.linear_factor);
  RopeTable table;
  table.positions = params.positions;
  table.half = params.rotated_lanes / 2;
  const auto half = static_cast<std::size_t>(table.half);
  const auto positions = static_cast<std::size_t>(params.positions);
  BATON_CHECK(params.frequency_factors.empty() || params.frequency_factors.size() == half,
              "rope: {} frequency factors for {} lane pairs", params.frequency_factors.size(),
              half);
  table.cosine.resize(positions * half);
  table.sine.resize(positions * half);
  const double log_base = natural_log(params.base);
  for (std::size_t i = 0; i < half; ++i) {
    const double fraction = 2.0 * static_cast<double>(i) / static_cast<double>(2 * half);
    double frequency = exponential(-fraction * log_base) / params.linear_factor;
    if (!params.frequency_factors.empty()) {
      frequency /= static_cast<double>(params.frequency_factors[i]);
    }
    for (std::size_t position = 0; position < positions; ++position) {
      const SineCosine turned = sine_cosine(static_cast<double>(position) * frequency);
      const auto magnitude = static_cast<double>(params.magnitude);
      table.cosine[position * half + i] = static_cast<float>(turned.cosine * magnitude);
      table.sine[position * half + i] = static_cast<float>(turned.sine * magnitude);
    }
  }
  return table;
}

}  // namespace baton::kernels
