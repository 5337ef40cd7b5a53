// Arguments of the paged attention kernels (numerics rule 3 of docs/exactness.md). Keys are read in
// tiles of 32 at absolute positions and cut into parts at absolute multiples of 512. In a part: all
// visible scores (capped where the model does), one maximum, exp, weights rounded to the cache's
// dtype (bf16 only), their sum, then V in token order; parts are merged in order. The bytes depend
// on the query's position alone.
#pragma once

#include "baton/tensor/dtype.h"

#include <cstddef>
#include <cstdint>

namespace baton::kernels {

inline constexpr std::int64_t kTileKeys = 32;
// Part of what the bits mean: only bench/exactness builds with another value, to see what it costs.
#ifndef BATON_PART_KEYS
#define BATON_PART_KEYS 512
#endif
inline constexpr std::int64_t kPartKeys = BATON_PART_KEYS;

// A tile of one layer and kv head: the K plane, then the V plane, `kv_plane_bytes` each.
//   bf16: K [head_dim / 2][32][2], V [16][head_dim][2];  f32, f16: K [head_dim][32], V
//   [32][head_dim] q8_0: each plane has f16 scales [head_dim / 32][32 keys], then int8 as for f32
// f16 and q8_0 are widened to f32 exactly; what is beyond them when written is clamped. Aligned
// to 64. head_dim: even, 2 to kMaxHeadDim; for q8_0 a multiple of 32.
inline constexpr std::int64_t kMaxHeadDim = 512;
inline constexpr std::int64_t kKvScaleDims = 32;  // lanes that share a scale in q8_0
constexpr std::size_t kv_plane_bytes(tensor::DType dtype, std::int64_t head_dim) {
  const auto values = static_cast<std::size_t>(kTileKeys * head_dim);
  if (dtype == tensor::DType::kQ8_0) {
    return values + values / static_cast<std::size_t>(kKvScaleDims) * 2;
  }
  return values * (dtype == tensor::DType::kF32 ? 4 : 2);
}
constexpr std::size_t kv_tile_bytes(tensor::DType dtype, std::int64_t head_dim) {
  return 2 * kv_plane_bytes(dtype, head_dim);
}

struct KvWriteArgs {
  tensor::DType dtype = tensor::DType::kBf16;  // kBf16, kF16, kF32 or kQ8_0
  std::int64_t head_dim = 0;
  std::int64_t first_slot = 0;  // position % 32 of the first token; slot 0 zeroes the tile first
  std::int64_t tokens = 0;      // first_slot + tokens <= 32
  const float* k = nullptr;     // this head's K of token t at k + t * k_stride: f32 [head_dim]
  std::int64_t k_stride = 0;    // floats
  const float* v = nullptr;
  std::int64_t v_stride = 0;
  std::byte* tile = nullptr;
};

// Queries of one sequence that share one kv head. Query row r is query head r % group of token
// r / group; the token's position is first_position + r / group.
struct AttentionArgs {
  tensor::DType dtype = tensor::DType::kBf16;  // of the cache, as in KvWriteArgs
  std::int64_t head_dim = 0;
  const std::byte* const* tiles = nullptr;  // [p / 32] = the tile with position p
  std::int64_t first_position = 0;
  std::int64_t group = 1;          // query heads per kv head
  std::int64_t window_tokens = 0;  // a query at p sees (p - window, p]; 0 = all of [0, p]
  float scale = 1.0F;              // of the scores, usually 1 / sqrt(head_dim)
  const float* q = nullptr;        // row r at q + (r / group) * q_stride + (r % group) * head_dim
  std::int64_t q_stride = 0;       // floats between tokens
  float* out = nullptr;            // addressed as q, with out_stride
  std::int64_t out_stride = 0;
  float soft_cap = 0.0F;  // scaled scores become cap * tanh(score / cap); 0 = no cap
};

// Rows that a kernel may take through the tiles together.
inline constexpr std::int64_t kMaxQueryRows = 8;
std::size_t attention_scratch_bytes(std::int64_t head_dim);
// Floats of one partial: maximum, sum, two unused, out [head_dim]. An empty one has sum = 0.
constexpr std::int64_t attention_partial_floats(std::int64_t head_dim) { return head_dim + 4; }
// Parts that a query at `position` sees: [first_part, last_part).
constexpr std::int64_t attention_first_part(std::int64_t position, std::int64_t window_tokens) {
  const bool cut = window_tokens > 0 && position >= window_tokens;
  return cut ? (position - window_tokens + 1) / kPartKeys : 0;
}
constexpr std::int64_t attention_last_part(std::int64_t position) {
  return position / kPartKeys + 1;
}

}  // namespace baton::kernels
