// Codes and scales of quantised blocks as GGUF stores them (ggml-common.h has the same structs).
// Internal to kernels/. Thread: any.
#pragma once

#include "baton/kernels/blocks.h"
#include "baton/kernels/half.h"

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace baton::kernels {

// Scales of one output and block, not yet multiplied.
struct BlockScales {
  std::uint16_t d = 0;
  std::uint16_t m = 0;
  std::uint8_t bytes[2] = {0, 0};
};

BATON_INLINE std::uint32_t load_u32(const std::byte* from) {
  std::uint32_t value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

// Four bits, one to a byte.
BATON_INLINE std::uint32_t spread_bits(std::uint32_t bits) {
  return ((bits & 15U) * 0x00204081U) & 0x01010101U;
}

// Codes of values 4j .. 4j + 3 of block `sub` of the stored block `super` of 32 or 256 values, one
// to a byte, as they are stored (Q8_0: q + 128).
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

}  // namespace baton::kernels
