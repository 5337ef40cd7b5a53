// The inside of quantised blocks: where GGUF stores the codes and scales of 32 values, and where a
// packed panel does (pack.h). Packing, dequantising and the reference matmul are written on it; the
// vector kernels share packing() and the tables only. Internal to kernels/. Thread: any.
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

// Scales of one output and block, not yet multiplied.
struct BlockScales {
  std::uint16_t d = 0;
  std::uint16_t m = 0;
  std::uint8_t bytes[2] = {0, 0};
};

// One output's 32 values: value i = scales[i / 16] * values[i] + minima[i / 16], the product and
// the sum rounded each; without a minimum nothing is added.
struct LaneBlock {
  std::int32_t values[kQuantBlock];
  float scales[2];
  float minima[2];
};

BATON_INLINE std::uint32_t load_u32(const std::byte* from) {
  std::uint32_t value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

// ---- as GGUF stores them; `super` is the stored block of 32 or 256 values ----

// Four bits, one to a byte.
BATON_INLINE std::uint32_t spread_bits(std::uint32_t bits) {
  return ((bits & 15U) * 0x00204081U) & 0x01010101U;
}

// Codes of values 4j .. 4j + 3 of block `sub`, one to a byte, as they are stored (Q8_0: q + 128).
template <DType kType>
BATON_INLINE std::uint32_t stored_word(const std::byte* super, std::size_t sub, std::size_t j) {
  constexpr std::uint32_t kNibbles = 0x0F0F0F0FU;
  constexpr std::uint32_t kTwos = 0x03030303U;
  constexpr std::uint32_t kOnes = 0x01010101U;
  // Blocks of 32: nibbles at the end, fifth bits just before them.
  const auto nibbles = [&](std::size_t at) {
    return (load_u32(super + at + 4 * (j % 4)) >> (j < 4 ? 0U : 4U)) & kNibbles;
  };
  const auto shift = static_cast<std::uint32_t>(sub);
  const std::uint32_t quarter = 2 * (shift % 4);  // of Q2_K, Q3_K, Q6_K: four blocks share 32 bytes
  switch (kType) {
    case DType::kQ8_0:
      return load_u32(super + 2 + 4 * j) ^ 0x80808080U;
    case DType::kQ4_0:
    case DType::kIq4Nl:
      return nibbles(2);
    case DType::kQ4_1:
      return nibbles(4);
    case DType::kMxfp4:
      return nibbles(1);
    case DType::kQ5_0:
      return nibbles(6) | spread_bits(load_u32(super + 2) >> (4 * j)) << 4U;
    case DType::kQ5_1:
      return nibbles(8) | spread_bits(load_u32(super + 4) >> (4 * j)) << 4U;
    case DType::kQ4K:
      return (load_u32(super + 16 + sub / 2 * 32 + 4 * j) >> (4 * (shift % 2))) & kNibbles;
    case DType::kQ5K:
      return ((load_u32(super + 48 + sub / 2 * 32 + 4 * j) >> (4 * (shift % 2))) & kNibbles) |
             ((load_u32(super + 16 + 4 * j) >> shift) & kOnes) << 4U;
    case DType::kQ6K:
      return ((load_u32(super + sub / 4 * 64 + sub % 2 * 32 + 4 * j) >> (sub % 4 < 2 ? 0U : 4U)) &
              kNibbles) |
             ((load_u32(super + 128 + sub / 4 * 32 + 4 * j) >> quarter) & kTwos) << 4U;
    case DType::kQ2K:
      return (load_u32(super + 16 + sub / 4 * 32 + 4 * j) >> quarter) & kTwos;
    case DType::kQ3K:
      return ((load_u32(super + 32 + sub / 4 * 32 + 4 * j) >> quarter) & kTwos) |
             ((load_u32(super + 4 * j) >> shift) & kOnes) << 2U;
    default:
      return 0;
  }
}

// Q4_K's and Q5_K's scale and minimum of 6 bits each, twelve bytes for eight blocks.
BATON_INLINE void unpack_six_bits(const std::byte* packed, std::size_t sub, std::uint8_t* out) {
  const auto at = [&](std::size_t i) { return static_cast<unsigned>(packed[i]); };
  const bool plain = sub < 4;
  out[0] = static_cast<std::uint8_t>(plain ? at(sub) & 63U
                                           : (at(sub + 4) & 15U) | (at(sub - 4) >> 6U) << 4U);
  out[1] = static_cast<std::uint8_t>(plain ? at(sub + 4) & 63U
                                           : at(sub + 4) >> 4U | (at(sub) >> 6U) << 4U);
}

template <DType kType>
BATON_INLINE BlockScales stored_scales(const std::byte* super, std::size_t sub) {
  BlockScales scales;
  const auto byte_at = [&](std::size_t i) { return static_cast<std::uint8_t>(super[i]); };
  switch (kType) {
    case DType::kMxfp4:
      scales.bytes[0] = byte_at(0);
      break;
    case DType::kQ4K:
    case DType::kQ5K:
      unpack_six_bits(super + 4, sub, scales.bytes);
      break;
    case DType::kQ6K:
      scales.d = load_u16(super + 208);
      scales.bytes[0] = byte_at(192 + 2 * sub);
      scales.bytes[1] = byte_at(193 + 2 * sub);
      break;
    case DType::kQ2K:
      scales.d = load_u16(super + 80);
      scales.m = load_u16(super + 82);
      scales.bytes[0] = byte_at(2 * sub);
      scales.bytes[1] = byte_at(2 * sub + 1);
      break;
    case DType::kQ3K:
      scales.d = load_u16(super + 108);
      for (std::size_t half = 0; half < 2; ++half) {
        const std::size_t i = 2 * sub + half;
        const unsigned low = byte_at(96 + i % 8) >> (i < 8 ? 0U : 4U) & 15U;
        const unsigned high = byte_at(104 + i % 4) >> (2 * (i / 4)) & 3U;
        scales.bytes[half] = static_cast<std::uint8_t>(low | high << 4U);
      }
      break;
    default:
      break;
  }
  if (kType != DType::kMxfp4 && kType != DType::kQ6K && kType != DType::kQ2K &&
      kType != DType::kQ3K) {
    scales.d = load_u16(super);
    scales.m = packing(kType).halves == 2 ? load_u16(super + 2) : std::uint16_t{0};
  }
  return scales;
}

// ---- as a panel holds them ----

template <DType kType>
BATON_INLINE BlockScales packed_scales(const std::byte* super, std::size_t sub, std::size_t lane) {
  constexpr Packing kPacking = packing(kType);
  constexpr std::size_t kLanes = kPanelOutputs;
  BlockScales scales;
  if (kPacking.halves > 0) {
    scales.d = load_u16(super + 2 * lane);
  }
  if (kPacking.halves > 1) {
    scales.m = load_u16(super + 2 * (kLanes + lane));
  }
  const std::byte* bytes = super + packed_head_bytes(kPacking) + sub * packed_block_bytes(kPacking);
  for (std::size_t i = 0; i < kPacking.bytes; ++i) {
    scales.bytes[i] = static_cast<std::uint8_t>(bytes[i * kLanes + lane]);
  }
  return scales;
}

template <DType kType>
BATON_INLINE std::uint32_t packed_word(const std::byte* super, std::size_t sub, std::size_t lane,
                                       std::size_t j) {
  constexpr Packing kPacking = packing(kType);
  const std::byte* plane = super + packed_head_bytes(kPacking) +
                           sub * packed_block_bytes(kPacking) + packed_scale_bytes(kPacking) +
                           4 * lane;
  if (kPacking.eight) {
    return load_u32(plane + kWordBytes * j);
  }
  std::uint32_t code = 0;
  std::uint32_t bits = 0;
  if (kPacking.four) {
    code = (load_u32(plane + kWordBytes * (j % 4)) >> (j < 4 ? 0U : 4U)) & 0x0F0F0F0FU;
    bits = 4;
    plane += 4 * kWordBytes;
  }
  if (kPacking.two) {
    code |= ((load_u32(plane + kWordBytes * (j / 4)) >> (2 * (j % 4))) & 0x03030303U) << bits;
    bits += 2;
    plane += 2 * kWordBytes;
  }
  if (kPacking.one) {
    code |= ((load_u32(plane) >> j) & 0x01010101U) << bits;
  }
  return code;
}

// ---- to numbers ----

// The integer that the dot product takes for a code. Q2_K and Q3_K: with their small scale in it.
template <DType kType>
BATON_INLINE std::int32_t integer_of(std::uint32_t code, std::uint32_t small_scale) {
  const auto q = static_cast<std::int32_t>(code);
  const auto scale = static_cast<std::int32_t>(small_scale);
  switch (kType) {
    case DType::kQ4_0:
      return q - 8;
    case DType::kQ5_0:
      return q - 16;
    case DType::kQ8_0:
      return q - 128;
    case DType::kQ6K:
      return q - 32;
    case DType::kIq4Nl:
      return kIq4NlValues[code];
    case DType::kMxfp4:
      return kMxfp4Values[code];
    case DType::kQ2K:
      return (scale & 15) * q;
    case DType::kQ3K:
      return (32 - scale) * (q - 4);  // negated: [-124, 128] would not fit eight bits, this does
    default:
      return q;
  }
}

// word(j): codes of values 4j .. 4j + 3. All products of scales here are exact.
template <DType kType, class Word>
BATON_INLINE LaneBlock decode(const BlockScales& scales, Word&& word) {
  LaneBlock block;
  for (std::size_t i = 0; i < static_cast<std::size_t>(kQuantBlock); ++i) {
    const std::uint32_t code = word(i / 4) >> (8 * (i % 4)) & 0xFFU;
    block.values[i] = integer_of<kType>(code, scales.bytes[i / 16]);
  }
  const float d = f16_to_f32(scales.d);
  const float m = f16_to_f32(scales.m);
  for (std::size_t half = 0; half < 2; ++half) {
    block.scales[half] = d;
    block.minima[half] = m;
    if (kType == DType::kMxfp4) {
      block.scales[half] = mxfp4_scale(scales.bytes[0]);
    } else if (kType == DType::kQ4K || kType == DType::kQ5K) {
      block.scales[half] = d * static_cast<float>(scales.bytes[0]);
      block.minima[half] = -m * static_cast<float>(scales.bytes[1]);
    } else if (kType == DType::kQ6K) {
      block.scales[half] = d * static_cast<float>(static_cast<std::int8_t>(scales.bytes[half]));
    } else if (kType == DType::kQ2K) {
      block.minima[half] = -m * static_cast<float>(scales.bytes[half] >> 4U);
    } else if (kType == DType::kQ3K) {
      block.scales[half] = -d;
    }
  }
  return block;
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
