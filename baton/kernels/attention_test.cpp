// Paged attention: every table against ref/ with memcmp over several parts, groups, windows and odd
// tails; queries alone against queries in a chunk; stale bytes; ref/ against double arithmetic.
#include "baton/kernels/kernels.h"
#include "baton/kernels/test_data.h"
#include "baton/tensor/buffer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace baton::kernels {
namespace {

struct Cache {
  DType dtype;
  std::int64_t head_dim;
  std::int64_t tokens;
  std::vector<float> k;
  std::vector<float> v;
  tensor::Buffer bytes;
  std::vector<const std::byte*> tiles;

  // The tiles are filled with NaN first, as a debug build's freed blocks are.
  Cache(const KernelTable& table, DType type, std::int64_t dims, std::int64_t count, Kind kind,
        std::uint32_t seed)
      : dtype(type), head_dim(dims), tokens(count) {
    Source source(seed);
    k = source.values(tokens * dims, kind);
    v = source.values(tokens * dims, kind);
    const std::int64_t tile_count = (tokens + kTileKeys - 1) / kTileKeys;
    const std::size_t tile_bytes = (kv_tile_bytes(dtype, dims) + 63) / 64 * 64;
    bytes = *tensor::Buffer::allocate(static_cast<std::size_t>(tile_count) * tile_bytes);
    std::memset(bytes.data(), 0xFF, bytes.bytes());
    for (std::int64_t tile = 0; tile < tile_count; ++tile) {
      std::byte* at = bytes.data() + static_cast<std::size_t>(tile) * tile_bytes;
      tiles.push_back(at);
      const std::int64_t first = tile * kTileKeys;
      const std::int64_t here = std::min(kTileKeys, tokens - first);
      const std::int64_t cut = here / 3;  // in two calls: the second must keep the first's rows
      for (const auto& [from, n] : {std::pair{std::int64_t{0}, cut}, {cut, here - cut}}) {
        if (n > 0) {
          table.write_kv({dtype, dims, from, n, k.data() + (first + from) * dims, dims,
                          v.data() + (first + from) * dims, dims, at});
        }
      }
    }
  }

  // What the tile holds, by the layout that attention.h describes.
  [[nodiscard]] float read(std::int64_t token, std::int64_t dim, bool value) const {
    const std::int64_t slot = token % kTileKeys;
    const std::byte* plane = tiles[static_cast<std::size_t>(token / kTileKeys)];
    plane += value ? kv_plane_bytes(dtype, head_dim) : 0;
    const std::int64_t at = value ? slot * head_dim + dim : dim * kTileKeys + slot;
    switch (dtype) {
      case DType::kF32: {
        float read;
        std::memcpy(&read, plane + 4 * at, sizeof read);
        return read;
      }
      case DType::kF16:
        return f16_to_f32(load_u16(plane + 2 * at));
      case DType::kQ8_0: {
        const float scale = f16_to_f32(load_u16(plane + 2 * (dim / 32 * kTileKeys + slot)));
        return scale * static_cast<float>(static_cast<std::int8_t>(plane[2 * head_dim + at]));
      }
      default:
        return bf16_to_f32(
            load_u16(plane + (value ? (slot / 2 * head_dim + dim) * 4 + slot % 2 * 2
                                    : (dim / 2 * kTileKeys + slot) * 4 + dim % 2 * 2)));
    }
  }
};

struct Queries {
  std::int64_t first_position;
  std::int64_t count;
  std::int64_t group;
  std::int64_t head_dim;
  float soft_cap = 0.0F;
  std::vector<float> q;

  Queries(std::int64_t first, std::int64_t tokens, std::int64_t heads, std::int64_t dims, Kind kind)
      : first_position(first), count(tokens), group(heads), head_dim(dims) {
    Source source(77);
    q = source.values(count * stride(), kind);
  }
  [[nodiscard]] std::int64_t stride() const { return group * head_dim + 3; }
  [[nodiscard]] std::int64_t rows() const { return count * group; }
  [[nodiscard]] AttentionArgs args(const Cache& cache, std::int64_t window, float* out) const {
    return {cache.dtype,
            head_dim,
            cache.tiles.data(),
            first_position,
            group,
            window,
            1.0F / std::sqrt(static_cast<float>(head_dim)),
            q.data(),
            stride(),
            out,
            group * head_dim,
            soft_cap};
  }
};

std::vector<std::byte> scratch_for(std::int64_t head_dim) {
  return std::vector<std::byte>(attention_scratch_bytes(head_dim) + 64);
}
std::byte* aligned(std::vector<std::byte>& bytes) {
  const auto at = reinterpret_cast<std::uintptr_t>(bytes.data());
  return bytes.data() + (64 - at % 64) % 64;
}

std::vector<float> run(const KernelTable& table, const Cache& cache, const Queries& queries,
                       std::int64_t window, std::int64_t rows_a_call) {
  std::vector<float> out(static_cast<std::size_t>(queries.rows() * queries.head_dim), -5.0F);
  auto scratch = scratch_for(queries.head_dim);
  const AttentionArgs args = queries.args(cache, window, out.data());
  for (std::int64_t row = 0; row < queries.rows(); row += rows_a_call) {
    table.attention(args, row, std::min(row + rows_a_call, queries.rows()), aligned(scratch));
  }
  return out;
}

constexpr DType kCacheTypes[] = {DType::kBf16, DType::kF32, DType::kF16, DType::kQ8_0};

bool fits(DType dtype, std::int64_t head_dim) {
  return dtype != DType::kQ8_0 || head_dim % kKvScaleDims == 0;
}

class Attention : public ::testing::Test {
 private:
  ScopedFloatMode mode_;
};

struct Case {
  std::int64_t head_dim;
  std::int64_t group;
  std::int64_t first_position;
  std::int64_t count;
  std::int64_t window;
  float soft_cap = 0.0F;
};
const Case kCases[] = {
    {64, 3, 0, 40, 0},           // a chunk from the start
    {64, 3, 1100, 1, 0},         // decode in the third part
    {64, 3, 1535, 3, 0},         // over the border to the fourth part
    {64, 1, 500, 40, 0},         // single heads over the first border
    {64, 2, 1003, 37, 96},       // sliding window
    {64, 4, 1020, 9, 5},         // a window smaller than a tile
    {32, 2, 570, 11, 33, 0.3F},  // scores of up to about 2, so that caps matter
    {256, 2, 530, 3, 520, 50.0F},
    {64, 2, 40, 30, 0, 1.0F},
    {128, 2, 545, 5, 0},
    {80, 5, 70, 7, 0},
    {16, 7, 530, 3, 40},
    {6, 1, 33, 9, 0},
    {2, 2, 0, 3, 0},
    {34, 3, 512, 2, 512},
};

TEST_F(Attention, WrittenTilesAreEqual) {
  for (const DType dtype : kCacheTypes) {
    for (const std::int64_t head_dim : {2, 6, 64, 80, 96}) {
      if (!fits(dtype, head_dim)) {
        continue;
      }
      for (const Kind kind : {Kind::kPlain, Kind::kWide, Kind::kTiny}) {
        const Cache expected(ref_kernels(), dtype, head_dim, 71, kind, 3);
        for (const KernelTable* table : runnable_tables()) {
          const Cache cache(*table, dtype, head_dim, 71, kind, 3);
          ASSERT_EQ(std::memcmp(expected.bytes.data(), cache.bytes.data(), cache.bytes.bytes()), 0)
              << table->name;
        }
        // The first row zeroed the tile: nothing stale is left behind the last token.
        for (std::int64_t slot = 71 % kTileKeys; slot < kTileKeys; ++slot) {
          for (std::int64_t dim = 0; dim < head_dim; ++dim) {
            const std::int64_t token = 64 + slot;
            ASSERT_EQ(expected.read(token, dim, false), 0.0F);
            ASSERT_EQ(expected.read(token, dim, true), 0.0F);
          }
        }
      }
    }
  }
}

TEST_F(Attention, TablesAgreeBitForBit) {
  for (const DType dtype : kCacheTypes) {
    for (const Kind kind : {Kind::kPlain, Kind::kWide, Kind::kTiny}) {
      for (const Case& one : kCases) {
        if (!fits(dtype, one.head_dim)) {
          continue;
        }
        const Cache cache(ref_kernels(), dtype, one.head_dim, one.first_position + one.count, kind,
                          5);
        const Kind query_kind = kind == Kind::kWide ? Kind::kPlain : kind;
        Queries queries(one.first_position, one.count, one.group, one.head_dim, query_kind);
        queries.soft_cap = one.soft_cap;
        const auto expected = run(ref_kernels(), cache, queries, one.window, queries.rows());
        for (const KernelTable* table : runnable_tables()) {
          for (const std::int64_t rows_a_call :
               {queries.rows(), std::int64_t{1}, std::int64_t{5}}) {
            ASSERT_TRUE(same_bits(expected, run(*table, cache, queries, one.window, rows_a_call)))
                << table->name << ' ' << tensor::dtype_name(dtype) << " head_dim " << one.head_dim
                << " group " << one.group << " from " << one.first_position << " window "
                << one.window << " kind " << static_cast<int>(kind) << " rows " << rows_a_call;
          }
        }
      }
    }
  }
}

// Parts computed apart and merged give the bits of the whole.
TEST_F(Attention, PartsMergeToTheWhole) {
  for (const DType dtype : kCacheTypes) {
    for (const std::int64_t window : {0, 600}) {
      const Cache cache(ref_kernels(), dtype, 64, 1545, Kind::kPlain, 6);
      const Queries queries(1530, 15, 3, 64, Kind::kPlain);
      const auto expected = run(ref_kernels(), cache, queries, window, queries.rows());
      for (const KernelTable* table : runnable_tables()) {
        std::vector<float> out(expected.size());
        auto scratch = scratch_for(64);
        const AttentionArgs args = queries.args(cache, window, out.data());
        const std::int64_t first_part = attention_first_part(1530, window);
        const std::int64_t parts = attention_last_part(1544) - first_part;
        const std::int64_t rows = queries.rows() - 2;  // a range that starts and ends in a token
        std::vector<float> partials(
            static_cast<std::size_t>(parts * rows * attention_partial_floats(64)));
        for (std::int64_t part = parts; part-- > 0;) {
          table->attention_part(args, 1, 1 + rows, first_part + part,
                                partials.data() + part * rows * attention_partial_floats(64),
                                aligned(scratch));
        }
        table->attention_merge(args, 1, 1 + rows, parts, partials.data());
        const auto middle = [&](const std::vector<float>& all) {
          return std::vector<float>(all.begin() + 64, all.begin() + (1 + rows) * 64);
        };
        ASSERT_TRUE(same_bits(middle(expected), middle(out))) << table->name;
      }
    }
  }
}

// What a query cannot see does not matter: not a later token's values, not a stale NaN, and a chunk
// gives the bits of a token-by-token decode.
TEST_F(Attention, InvisibleKeysDoNotMatter) {
  for (const DType dtype : kCacheTypes) {
    const std::int64_t tokens = 600;
    const Cache whole(ref_kernels(), dtype, 64, tokens, Kind::kPlain, 7);
    const Queries queries(560, 40, 3, 64, Kind::kPlain);
    for (const KernelTable* table : runnable_tables()) {
      const auto chunk = run(*table, whole, queries, 0, queries.rows());
      for (const std::int64_t position : {560, 575, 576, 577, 599}) {
        Cache cut(ref_kernels(), dtype, 64, tokens, Kind::kPlain, 7);
        // Poison everything behind the position: element by element NaN.
        for (std::int64_t later = position + 1; later < cut.tokens; ++later) {
          const std::vector<float> nan(64, std::numeric_limits<float>::quiet_NaN());
          if (later % kTileKeys != 0) {
            ref_kernels().write_kv(
                {dtype, 64, later % kTileKeys, 1, nan.data(), 64, nan.data(), 64,
                 const_cast<std::byte*>(cut.tiles[static_cast<std::size_t>(later / kTileKeys)])});
          }
        }
        std::vector<float> out(chunk.size());
        auto scratch = scratch_for(64);
        const AttentionArgs args = queries.args(cut, 0, out.data());
        const std::int64_t row = (position - 560) * 3;
        table->attention(args, row, row + 3, aligned(scratch));
        const auto rows_of = [&](const std::vector<float>& all) {
          return std::vector<float>(all.begin() + row * 64, all.begin() + (row + 3) * 64);
        };
        ASSERT_TRUE(same_bits(rows_of(chunk), rows_of(out))) << table->name << ' ' << position;
      }
    }
  }
}

// What is read back is near what was written: half a unit of the last place, or half a step.
TEST_F(Attention, CachedValuesAreNear) {
  for (const DType dtype : kCacheTypes) {
    const Cache cache(ref_kernels(), dtype, 96, 71, Kind::kPlain, 9);
    for (std::int64_t token = 0; token < cache.tokens; ++token) {
      for (std::int64_t dim = 0; dim < 96; ++dim) {
        for (const bool value : {false, true}) {
          const auto& all = value ? cache.v : cache.k;
          const float written = all[static_cast<std::size_t>(token * 96 + dim)];
          float largest = 0.0F;
          for (std::int64_t i = dim / 32 * 32; i < dim / 32 * 32 + 32; ++i) {
            largest = std::max(largest, std::fabs(all[static_cast<std::size_t>(token * 96 + i)]));
          }
          float tolerance = 0.0F;
          if (dtype == DType::kBf16) {
            tolerance = std::fabs(written) * 0x1p-8F;
          } else if (dtype == DType::kF16) {
            tolerance = std::max(std::fabs(written) * 0x1p-11F, 0x1p-25F);
          } else if (dtype == DType::kQ8_0) {
            tolerance = largest / 127.0F * 0.501F;
          }
          ASSERT_NEAR(cache.read(token, dim, value), written, tolerance)
              << tensor::dtype_name(dtype);
        }
      }
    }
  }
}

TEST_F(Attention, ReferenceIsNearDouble) {
  for (const DType dtype : kCacheTypes) {
    for (const Case& one : kCases) {
      if (!fits(dtype, one.head_dim)) {
        continue;
      }
      const Cache cache(ref_kernels(), dtype, one.head_dim, one.first_position + one.count,
                        Kind::kPlain, 8);
      Queries queries(one.first_position, one.count, one.group, one.head_dim, Kind::kPlain);
      queries.soft_cap = one.soft_cap;
      const auto out = run(ref_kernels(), cache, queries, one.window, queries.rows());
      // Queries are rounded for a bf16 cache only.
      const auto rounded = [&](float value) {
        return static_cast<double>(dtype == DType::kBf16 ? bf16_to_f32(f32_to_bf16(value)) : value);
      };
      for (std::int64_t row = 0; row < queries.rows(); ++row) {
        const std::int64_t position = one.first_position + row / one.group;
        const std::int64_t first =
            one.window > 0 ? std::max<std::int64_t>(0, position - one.window + 1) : 0;
        std::vector<double> sums(static_cast<std::size_t>(one.head_dim));
        double total = 0.0;
        for (std::int64_t key = first; key <= position; ++key) {
          double score = 0.0;
          for (std::int64_t dim = 0; dim < one.head_dim; ++dim) {
            const std::int64_t at =
                row / one.group * queries.stride() + row % one.group * one.head_dim + dim;
            score += rounded(queries.q[static_cast<std::size_t>(at)]) *
                     static_cast<double>(cache.read(key, dim, false));
          }
          score /= std::sqrt(static_cast<double>(one.head_dim));
          if (one.soft_cap > 0.0F) {
            score = one.soft_cap * std::tanh(score / one.soft_cap);
          }
          const double weight = std::exp(score);
          total += weight;
          for (std::int64_t dim = 0; dim < one.head_dim; ++dim) {
            sums[static_cast<std::size_t>(dim)] +=
                weight * static_cast<double>(cache.read(key, dim, true));
          }
        }
        for (std::int64_t dim = 0; dim < one.head_dim; ++dim) {
          // |v| <= 1. Weights rounded to bf16 are off by at most 2^-9 each, in out and in sum;
          // f32: about one rounding per key, and the scores' own roundings.
          const double tolerance = dtype == DType::kBf16 ? 2.0 / 512 : 2e-5;
          ASSERT_NEAR(out[static_cast<std::size_t>(row * one.head_dim + dim)],
                      sums[static_cast<std::size_t>(dim)] / total, tolerance)
              << "row " << row << " dim " << dim;
        }
      }
    }
  }
}

}  // namespace
}  // namespace baton::kernels
