// f16 and bf16 to and from f32, exactly, in integers. Always inlined into whichever file asks, so
// that no copy compiled for one instruction set is ever linked into another.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

namespace baton::kernels {

#define BATON_INLINE [[gnu::always_inline]] inline

BATON_INLINE std::uint16_t load_u16(const void* from) {
  std::uint16_t value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

// Subnormal halves become normal floats, as VCVTPH2PS does whatever DAZ says.
BATON_INLINE float f16_to_f32(std::uint16_t half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000U) << 16U;
  const std::uint32_t exponent = (half >> 10U) & 0x1FU;
  const std::uint32_t mantissa = half & 0x3FFU;
  if (exponent == 0) {
    // mantissa * 2^-24 is exact, and normal or zero.
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(magnitude) | sign);
  }
  if (exponent == 31) {
    const std::uint32_t quiet = mantissa != 0 ? 0x400000U : 0U;
    return std::bit_cast<float>(sign | 0x7F800000U | (mantissa << 13U) | quiet);
  }
  return std::bit_cast<float>(sign | ((exponent + 112U) << 23U) | (mantissa << 13U));
}

// Round to nearest even, subnormal halves too; overflow to infinity; NaNs are quieted: what
// VCVTPS2PH does.
BATON_INLINE std::uint16_t f32_to_f16(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16U) & 0x8000U;
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) {
    return static_cast<std::uint16_t>(sign | 0x7E00U | ((magnitude >> 13U) & 0x3FFU));
  }
  if (magnitude >= 0x47800000U) {  // 65,536 and above
    return static_cast<std::uint16_t>(sign | 0x7C00U);
  }
  // The mantissa with its leading one, and how many of its bits go: 13, more for subnormal halves.
  const std::uint32_t exponent = magnitude >> 23U;
  const std::uint32_t shift = exponent >= 113 ? 13U : 126U - exponent;
  if (shift > 24U) {  // below 2^-25
    return static_cast<std::uint16_t>(sign);
  }
  const std::uint32_t mantissa = (magnitude & 0x7FFFFFU) | 0x800000U;
  const std::uint32_t half = 1U << (shift - 1U);
  const std::uint32_t rounded = (mantissa + half - 1U + ((mantissa >> shift) & 1U)) >> shift;
  // The leading one adds 1 to the exponent below it; a subnormal half has none.
  const std::uint32_t base = exponent >= 113 ? (exponent - 113U) << 10U : 0U;
  return static_cast<std::uint16_t>(sign | (base + rounded));
}

BATON_INLINE float bf16_to_f32(std::uint16_t value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value) << 16U);
}

// Round to nearest even; subnormals become zeros of their sign, NaNs are quieted: what
// VCVTNEPS2BF16 does.
BATON_INLINE std::uint16_t f32_to_bf16(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) {
    return static_cast<std::uint16_t>((bits >> 16U) | 0x40U);
  }
  if (magnitude < 0x00800000U) {
    return static_cast<std::uint16_t>((bits >> 16U) & 0x8000U);
  }
  return static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16U) & 1U)) >> 16U);
}

// The f16 cache holds values beyond this as this: infinities would make a head's output NaN.
inline constexpr float kLargestHalf = 65504.0F;

// q8_0 in the cache: the f16 scale of values up to `largest` in magnitude, and what they are
// multiplied with (0 for a scale of 0). A magnitude that no half can scale is clamped.
BATON_INLINE std::uint16_t q8_scale(float largest) {
  const float scale = largest / 127.0F;
  return f32_to_f16(scale < kLargestHalf ? scale : kLargestHalf);
}
BATON_INLINE float q8_inverse(std::uint16_t scale) {
  const float wide = f16_to_f32(scale);
  return 0.0F < wide ? 1.0F / wide : 0.0F;
}

}  // namespace baton::kernels
