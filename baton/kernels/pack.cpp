// Repacking: a block of 16 outputs is transposed in words of four values, so that one SIMD lane
// meets the values of one output only, four at a time, in K order. See pack.h for the layouts.
#include "baton/kernels/pack.h"

#include "baton/base/check.h"
#include "baton/kernels/half.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace baton::kernels {
namespace {

using tensor::DType;

constexpr std::size_t kLanes = kPanelOutputs;

// Bytes of scales (and minima) before the values of a packed block.
std::size_t head_bytes(DType dtype) { return dtype == DType::kQ4_1 ? 4 * kLanes : 2 * kLanes; }

bool is_quantised(DType dtype) {
  return dtype == DType::kQ4_0 || dtype == DType::kQ4_1 || dtype == DType::kQ8_0;
}

// One stored block of output `lane` into the packed block.
void pack_block(DType dtype, const std::byte* block, std::size_t lane, std::byte* packed) {
  const std::size_t scales = head_bytes(dtype) / kLanes;  // bytes per output: d, or d and m
  std::memcpy(packed + 2 * lane, block, 2);
  if (dtype == DType::kQ4_1) {
    std::memcpy(packed + 2 * kLanes + 2 * lane, block + 2, 2);
  }
  const std::byte* values = block + scales;
  std::byte* out = packed + head_bytes(dtype) + 4 * lane;
  const std::size_t words = dtype == DType::kQ8_0 ? 8 : 4;
  for (std::size_t word = 0; word < words; ++word) {
    std::uint32_t bytes;
    std::memcpy(&bytes, values + 4 * word, 4);
    if (dtype == DType::kQ8_0) {
      bytes ^= 0x80808080U;  // q + 128
    }
    std::memcpy(out + 4 * kLanes * word, &bytes, 4);
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
  const std::size_t block_bytes = tensor::traits(dtype).block_bytes;
  const std::size_t blocks = static_cast<std::size_t>(k / kQuantBlock);
  for (std::size_t block = 0; block < blocks; ++block) {
    for (std::size_t lane = 0; lane < static_cast<std::size_t>(valid); ++lane) {
      pack_block(dtype, rows + lane * row_bytes + block * block_bytes, lane,
                 panel + block * block_bytes * kLanes);
    }
  }
}

// Values of one block, from wherever its scale, minimum and words lie. word(j) gives the four
// bytes of stored word j; Q8_0's are signed already.
template <class Word>
void dequantize_block(DType dtype, float d, float m, Word&& word, float* out) {
  if (dtype == DType::kQ8_0) {
    for (std::size_t j = 0; j < 8; ++j) {
      const std::uint32_t bytes = word(j);
      for (std::size_t i = 0; i < 4; ++i) {
        out[4 * j + i] = d * static_cast<float>(static_cast<std::int8_t>(bytes >> (8 * i)));
      }
    }
    return;
  }
  for (std::size_t j = 0; j < 4; ++j) {
    const std::uint32_t bytes = word(j);
    for (std::size_t i = 0; i < 4; ++i) {
      const auto byte = static_cast<int>((bytes >> (8 * i)) & 0xFFU);
      const int bias = dtype == DType::kQ4_0 ? 8 : 0;
      const float low = d * static_cast<float>((byte & 15) - bias);
      const float high = d * static_cast<float>((byte >> 4) - bias);
      out[4 * j + i] = dtype == DType::kQ4_1 ? low + m : low;
      out[16 + 4 * j + i] = dtype == DType::kQ4_1 ? high + m : high;
    }
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

std::uint32_t load_word(const std::byte* from) {
  std::uint32_t value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

}  // namespace

std::int64_t panel_count(std::int64_t n) { return (n + kPanelOutputs - 1) / kPanelOutputs; }

std::size_t packed_panel_bytes(DType dtype, std::int64_t k) {
  return kLanes * tensor::row_bytes(dtype, k);
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
  for (std::int64_t block = 0; block < k / kQuantBlock; ++block) {
    const std::byte* from = row + static_cast<std::size_t>(block) * block_bytes;
    const float d = f16_to_f32(load_u16(from));
    const float m = dtype == DType::kQ4_1 ? f16_to_f32(load_u16(from + 2)) : 0.0F;
    const std::byte* values = from + head_bytes(dtype) / kLanes;
    dequantize_block(
        dtype, d, m, [values](std::size_t j) { return load_word(values + 4 * j); },
        out + block * kQuantBlock);
  }
}

void dequantize_packed_row(DType dtype, const std::byte* packed, std::int64_t k, std::int64_t row,
                           float* out) {
  const std::byte* panel =
      packed + static_cast<std::size_t>(row / kPanelOutputs) * packed_panel_bytes(dtype, k);
  const auto lane = static_cast<std::size_t>(row % kPanelOutputs);
  const std::size_t width = tensor::traits(dtype).block_bytes;
  if (!is_quantised(dtype)) {
    const std::size_t together = dtype == DType::kBf16 ? 2 : 1;
    for (std::size_t i = 0; i < static_cast<std::size_t>(k); ++i) {
      const std::size_t index = (i / together * kLanes + lane) * together + i % together;
      out[i] = plain_value(dtype, panel + index * width);
    }
    return;
  }
  const std::uint32_t flip = dtype == DType::kQ8_0 ? 0x80808080U : 0U;
  for (std::int64_t block = 0; block < k / kQuantBlock; ++block) {
    const std::byte* from = panel + static_cast<std::size_t>(block) * width * kLanes;
    const float d = f16_to_f32(load_u16(from + 2 * lane));
    const float m =
        dtype == DType::kQ4_1 ? f16_to_f32(load_u16(from + 2 * kLanes + 2 * lane)) : 0.0F;
    const std::byte* values = from + head_bytes(dtype) + 4 * lane;
    dequantize_block(
        dtype, d, m, [=](std::size_t j) { return load_word(values + 4 * kLanes * j) ^ flip; },
        out + block * kQuantBlock);
  }
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
      return ActivationFormat::kQ8;
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
  }
  bytes = (bytes + 15) / 16 * 16;
  // Rows a multiple of 4096 apart would share one set of the first-level cache.
  constexpr std::size_t kSetPeriod = 4096;
  constexpr std::size_t kLine = 64;
  return bytes % kSetPeriod == 0 ? bytes + kLine : bytes;
}

}  // namespace baton::kernels
