// Weights as the matmul reads them, activations as it wants them, and single rows back to f32.
// Plain integer work, one implementation for every CPU. Thread: any, on ranges that do not overlap.
#pragma once

#include "baton/base/result.h"
#include "baton/tensor/dtype.h"

#include <cstddef>
#include <cstdint>

namespace baton::kernels {

inline constexpr std::int64_t kPanelOutputs = 16;  // one AVX-512 register of f32
inline constexpr std::int64_t kQuantBlock = 32;    // values per scale, weights and activations

// Panels, contiguous, 16 outputs each; K blocks in order inside. Total bytes are those of the GGUF
// rows (n rounded up to 16), Q4_K and Q5_K 2 to 3 %, Q3_K 4 % more:
//   F32   [k][16] f32          F16  [k][16] f16          BF16  [k/2][16][2] bf16
//   Q4_0  per block: [16] f16 d, then [4][16][4] bytes: word j of lane o holds values 4j..4j+3 of
//         output o in its low nibbles and 16+4j.. in its high ones
//   Q4_1  per block: [16] f16 d, [16] f16 m, then the nibbles as for Q4_0
//   Q8_0  per block: [16] f16 d, then [8][16][4] bytes q + 128: word j of lane o = values 4j..4j+3
//   others: the same with planes of nibbles, pairs of bits and bits, see blocks.h
std::int64_t panel_count(std::int64_t n);
std::size_t packed_panel_bytes(tensor::DType dtype, std::int64_t k);
std::size_t packed_bytes(tensor::DType dtype, std::int64_t n, std::int64_t k);

// Errors: kUnsupported when k is not whole blocks (bf16: not even), or a size is not positive.
Status check_weight_shape(tensor::DType dtype, std::int64_t n, std::int64_t k);

// rows: the whole weight [n][row_bytes(dtype, k)] as GGUF stores it; packed: the whole packed
// weight, aligned to 64. Only rows [16 first_panel, 16 last_panel) are read and only those panels
// written.
void repack(tensor::DType dtype, const std::byte* rows, std::int64_t n, std::int64_t k,
            std::int64_t first_panel, std::int64_t last_panel, std::byte* packed);

// out: f32 [k]. From one stored row, or from output `row` of a packed weight (a tied embedding is
// stored once). Both give the same bits: scale * integer (Q4_0: d * (q - 8); K-quants: the product
// of the scales is exact), plus the minimum where there is one, rounded twice.
void dequantize_row(tensor::DType dtype, const std::byte* row, std::int64_t k, float* out);
void dequantize_packed_row(tensor::DType dtype, const std::byte* packed, std::int64_t k,
                           std::int64_t row, float* out);

// What a weight type multiplies with. Weights of one format share prepared activations (q, k, v).
// kQ8Halves is kQ8 with sums over halves of a block, for scales or minima over 16 values.
enum class ActivationFormat : std::uint8_t { kF32, kBf16, kQ8, kQ8Halves };
inline constexpr std::size_t kActivationFormats = 4;
ActivationFormat activation_format(tensor::DType weights);
// Distance between prepared rows; a multiple of 16 that is no multiple of 4096 (cache sets).
std::size_t activation_row_bytes(ActivationFormat format, std::int64_t k);

// One block of a kQ8 activation row; a row is [k / 32] of them.
struct ActivationBlock {
  float scale;                  // value = scale * q
  float scaled_sum;             // scale * sum of q, for weights with a minimum
  std::int32_t minus_8_sums;    // -8 * sum of q: turns unsigned nibbles into Q4_0's
  std::int32_t minus_128_sums;  // -128 * sum of q: the same for Q8_0's bytes
  std::int8_t q[kQuantBlock];   // [-127, 127]
};
static_assert(sizeof(ActivationBlock) == 48);

// One block of a kQ8Halves row.
struct ActivationHalves {
  ActivationBlock whole;
  std::int32_t minus_32_sums[2];  // -32 * sum of 16 q: turns Q6_K's codes into signed ones
  float scaled_sums[2];           // scale * sum of 16 q, for minima over 16 values
};
static_assert(sizeof(ActivationHalves) == 64);

}  // namespace baton::kernels
