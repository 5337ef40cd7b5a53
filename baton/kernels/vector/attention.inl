// Paged attention over sixteen lanes, included by avx2/attention.cpp and avx512/attention.cpp after
// their simd.h, inside the namespace of the instruction set. Both products put
// one key or one output in a lane; several queries share a loaded tile, which changes no bit.
//
// Everything is counted in words: a pair of bf16, or one value of another type. A K plane is [word
// of head_dim][32 keys], a V plane [word of 32 keys][head_dim]; queries and weights are words of
// four bytes, pairs of bf16 or f32.
#include "baton/kernels/vector/cache.inl"
#include "baton/kernels/vector/exp.inl"

namespace {

constexpr float kMinusInfinity = -__builtin_inff();
constexpr std::int64_t kWord = 4;
constexpr std::int64_t kHeader = 4;  // floats of a partial before its output

BATON_INLINE std::int64_t larger(std::int64_t a, std::int64_t b) { return a > b ? a : b; }
BATON_INLINE std::int64_t lanes_below(std::int64_t n) { return smaller(larger(n, 0), 16); }
BATON_INLINE std::int64_t position_of(const AttentionArgs& args, std::int64_t row) {
  return args.first_position + row / args.group;
}

// Keys [first, last).
struct Seen {
  std::int64_t first;
  std::int64_t last;
};

BATON_INLINE Seen seen_in_part(const AttentionArgs& args, std::int64_t row, std::int64_t part) {
  const std::int64_t position = position_of(args, row);
  const std::int64_t start =
      args.window_tokens > 0 ? larger(0, position - args.window_tokens + 1) : 0;
  return {larger(start, part * kPartKeys), smaller(position + 1, (part + 1) * kPartKeys)};
}

// The caller's scratch, see attention_scratch_bytes().
struct Scratch {
  float* scores;  // [kScoreRows][kPartKeys]
  std::byte*
      weights;  // [kScoreRows][kPartKeys], rounded to the cache's type; rows 2,048 bytes apart
  std::byte* queries;  // [kScoreRows][head_dim] rounded; rows 4 * head_dim bytes apart
  float* partials;     // [kScoreRows][partial]
  float* merged;       // [kScoreRows][partial]
};
constexpr std::int64_t kWeightStride = kPartKeys * kWord;

Scratch divide(std::byte* scratch, std::int64_t head_dim) {
  static_assert(kScoreRows <= kMaxQueryRows);
  Scratch parts{};
  parts.scores = reinterpret_cast<float*>(scratch);
  parts.weights = scratch + kScoreRows * kPartKeys * kWord;
  parts.queries = parts.weights + kScoreRows * kWeightStride;
  const std::int64_t dims = (head_dim + 15) / 16 * 16;
  parts.partials = reinterpret_cast<float*>(parts.queries + kScoreRows * dims * kWord);
  parts.merged = parts.partials + kScoreRows * (dims + 16);
  return parts;
}

// ---- scores ----

template <class Cache, int kRows>
void score_tile(const std::byte* keys, const std::byte* queries, std::int64_t head_dim,
                float* scores) {
  V sums[kRows][2];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    sums[r][0] = sums[r][1] = zero();
  }
  const std::int64_t words = head_dim / Cache::kTogether;
  for (std::int64_t word = 0; word < words; ++word) {
    const auto low = Cache::keys(keys, head_dim, word, 0);
    const auto high = Cache::keys(keys, head_dim, word, 16);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const auto q = Cache::broadcast(queries + (r * head_dim + word) * kWord);
      sums[r][0] = Cache::dot(sums[r][0], low, q);
      sums[r][1] = Cache::dot(sums[r][1], high, q);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    store(scores + r * kPartKeys, sums[r][0]);
    store(scores + r * kPartKeys + 16, sums[r][1]);
  }
}

template <class Cache, int... kRows>
void score_rows(std::integer_sequence<int, kRows...> /*unused*/, std::int64_t rows,
                const std::byte* keys, const std::byte* queries, std::int64_t head_dim,
                float* scores) {
  using Function = void (*)(const std::byte*, const std::byte*, std::int64_t, float*);
  static constexpr Function kFunctions[] = {score_tile<Cache, kRows + 1>...};
  kFunctions[rows - 1](keys, queries, head_dim, scores);
}

// ---- weights ----

// Scores of one row to rounded weights; writes the partial's maximum and sum. `seen` is not empty.
template <class Cache>
void weigh_row(const AttentionArgs& args, Seen seen, std::int64_t part, float* scores,
               std::byte* weights, float* partial) {
  const std::int64_t base = part * kPartKeys;
  const std::int64_t first = seen.first / kTileKeys * kTileKeys;
  const std::int64_t last = (seen.last + kTileKeys - 1) / kTileKeys * kTileKeys;
  V largest = set1(kMinusInfinity);
  for (std::int64_t key = first; key < last; key += 16) {
    V score = mul(load(scores + key - base), set1(args.scale));
    if (args.soft_cap > 0.0F) {
      score = mul(tanh16(div(score, set1(args.soft_cap))), set1(args.soft_cap));
    }
    if (key < seen.first || key + 16 > seen.last) {
      score = select_lanes(score, set1(kMinusInfinity), lanes_below(seen.first - key),
                           lanes_below(seen.last - key));
    }
    store(scores + key - base, score);
    largest = max2(score, largest);
  }
  const float maximum = reduce_max(largest);
  V sum = zero();
  for (std::int64_t key = first; key < last; key += 16) {
    const V weight = Cache::round(exp16(sub(load(scores + key - base), set1(maximum))));
    sum = add(sum, weight);
    Cache::store_rounded(weights, key - base, weight);
  }
  partial[0] = maximum;
  partial[1] = reduce_sum(sum);
}

// ---- values ----

struct ValueArgs {
  const std::byte* const* tiles;
  std::int64_t first_tile;
  std::int64_t last_tile;
  std::int64_t part;
  std::int64_t head_dim;
  std::size_t plane_bytes;
  Seen seen;                 // of these rows; used by the masked form only
  const std::byte* weights;  // of the first row
  float* out;                // of the first row, at the first lane wanted
  std::int64_t out_stride;
  std::int64_t dim;    // first lane wanted
  std::int64_t lanes;  // of the last vector, 1 to 16
};

// out[row][lanes] += weights[row] * V over whole tiles, in key order.
template <class Cache, int kRows, int kVectors, bool kMasked>
void add_values(const ValueArgs& args) {
  V sums[kRows][kVectors];
  const auto load_values = [&](const std::byte* plane, std::int64_t word, std::int64_t dim)
      __attribute__((always_inline)) {
    return kVectors == 1 ? Cache::first_values(plane, args.head_dim, word, dim, args.lanes)
                         : Cache::values(plane, args.head_dim, word, dim);
  };
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const float* from = args.out + r * args.out_stride + 16 * v;
      sums[r][v] = kVectors == 1 ? load_first(from, args.lanes) : load(from);
    }
  }
  for (std::int64_t tile = args.first_tile; tile < args.last_tile; ++tile) {
    const std::byte* values = args.tiles[tile] + args.plane_bytes;
    const std::int64_t in_part = (tile * kTileKeys - args.part * kPartKeys) / Cache::kTogether;
    const std::byte* weights = args.weights + in_part * kWord;
    for (std::int64_t word = 0; word < kTileKeys / Cache::kTogether; ++word) {
      typename Cache::Words loaded[kVectors];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        loaded[v] = load_values(values, word, args.dim + 16 * v);
        if constexpr (kMasked) {
          loaded[v] = Cache::keep_seen(loaded[v], word, args.seen.first - tile * kTileKeys,
                                       args.seen.last - tile * kTileKeys);
        }
      }
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        const auto weight = Cache::broadcast(weights + r * kWeightStride + word * kWord);
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) {
          sums[r][v] = Cache::dot(sums[r][v], loaded[v], weight);
        }
      }
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      float* to = args.out + r * args.out_stride + 16 * v;
      if (kVectors == 1) {
        store_first(to, sums[r][v], args.lanes);
      } else {
        store(to, sums[r][v]);
      }
    }
  }
}

template <class Cache, int kVectors, bool kMasked, int... kRows>
void add_values_rows(std::integer_sequence<int, kRows...> /*unused*/, std::int64_t rows,
                     const ValueArgs& args) {
  using Function = void (*)(const ValueArgs&);
  static constexpr Function kFunctions[] = {add_values<Cache, kRows + 1, kVectors, kMasked>...};
  kFunctions[rows - 1](args);
}

// All lanes of rows [first_row, last_row), counted within the block, over args' tiles.
template <class Cache, bool kMasked>
void add_tiles(ValueArgs args, std::int64_t first_row, std::int64_t last_row) {
  if (args.first_tile >= args.last_tile) {
    return;
  }
  const auto sequence = std::make_integer_sequence<int, kValueRows>{};
  const std::byte* weights = args.weights;
  float* out = args.out;
  for (std::int64_t row = first_row; row < last_row; row += kValueRows) {
    const std::int64_t rows = smaller(kValueRows, last_row - row);
    args.weights = weights + row * kWeightStride;
    args.dim = 0;
    while (args.dim < args.head_dim) {
      const std::int64_t left = args.head_dim - args.dim;
      args.out = out + row * args.out_stride + args.dim;
      args.lanes = smaller(16, left);
      if (left >= 16 * kValueVectors) {
        add_values_rows<Cache, kValueVectors, kMasked>(sequence, rows, args);
        args.dim += 16 * kValueVectors;
      } else {
        add_values_rows<Cache, 1, kMasked>(sequence, rows, args);
        args.dim += 16;
      }
    }
  }
}

// ---- a part ----

// Rows [first_row, first_row + rows), at most kScoreRows, of one part into partials of `stride`.
template <class Cache>
void part_rows(const AttentionArgs& args, std::int64_t first_row, std::int64_t rows,
               std::int64_t part, float* partials, const Scratch& scratch) {
  const std::int64_t stride = attention_partial_floats(args.head_dim);
  Seen seen[kScoreRows];
  std::int64_t begin = rows;  // rows [begin, end) see something: never one between two that do not
  std::int64_t end = 0;
  for (std::int64_t r = 0; r < rows; ++r) {
    std::memset(partials + r * stride, 0, static_cast<std::size_t>(stride) * sizeof(float));
    seen[r] = seen_in_part(args, first_row + r, part);
    if (seen[r].first < seen[r].last) {
      begin = smaller(begin, r);
      end = r + 1;
    }
  }
  if (begin >= end) {
    return;
  }
  const std::int64_t first_tile = seen[begin].first / kTileKeys;
  const std::int64_t last_tile = (seen[end - 1].last + kTileKeys - 1) / kTileKeys;
  for (std::int64_t tile = first_tile; tile < last_tile; ++tile) {
    score_rows<Cache>(std::make_integer_sequence<int, kScoreRows>{}, end - begin, args.tiles[tile],
                      scratch.queries + begin * args.head_dim * kWord, args.head_dim,
                      scratch.scores + begin * kPartKeys + tile * kTileKeys - part * kPartKeys);
  }
  for (std::int64_t r = begin; r < end; ++r) {
    weigh_row<Cache>(args, seen[r], part, scratch.scores + r * kPartKeys,
                     scratch.weights + r * kWeightStride, partials + r * stride);
  }
  // Tiles that all rows see whole; both ends of `seen` grow with the row.
  const std::int64_t whole_first = (seen[end - 1].first + kTileKeys - 1) / kTileKeys;
  const std::int64_t whole_last = larger(whole_first, seen[begin].last / kTileKeys);
  ValueArgs values{args.tiles,
                   0,
                   0,
                   part,
                   args.head_dim,
                   kv_plane_bytes(args.dtype, args.head_dim),
                   {0, 0},
                   scratch.weights,
                   partials + kHeader,
                   stride,
                   0,
                   0};
  // body(first, last): rows with the same sight.
  const auto for_equal_rows = [&](auto body) {
    for (std::int64_t r = begin; r < end;) {
      std::int64_t next = r + 1;
      while (next < end && seen[next].first == seen[r].first && seen[next].last == seen[r].last) {
        ++next;
      }
      values.seen = seen[r];
      body(r, next);
      r = next;
    }
  };
  for_equal_rows([&](std::int64_t r, std::int64_t next) {
    values.first_tile = seen[r].first / kTileKeys;
    values.last_tile = smaller(whole_first, (seen[r].last + kTileKeys - 1) / kTileKeys);
    add_tiles<Cache, true>(values, r, next);
  });
  values.first_tile = whole_first;
  values.last_tile = whole_last;
  add_tiles<Cache, false>(values, begin, end);
  for_equal_rows([&](std::int64_t r, std::int64_t next) {
    values.first_tile = larger(whole_last, seen[r].first / kTileKeys);
    values.last_tile = (seen[r].last + kTileKeys - 1) / kTileKeys;
    add_tiles<Cache, true>(values, r, next);
  });
}

template <class Cache>
void round_queries(const AttentionArgs& args, std::int64_t first_row, std::int64_t rows,
                   const Scratch& scratch) {
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t row = first_row + r;
    Cache::round_query(
        args.q + (row / args.group) * args.q_stride + (row % args.group) * args.head_dim,
        args.head_dim, scratch.queries + r * args.head_dim * kWord);
  }
}

// ---- merging ----

void merge_into(float* merged, const float* partial, std::int64_t head_dim) {
  if (partial[1] == 0.0F) {
    return;
  }
  if (merged[1] == 0.0F) {
    std::memcpy(merged, partial,
                static_cast<std::size_t>(attention_partial_floats(head_dim)) * sizeof(float));
    return;
  }
  const float maximum = merged[0] > partial[0] ? merged[0] : partial[0];
  const V old_scale = exp16(set1(merged[0] - maximum));
  const V new_scale = exp16(set1(partial[0] - maximum));
  merged[0] = maximum;
  merged[1] = __builtin_fmaf(partial[1], first_lane(new_scale), merged[1] * first_lane(old_scale));
  for (std::int64_t i = kHeader; i < kHeader + head_dim; i += 16) {
    const std::int64_t lanes = smaller(16, kHeader + head_dim - i);
    const V old = mul(load_first(merged + i, lanes), old_scale);
    store_first(merged + i, fma(load_first(partial + i, lanes), new_scale, old), lanes);
  }
}

void finish_row(const AttentionArgs& args, std::int64_t row, const float* merged) {
  float* out = args.out + (row / args.group) * args.out_stride + (row % args.group) * args.head_dim;
  const V sum = set1(merged[1]);
  for (std::int64_t i = 0; i < args.head_dim; i += 16) {
    const std::int64_t lanes = smaller(16, args.head_dim - i);
    store_first(out + i, div(load_first(merged + kHeader + i, lanes), sum), lanes);
  }
}

template <class Cache>
void attention_of(const AttentionArgs& args, std::int64_t first_row, std::int64_t last_row,
                  const Scratch& scratch) {
  const std::int64_t stride = attention_partial_floats(args.head_dim);
  for (std::int64_t row = first_row; row < last_row; row += kScoreRows) {
    const std::int64_t rows = smaller(kScoreRows, last_row - row);
    round_queries<Cache>(args, row, rows, scratch);
    std::memset(scratch.merged, 0, static_cast<std::size_t>(rows * stride) * sizeof(float));
    std::int64_t part = attention_first_part(position_of(args, row), args.window_tokens);
    const std::int64_t last_part = attention_last_part(position_of(args, row + rows - 1));
    for (; part < last_part; ++part) {
      part_rows<Cache>(args, row, rows, part, scratch.partials, scratch);
      for (std::int64_t r = 0; r < rows; ++r) {
        merge_into(scratch.merged + r * stride, scratch.partials + r * stride, args.head_dim);
      }
    }
    for (std::int64_t r = 0; r < rows; ++r) {
      finish_row(args, row + r, scratch.merged + r * stride);
    }
  }
}

template <class Cache>
void part_of(const AttentionArgs& args, std::int64_t first_row, std::int64_t last_row,
             std::int64_t part, float* partials, const Scratch& scratch) {
  const std::int64_t stride = attention_partial_floats(args.head_dim);
  for (std::int64_t row = first_row; row < last_row; row += kScoreRows) {
    const std::int64_t rows = smaller(kScoreRows, last_row - row);
    round_queries<Cache>(args, row, rows, scratch);
    part_rows<Cache>(args, row, rows, part, partials + (row - first_row) * stride, scratch);
  }
}

}  // namespace

void attention(const AttentionArgs& args, std::int64_t first_row, std::int64_t last_row,
               std::byte* scratch) {
  with_cache(args.dtype, [&](auto cache) {
    attention_of<decltype(cache)>(args, first_row, last_row, divide(scratch, args.head_dim));
  });
}

void attention_part(const AttentionArgs& args, std::int64_t first_row, std::int64_t last_row,
                    std::int64_t part, float* partials, std::byte* scratch) {
  with_cache(args.dtype, [&](auto cache) {
    part_of<decltype(cache)>(args, first_row, last_row, part, partials,
                             divide(scratch, args.head_dim));
  });
}

void attention_merge(const AttentionArgs& args, std::int64_t first_row, std::int64_t last_row,
                     std::int64_t parts, const float* partials) {
  const std::int64_t stride = attention_partial_floats(args.head_dim);
  const std::int64_t rows = last_row - first_row;
  float merged[kMaxHeadDim + kHeader];
  for (std::int64_t row = 0; row < rows; ++row) {
    std::memset(merged, 0, static_cast<std::size_t>(stride) * sizeof(float));
    for (std::int64_t part = 0; part < parts; ++part) {
      merge_into(merged, partials + (part * rows + row) * stride, args.head_dim);
    }
    finish_row(args, first_row + row, merged);
  }
}
