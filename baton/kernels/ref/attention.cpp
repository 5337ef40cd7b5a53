// Attention of the reference table: one query, one key, one value at a time, as numerics rule 3
// defines it. Invisible keys of a visited tile have weight +0 and their V is read as +0.
#include "baton/kernels/half.h"
#include "baton/kernels/ref/scalar.h"
#include "baton/kernels/ref/table.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

namespace baton::kernels::ref {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

struct Range {
  std::int64_t first;
  std::int64_t last;
};

Range visible(const AttentionArgs& args, std::int64_t row) {
  const std::int64_t position = args.first_position + row / args.group;
  const std::int64_t first =
      args.window_tokens > 0 ? std::max<std::int64_t>(0, position - args.window_tokens + 1) : 0;
  return {first, position + 1};
}

const float* query(const AttentionArgs& args, std::int64_t row) {
  return args.q + (row / args.group) * args.q_stride + (row % args.group) * args.head_dim;
}
float* output(const AttentionArgs& args, std::int64_t row) {
  return args.out + (row / args.group) * args.out_stride + (row % args.group) * args.head_dim;
}

// Keys or lanes that lie together, see attention.h.
std::int64_t together_of(DType dtype) { return dtype == DType::kBf16 ? 2 : 1; }

// A plane's element `index`; q8_0 has its scale, an f16, at `scale_index`.
float read(DType dtype, std::int64_t head_dim, const std::byte* plane, std::int64_t index,
           std::int64_t scale_index) {
  const auto at = static_cast<std::size_t>(index);
  switch (dtype) {
    case DType::kF32: {
      float value;
      std::memcpy(&value, plane + 4 * at, sizeof value);
      return value;
    }
    case DType::kF16:
      return f16_to_f32(load_u16(plane + 2 * at));
    case DType::kQ8_0: {
      const auto byte = static_cast<std::int8_t>(plane[head_dim * 2 + index]);
      return static_cast<float>(byte) * f16_to_f32(load_u16(plane + 2 * scale_index));
    }
    default:
      return bf16_to_f32(load_u16(plane + 2 * at));
  }
}

// Queries and weights are rounded for a bf16 cache only.
float round_to(DType dtype, float value) {
  return dtype == DType::kBf16 ? bf16_to_f32(f32_to_bf16(value)) : value;
}

// Values of a pair (p = 2) or one value (p = 1) in the order of rule 5: the odd one first.
template <class Each>
void in_pair_order(std::int64_t together, std::int64_t count, Each&& each) {
  for (std::int64_t base = 0; base < count; base += together) {
    for (std::int64_t i = together - 1; i >= 0; --i) {
      each(base + i, base / together, i);
    }
  }
}

float score(const AttentionArgs& args, const float* q, std::int64_t key) {
  const std::byte* k_plane = args.tiles[key / kTileKeys];
  const std::int64_t together = together_of(args.dtype);
  float sum = 0.0F;
  in_pair_order(together, args.head_dim, [&](std::int64_t dim, std::int64_t pair, std::int64_t i) {
    const std::int64_t at = (pair * kTileKeys + key % kTileKeys) * together + i;
    const std::int64_t scale_at = dim / kKvScaleDims * kTileKeys + key % kTileKeys;
    const float value = read(args.dtype, args.head_dim, k_plane, at, scale_at);
    sum = fma(value, round_to(args.dtype, q[dim]), sum);
  });
  const float score = sum * args.scale;
  return args.soft_cap > 0.0F ? tanh1(score / args.soft_cap) * args.soft_cap : score;
}

// partial: maximum, sum, -, -, out [head_dim].
void one_part(const AttentionArgs& args, std::int64_t row, std::int64_t part, float* partial) {
  const Range all = visible(args, row);
  const Range seen{std::max(all.first, part * kPartKeys),
                   std::min(all.last, (part + 1) * kPartKeys)};
  std::fill_n(partial, attention_partial_floats(args.head_dim), 0.0F);
  if (seen.first >= seen.last) {
    return;
  }
  std::array<float, kPartKeys> weights{};
  Lanes maxima;
  maxima.fill(kMinusInfinity);
  for (std::int64_t key = seen.first; key < seen.last; ++key) {
    float& weight = weights[static_cast<std::size_t>(key % kPartKeys)];
    weight = score(args, query(args, row), key);
    float& lane = maxima[static_cast<std::size_t>(key % 16)];
    lane = max2(weight, lane);
  }
  const float maximum = reduce_max(maxima);
  Lanes sums{};
  for (std::int64_t key = seen.first; key < seen.last; ++key) {
    float& weight = weights[static_cast<std::size_t>(key % kPartKeys)];
    weight = round_to(args.dtype, exp1(weight - maximum));
    sums[static_cast<std::size_t>(key % 16)] += weight;
  }
  partial[0] = maximum;
  partial[1] = reduce_sum(sums);
  const std::int64_t together = together_of(args.dtype);
  for (std::int64_t tile = seen.first / kTileKeys; tile * kTileKeys < seen.last; ++tile) {
    const std::byte* v_plane = args.tiles[tile] + kv_plane_bytes(args.dtype, args.head_dim);
    in_pair_order(together, kTileKeys, [&](std::int64_t slot, std::int64_t pair, std::int64_t i) {
      const std::int64_t key = tile * kTileKeys + slot;
      const bool is_seen = key >= seen.first && key < seen.last;
      const float weight = is_seen ? weights[static_cast<std::size_t>(key % kPartKeys)] : 0.0F;
      for (std::int64_t dim = 0; dim < args.head_dim; ++dim) {
        const std::int64_t at = (pair * args.head_dim + dim) * together + i;
        const std::int64_t scale_at = dim / kKvScaleDims * kTileKeys + slot;
        const float value = is_seen ? read(args.dtype, args.head_dim, v_plane, at, scale_at) : 0.0F;
        partial[4 + dim] = fma(value, weight, partial[4 + dim]);
      }
    });
  }
}

void merge_into(float* merged, const float* partial, std::int64_t head_dim) {
  if (partial[1] == 0.0F) {
    return;
  }
  if (merged[1] == 0.0F) {
    std::copy_n(partial, attention_partial_floats(head_dim), merged);
    return;
  }
  const float maximum = max2(merged[0], partial[0]);
  const float old_scale = exp1(merged[0] - maximum);
  const float new_scale = exp1(partial[0] - maximum);
  merged[0] = maximum;
  for (std::int64_t i = 1; i < attention_partial_floats(head_dim); ++i) {
    merged[i] = fma(partial[i], new_scale, merged[i] * old_scale);
  }
}

void finish(const AttentionArgs& args, std::int64_t row, const float* merged) {
  for (std::int64_t dim = 0; dim < args.head_dim; ++dim) {
    output(args, row)[dim] = merged[4 + dim] / merged[1];
  }
}

void write_value(DType dtype, std::byte* plane, std::int64_t index, float value) {
  const auto at = static_cast<std::size_t>(index);
  if (dtype == DType::kF32) {
    std::memcpy(plane + 4 * at, &value, sizeof value);
    return;
  }
  const float bounded = min2(max2(value, -kLargestHalf), kLargestHalf);
  const std::uint16_t bits = dtype == DType::kF16 ? f32_to_f16(bounded) : f32_to_bf16(value);
  std::memcpy(plane + 2 * at, &bits, sizeof bits);
}

// 32 lanes of one token, K or V: byte i at `stride` * i behind the first.
void write_q8(const float* x, std::byte* scale_to, std::byte* to, std::int64_t stride) {
  const std::uint16_t scale = q8_scale(largest_magnitude(x));
  std::memcpy(scale_to, &scale, sizeof scale);
  for (std::int64_t i = 0; i < kKvScaleDims; ++i) {
    to[stride * i] = static_cast<std::byte>(quantise(x[i], q8_inverse(scale)));
  }
}

}  // namespace

void write_kv(const KvWriteArgs& args) {
  const std::size_t plane_bytes = kv_plane_bytes(args.dtype, args.head_dim);
  std::byte* k_plane = args.tile;
  std::byte* v_plane = args.tile + plane_bytes;
  if (args.first_slot == 0) {
    std::memset(args.tile, 0, 2 * plane_bytes);
  }
  const std::int64_t together = together_of(args.dtype);
  for (std::int64_t token = 0; token < args.tokens; ++token) {
    const std::int64_t slot = args.first_slot + token;
    const float* k = args.k + token * args.k_stride;
    const float* v = args.v + token * args.v_stride;
    if (args.dtype == DType::kQ8_0) {
      const std::int64_t values = args.head_dim * 2;  // scales of 2 bytes for 32 x 32 lanes first
      for (std::int64_t dim = 0; dim < args.head_dim; dim += kKvScaleDims) {
        const std::int64_t scale = 2 * (dim / kKvScaleDims * kTileKeys + slot);
        write_q8(k + dim, k_plane + scale, k_plane + values + dim * kTileKeys + slot, kTileKeys);
        write_q8(v + dim, v_plane + scale, v_plane + values + slot * args.head_dim + dim, 1);
      }
      continue;
    }
    for (std::int64_t dim = 0; dim < args.head_dim; ++dim) {
      write_value(args.dtype, k_plane,
                  (dim / together * kTileKeys + slot) * together + dim % together, k[dim]);
      write_value(args.dtype, v_plane,
                  (slot / together * args.head_dim + dim) * together + slot % together, v[dim]);
    }
  }
}

void attention_part(const AttentionArgs& args, std::int64_t first_row, std::int64_t last_row,
                    std::int64_t part, float* partials, std::byte* /*scratch*/) {
  for (std::int64_t row = first_row; row < last_row; ++row) {
    one_part(args, row, part,
             partials + (row - first_row) * attention_partial_floats(args.head_dim));
  }
}

void attention_merge(const AttentionArgs& args, std::int64_t first_row, std::int64_t last_row,
                     std::int64_t parts, const float* partials) {
  const std::int64_t stride = attention_partial_floats(args.head_dim);
  const std::int64_t rows = last_row - first_row;
  std::array<float, kMaxHeadDim + 4> merged;
  for (std::int64_t row = 0; row < rows; ++row) {
    merged.fill(0.0F);
    for (std::int64_t part = 0; part < parts; ++part) {
      merge_into(merged.data(), partials + (part * rows + row) * stride, args.head_dim);
    }
    finish(args, first_row + row, merged.data());
  }
}

void attention(const AttentionArgs& args, std::int64_t first_row, std::int64_t last_row,
               std::byte* /*scratch*/) {
  std::array<float, kMaxHeadDim + 4> merged;
  std::array<float, kMaxHeadDim + 4> partial;
  for (std::int64_t row = first_row; row < last_row; ++row) {
    const Range all = visible(args, row);
    merged.fill(0.0F);
    for (std::int64_t part = all.first / kPartKeys; part * kPartKeys < all.last; ++part) {
      one_part(args, row, part, partial.data());
      merge_into(merged.data(), partial.data(), args.head_dim);
    }
    finish(args, row, merged.data());
  }
}

}  // namespace baton::kernels::ref
