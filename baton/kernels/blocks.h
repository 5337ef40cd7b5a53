// How a packed panel (pack.h) holds each quantised type: scales, small scales, planes of codes;
// what codes stand for. Packing, dequantising and all matmuls are written on it. Internal to
// kernels/. Thread: any.
#pragma once

#include "baton/kernels/half.h"
#include "baton/kernels/pack.h"
#include "baton/tensor/dtype.h"

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace baton::kernels {

using tensor::DType;

// How a panel holds a type. A super-block is the scales in f16, [halves][16], then its blocks of 32
// values; a block is the small scales, [bytes][16] u8, then planes of words. A word is one code of
// values 4j .. 4j + 3 in each byte; word w of a plane is [16 outputs][4]:
//   eight  8 words, word j as it is                 four  4 words: word j low, word j + 4 high
//   two    2 words: bits 2s of word z = word 4z + s  one  1 word: bit j = word j
// Planes follow each other in that order; `two` and `one` are the bits above those before them.
struct Packing {
  std::size_t blocks = 1;
  std::size_t halves = 1;
  std::size_t bytes = 0;
  bool eight = false;
  bool four = false;
  bool two = false;
  bool one = false;
};

BATON_INLINE constexpr Packing packing(DType dtype) {
  switch (dtype) {
    case DType::kQ4_0:
    case DType::kIq4Nl:
      return {.four = true};
    case DType::kQ4_1:
      return {.halves = 2, .four = true};
    case DType::kQ8_0:
      return {.eight = true};
    case DType::kQ5_0:
      return {.four = true, .one = true};
    case DType::kQ5_1:
      return {.halves = 2, .four = true, .one = true};
    case DType::kMxfp4:
      return {.halves = 0, .bytes = 1, .four = true};
    case DType::kQ2K:
      return {.blocks = 8, .halves = 2, .bytes = 2, .two = true};
    case DType::kQ3K:
      return {.blocks = 8, .bytes = 2, .two = true, .one = true};
    case DType::kQ4K:
      return {.blocks = 8, .halves = 2, .bytes = 2, .four = true};
    case DType::kQ5K:
      return {.blocks = 8, .halves = 2, .bytes = 2, .four = true, .one = true};
    case DType::kQ6K:
      return {.blocks = 8, .bytes = 2, .four = true, .two = true};
    case DType::kF32:
    case DType::kF16:
    case DType::kBf16:
      break;
  }
  return {};
}

inline constexpr std::size_t kWordBytes = 4 * static_cast<std::size_t>(kPanelOutputs);
BATON_INLINE constexpr std::size_t packed_head_bytes(const Packing& p) {
  return p.halves * 2 * static_cast<std::size_t>(kPanelOutputs);
}
BATON_INLINE constexpr std::size_t packed_scale_bytes(const Packing& p) {
  return p.bytes * static_cast<std::size_t>(kPanelOutputs);
}
BATON_INLINE constexpr std::size_t packed_block_bytes(const Packing& p) {
  const std::size_t words =
      (p.eight ? 8U : 0U) + (p.four ? 4U : 0U) + (p.two ? 2U : 0U) + (p.one ? 1U : 0U);
  return packed_scale_bytes(p) + words * kWordBytes;
}
BATON_INLINE constexpr std::size_t packed_super_bytes(const Packing& p) {
  return packed_head_bytes(p) + p.blocks * packed_block_bytes(p);
}

// How the unsigned codes of the vector kernels become signed integers: what is taken off each.
enum class Bias : std::uint8_t { kNone, k8, k16, k128, kLow32, kHigh32 };
BATON_INLINE constexpr Bias bias_of(DType dtype) {
  switch (dtype) {
    case DType::kQ4_0:
      return Bias::k8;
    case DType::kQ5_0:
      return Bias::k16;
    case DType::kQ8_0:
    case DType::kQ3K:
    case DType::kIq4Nl:
    case DType::kMxfp4:
      return Bias::k128;
    default:
      return Bias::kNone;  // Q6_K: 32, by halves
  }
}

// What nibbles stand for.
inline constexpr std::int8_t kIq4NlValues[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                                 1,    13,   25,  38,  53,  69,  89,  113};
inline constexpr std::int8_t kMxfp4Values[16] = {0, 1,  2,  3,  4,  6,  8,  12,
                                                 0, -1, -2, -3, -4, -6, -8, -12};  // doubled

// 2^(e - 128); below 2^-126 (e < 2) it is 0, on every CPU and in every float mode.
BATON_INLINE float mxfp4_scale(std::uint32_t e) {
  return std::bit_cast<float>((e < 1 ? 0U : e - 1U) << 23U);
}

// body(std::integral_constant<DType, type>) for a quantised type; anything else does nothing.
template <class Body>
void with_quantised_type(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::kQ4_0:
      return body(std::integral_constant<DType, DType::kQ4_0>{});
    case DType::kQ4_1:
      return body(std::integral_constant<DType, DType::kQ4_1>{});
    case DType::kQ8_0:
      return body(std::integral_constant<DType, DType::kQ8_0>{});
    case DType::kQ5_0:
      return body(std::integral_constant<DType, DType::kQ5_0>{});
    case DType::kQ5_1:
      return body(std::integral_constant<DType, DType::kQ5_1>{});
    case DType::kQ2K:
      return body(std::integral_constant<DType, DType::kQ2K>{});
    case DType::kQ3K:
      return body(std::integral_constant<DType, DType::kQ3K>{});
    case DType::kQ4K:
      return body(std::integral_constant<DType, DType::kQ4K>{});
    case DType::kQ5K:
      return body(std::integral_constant<DType, DType::kQ5K>{});
    case DType::kQ6K:
      return body(std::integral_constant<DType, DType::kQ6K>{});
    case DType::kIq4Nl:
      return body(std::integral_constant<DType, DType::kIq4Nl>{});
    case DType::kMxfp4:
      return body(std::integral_constant<DType, DType::kMxfp4>{});
    case DType::kF32:
    case DType::kF16:
    case DType::kBf16:
      return;
  }
}

}  // namespace baton::kernels
