#include "baton/kv/layout.h"

#include "baton/base/check.h"

#include <algorithm>

namespace baton::kv {

namespace {

constexpr std::size_t kQ8BlockValues = 32;  // q8_0: one f16 scale for 32 values
constexpr std::size_t kQ8ScaleBytes = 2;

}  // namespace

std::string_view kv_dtype_name(KvDtype dtype) {
  switch (dtype) {
    case KvDtype::kF32:
      return "f32";
    case KvDtype::kF16:
      return "f16";
    case KvDtype::kBf16:
      return "bf16";
    case KvDtype::kQ8_0:
      return "q8_0";
  }
  return "unknown";
}

Result<KvDtype> parse_kv_dtype(std::string_view name) {
  for (const KvDtype dtype : {KvDtype::kF32, KvDtype::kF16, KvDtype::kBf16, KvDtype::kQ8_0}) {
    if (name == kv_dtype_name(dtype)) {
      return dtype;
    }
  }
  return fail(ErrorCode::kInvalidArgument,
              "unknown KV dtype '" + std::string(name) + "': use bf16, f16, f32 or q8_0",
              "kv-dtype");
}

std::size_t KvGroup::plane_tile_bytes() const {
  const std::size_t values = static_cast<std::size_t>(head_dim) * kTileTokens;
  switch (dtype) {
    case KvDtype::kF32:
      return values * 4;
    case KvDtype::kF16:
    case KvDtype::kBf16:
      return values * 2;
    case KvDtype::kQ8_0:
      return values + values / kQ8BlockValues * kQ8ScaleBytes;
  }
  return 0;
}

std::int64_t KvGroup::first_visible(std::int64_t position) const {
  return kind == GroupKind::kWindow ? std::max<std::int64_t>(0, position - window_tokens + 1) : 0;
}

TileRange KvGroup::tiles_needed(std::int64_t tokens) const {
  const std::int32_t end = KvLayout::tiles_for(tokens);
  return {std::min(end, static_cast<std::int32_t>(first_visible(tokens) / kTileTokens)), end};
}

std::size_t KvLayout::block_bytes(std::size_t group) const {
  const KvGroup& g = groups[group];
  return g.layers.size() * static_cast<std::size_t>(g.kv_heads) *
         static_cast<std::size_t>(tiles_per_block()) * g.tile_bytes();
}

std::size_t KvLayout::tile_offset(std::size_t group, std::int32_t layer, std::int32_t head,
                                  std::int32_t tile_in_block) const {
  const KvGroup& g = groups[group];
  BATON_DCHECK(layer >= 0 && static_cast<std::size_t>(layer) < g.layers.size(), "layer {}", layer);
  BATON_DCHECK(head >= 0 && head < g.kv_heads, "head {}", head);
  BATON_DCHECK(tile_in_block >= 0 && tile_in_block < tiles_per_block(), "tile {}", tile_in_block);
  const std::size_t plane_pair =
      static_cast<std::size_t>(layer) * static_cast<std::size_t>(g.kv_heads) +
      static_cast<std::size_t>(head);
  return (plane_pair * static_cast<std::size_t>(tiles_per_block()) +
          static_cast<std::size_t>(tile_in_block)) *
         g.tile_bytes();
}

std::int32_t KvLayout::blocks_for(std::int64_t tokens) const {
  return static_cast<std::int32_t>((tokens + block_tokens - 1) / block_tokens);
}

// An interval of n positions touches at most (n - 2) / block + 2 blocks, n >= 2.
std::int32_t KvLayout::blocks_held(std::size_t group, std::int64_t tokens,
                                   std::int64_t chunk_tokens) const {
  const KvGroup& g = groups[group];
  const std::int32_t all = blocks_for(tokens);
  if (g.kind == GroupKind::kFull) {
    return all;
  }
  const std::int64_t seen = std::max<std::int64_t>(2, g.window_tokens - 1 + chunk_tokens);
  return std::min(all, static_cast<std::int32_t>((seen - 2) / block_tokens + 2));
}

bool KvLayout::has_windows() const {
  return std::ranges::any_of(groups,
                             [](const KvGroup& group) { return group.kind == GroupKind::kWindow; });
}

std::int32_t KvLayout::tiles_for(std::int64_t tokens) {
  return static_cast<std::int32_t>((tokens + kTileTokens - 1) / kTileTokens);
}

std::uint64_t KvLayout::handoff_bytes(std::int64_t tokens) const {
  std::uint64_t bytes = 0;
  for (const KvGroup& g : groups) {
    const TileRange tiles = g.tiles_needed(tokens);
    bytes += g.layers.size() * static_cast<std::uint64_t>(g.kv_heads) * g.tile_bytes() *
             static_cast<std::uint64_t>(tiles.end - tiles.begin);
  }
  return bytes;
}

}  // namespace baton::kv
