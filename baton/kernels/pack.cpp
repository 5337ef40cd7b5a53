// Repacking: a block of 16 outputs is transposed in words of four values, so that one SIMD lane
// meets the values of one output only, four at a time, in K order. See pack.h for the layouts.
#include "baton/kernels/pack.h"

#include "baton/base/check.h"
#include "baton/kernels/block_values.h"
#include "baton/kernels/half.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace baton::kernels {
namespace {

constexpr std::size_t kLanes = kPanelOutputs;

bool is_quantised(DType dtype) { return tensor::traits(dtype).block_values > 1; }

// Bits [bit, bit + kBits) of the eight words of codes into a plane of kWords words, see Packing.
template <std::size_t kWords, std::size_t kBits>
void pack_plane(const std::uint32_t* codes, std::uint32_t bit, std::byte* out) {
  constexpr std::size_t kPerWord = 8 / kWords;
  constexpr std::uint32_t kMask = ((1U << kBits) - 1U) * 0x01010101U;
  for (std::size_t word = 0; word < kWords; ++word) {
    std::uint32_t bytes = 0;
    for (std::size_t i = 0; i < kPerWord; ++i) {
      const std::size_t from = kBits == 4 ? word + 4 * i : kPerWord * word + i;
      bytes |= ((codes[from] >> bit) & kMask) << (kBits * i);
    }
    std::memcpy(out + kWordBytes * word, &bytes, sizeof bytes);
  }
}

// One stored super-block of output `lane` into the packed one.
template <DType kType>
void pack_super(const std::byte* stored, std::size_t lane, std::byte* packed) {
  constexpr Packing kPacking = packing(kType);
  for (std::size_t sub = 0; sub < kPacking.blocks; ++sub) {
    const BlockScales scales = stored_scales<kType>(stored, sub);
    if (sub == 0 && kPacking.halves > 0) {
      std::memcpy(packed + 2 * lane, &scales.d, 2);
      if (kPacking.halves > 1) {
        std::memcpy(packed + 2 * (kLanes + lane), &scales.m, 2);
      }
    }
    std::byte* out = packed + packed_head_bytes(kPacking) + sub * packed_block_bytes(kPacking);
    for (std::size_t i = 0; i < kPacking.bytes; ++i) {
      out[i * kLanes + lane] = static_cast<std::byte>(scales.bytes[i]);
    }
    out += packed_scale_bytes(kPacking) + 4 * lane;
    std::uint32_t codes[8];
    if constexpr (kPacking.blocks == 1 && kPacking.four && !kPacking.one) {
      // The stored nibbles pair values i and i + 16 already.
      const std::byte* nibbles = stored + tensor::traits(kType).block_bytes - kQuantBlock / 2;
      for (std::size_t word = 0; word < 4; ++word) {
        std::memcpy(out + kWordBytes * word, nibbles + 4 * word, 4);
      }
      continue;
    }
    for (std::size_t j = 0; j < 8; ++j) {
      codes[j] = stored_word<kType>(stored, sub, j);
    }
    std::uint32_t bit = 0;
    if constexpr (kPacking.eight) {
      pack_plane<8, 8>(codes, 0, out);
    }
    if constexpr (kPacking.four) {
      pack_plane<4, 4>(codes, 0, out);
      bit = 4;
      out += 4 * kWordBytes;
    }
    if constexpr (kPacking.two) {
      pack_plane<2, 2>(codes, bit, out);
      bit += 2;
      out += 2 * kWordBytes;
    }
    if constexpr (kPacking.one) {
      pack_plane<1, 1>(codes, bit, out);
    }
  }
}

void pack_plain(DType dtype, const std::byte* row, std::int64_t k, std::size_t lane,
                std::byte* panel) {
  const std::size_t width = tensor::traits(dtype).block_bytes;
  // bf16 keeps two values of k together in a lane.
  const std::size_t together = dtype == DType::kBf16 ? 2 : 1;
  const std::size_t bytes = width * together;
  const std::size_t groups = static_cast<std::size_t>(k) / together;
  for (std::size_t group = 0; group < groups; ++group) {
    std::memcpy(panel + (group * kLanes + lane) * bytes, row + group * bytes, bytes);
  }
}

void pack_panel(DType dtype, const std::byte* rows, std::int64_t valid, std::int64_t k,
                std::byte* panel) {
  if (valid < kPanelOutputs) {
    std::memset(panel, 0, packed_panel_bytes(dtype, k));
  }
  const std::size_t row_bytes = tensor::row_bytes(dtype, k);
  if (!is_quantised(dtype)) {
    for (std::size_t lane = 0; lane < static_cast<std::size_t>(valid); ++lane) {
      pack_plain(dtype, rows + lane * row_bytes, k, lane, panel);
    }
    return;
  }
  with_quantised_type(dtype, [&](auto type) {
    const std::size_t stored_bytes = tensor::traits(type).block_bytes;
    const auto supers = static_cast<std::size_t>(k / tensor::traits(type).block_values);
    for (std::size_t super = 0; super < supers; ++super) {
      std::byte* to = panel + super * packed_super_bytes(packing(type));
      for (std::size_t lane = 0; lane < static_cast<std::size_t>(valid); ++lane) {
        pack_super<type>(rows + lane * row_bytes + super * stored_bytes, lane, to);
      }
    }
  });
}

void write_values(const LaneBlock& block, bool has_minimum, float* out) {
  for (std::size_t i = 0; i < static_cast<std::size_t>(kQuantBlock); ++i) {
    const float scaled = block.scales[i / 16] * static_cast<float>(block.values[i]);
    out[i] = has_minimum ? scaled + block.minima[i / 16] : scaled;
  }
}

float plain_value(DType dtype, const std::byte* from) {
  if (dtype == DType::kF32) {
    float value;
    std::memcpy(&value, from, sizeof value);
    return value;
  }
  const std::uint16_t bits = load_u16(from);
  return dtype == DType::kF16 ? f16_to_f32(bits) : bf16_to_f32(bits);
}

}  // namespace

std::int64_t panel_count(std::int64_t n) { return (n + kPanelOutputs - 1) / kPanelOutputs; }

std::size_t packed_panel_bytes(DType dtype, std::int64_t k) {
  if (!is_quantised(dtype)) {
    return kLanes * tensor::row_bytes(dtype, k);
  }
  return static_cast<std::size_t>(k / tensor::traits(dtype).block_values) *
         packed_super_bytes(packing(dtype));
}

std::size_t packed_bytes(DType dtype, std::int64_t n, std::int64_t k) {
  return static_cast<std::size_t>(panel_count(n)) * packed_panel_bytes(dtype, k);
}

Status check_weight_shape(DType dtype, std::int64_t n, std::int64_t k) {
  const std::int64_t multiple = dtype == DType::kBf16 ? 2 : tensor::traits(dtype).block_values;
  if (n <= 0 || k <= 0 || k % multiple != 0) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("a {} weight of {} outputs and {} inputs: inputs must be a positive "
                            "multiple of {}",
                            tensor::dtype_name(dtype), n, k, multiple));
  }
  return {};
}

void repack(DType dtype, const std::byte* rows, std::int64_t n, std::int64_t k,
            std::int64_t first_panel, std::int64_t last_panel, std::byte* packed) {
  const std::size_t row_bytes = tensor::row_bytes(dtype, k);
  for (std::int64_t panel = first_panel; panel < last_panel; ++panel) {
    const std::int64_t first_row = panel * kPanelOutputs;
    pack_panel(dtype, rows + static_cast<std::size_t>(first_row) * row_bytes,
               std::min(kPanelOutputs, n - first_row), k,
               packed + static_cast<std::size_t>(panel) * packed_panel_bytes(dtype, k));
  }
}

void dequantize_row(DType dtype, const std::byte* row, std::int64_t k, float* out) {
  const std::size_t block_bytes = tensor::traits(dtype).block_bytes;
  if (!is_quantised(dtype)) {
    for (std::int64_t i = 0; i < k; ++i) {
      out[i] = plain_value(dtype, row + static_cast<std::size_t>(i) * block_bytes);
    }
    return;
  }
  with_quantised_type(dtype, [&](auto type) {
    constexpr Packing kPacking = packing(type);
    for (std::int64_t block = 0; block < k / kQuantBlock; ++block) {
      const auto index = static_cast<std::size_t>(block);
      const std::byte* super = row + index / kPacking.blocks * block_bytes;
      const std::size_t sub = index % kPacking.blocks;
      const LaneBlock values = decode<type>(stored_scales<type>(super, sub), [&](std::size_t j) {
        return stored_word<type>(super, sub, j);
      });
      write_values(values, kPacking.halves == 2, out + block * kQuantBlock);
    }
  });
}

void dequantize_packed_row(DType dtype, const std::byte* packed, std::int64_t k, std::int64_t row,
                           float* out) {
  const std::byte* panel =
      packed + static_cast<std::size_t>(row / kPanelOutputs) * packed_panel_bytes(dtype, k);
  const auto lane = static_cast<std::size_t>(row % kPanelOutputs);
  if (!is_quantised(dtype)) {
    const std::size_t width = tensor::traits(dtype).block_bytes;
    const std::size_t together = dtype == DType::kBf16 ? 2 : 1;
    for (std::size_t i = 0; i < static_cast<std::size_t>(k); ++i) {
      const std::size_t index = (i / together * kLanes + lane) * together + i % together;
      out[i] = plain_value(dtype, panel + index * width);
    }
    return;
  }
  with_quantised_type(dtype, [&](auto type) {
    constexpr Packing kPacking = packing(type);
    for (std::int64_t block = 0; block < k / kQuantBlock; ++block) {
      const auto index = static_cast<std::size_t>(block);
      const std::byte* super = panel + index / kPacking.blocks * packed_super_bytes(kPacking);
      const std::size_t sub = index % kPacking.blocks;
      const LaneBlock values =
          decode<type>(packed_scales<type>(super, sub, lane),
                       [&](std::size_t j) { return packed_word<type>(super, sub, lane, j); });
      write_values(values, kPacking.halves == 2, out + block * kQuantBlock);
    }
  });
}

ActivationFormat activation_format(DType weights) {
  switch (weights) {
    case DType::kF32:
    case DType::kF16:
      return ActivationFormat::kF32;
    case DType::kBf16:
      return ActivationFormat::kBf16;
    case DType::kQ4_0:
    case DType::kQ4_1:
    case DType::kQ8_0:
    case DType::kQ5_0:
    case DType::kQ5_1:
    case DType::kQ3K:
    case DType::kQ4K:
    case DType::kQ5K:
    case DType::kIq4Nl:
    case DType::kMxfp4:
      return ActivationFormat::kQ8;
    case DType::kQ2K:
    case DType::kQ6K:
      return ActivationFormat::kQ8Halves;
  }
  BATON_CHECK(false, "dtype {}", static_cast<int>(weights));
}

std::size_t activation_row_bytes(ActivationFormat format, std::int64_t k) {
  const auto values = static_cast<std::size_t>(k);
  std::size_t bytes = values * 4;
  if (format == ActivationFormat::kBf16) {
    bytes = values * 2;
  } else if (format == ActivationFormat::kQ8) {
    bytes = values / kQuantBlock * sizeof(ActivationBlock);
  } else if (format == ActivationFormat::kQ8Halves) {
    bytes = values / kQuantBlock * sizeof(ActivationHalves);
  }
  bytes = (bytes + 15) / 16 * 16;
  // Rows a multiple of 4096 apart would share one set of the first-level cache.
  constexpr std::size_t kSetPeriod = 4096;
  constexpr std::size_t kLine = 64;
  return bytes % kSetPeriod == 0 ? bytes + kLine : bytes;
}

}  // namespace baton::kernels
