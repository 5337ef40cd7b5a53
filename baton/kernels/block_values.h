// Codes and scales of quantised blocks out of a packed panel, and the numbers that codes from
// either place stand for. Internal to kernels/. Thread: any.
#pragma once

#include "baton/kernels/blocks.h"
#include "baton/kernels/half.h"
#include "baton/kernels/stored_block.h"

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace baton::kernels {

// One output's 32 values: value i = scales[i / 16] * values[i] + minima[i / 16], the product and
// the sum rounded each; without a minimum nothing is added.
struct LaneBlock {
  std::int32_t values[kQuantBlock];
  float scales[2];
  float minima[2];
};

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

}  // namespace baton::kernels
