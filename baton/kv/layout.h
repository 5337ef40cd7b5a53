// The shape of the KV cache: groups of layers, planes, tiles, blocks, and where each byte lies.
// Ids and counts only; who owns the bytes is the backend's affair.
//
//   block of one group: [layer of the group][kv_head][tile][plane 0 tile | plane 1 tile]
//
// A tile is the KV of kTileTokens consecutive tokens from a multiple of kTileTokens, one layer and
// head. What is inside a tile belongs to the backend (kernels/ on the CPU).
#pragma once

#include "baton/base/result.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace baton::kv {

inline constexpr std::int32_t kTileTokens = 32;

enum class KvDtype : std::uint8_t { kF32, kF16, kBf16, kQ8_0 };
std::string_view kv_dtype_name(KvDtype dtype);
Result<KvDtype> parse_kv_dtype(std::string_view name);  // Errors: kInvalidArgument

struct BlockId {
  std::uint32_t value = 0;
  auto operator<=>(const BlockId&) const = default;
};
// In a table: the sequence does not hold that block (any more).
inline constexpr BlockId kNoBlock{~std::uint32_t{0}};

// Tiles [begin, end) counted from the sequence's start.
struct TileRange {
  std::int32_t begin = 0;
  std::int32_t end = 0;
  auto operator<=>(const TileRange&) const = default;
};

enum class GroupKind : std::uint8_t { kFull, kWindow };

// Layers of one kind. SmolLM2 and Qwen3 have one full group, Gemma 3 also a window group.
struct KvGroup {
  GroupKind kind = GroupKind::kFull;
  std::int32_t window_tokens = 0;    // kWindow only: a query at p sees (p - window_tokens, p]
  std::vector<std::int32_t> layers;  // model layer indices, ascending
  std::int32_t kv_heads = 0;
  std::int32_t head_dim = 0;  // of K and of V
  KvDtype dtype = KvDtype::kBf16;

  [[nodiscard]] std::size_t plane_tile_bytes() const;  // K or V of one tile
  [[nodiscard]] std::size_t tile_bytes() const { return 2 * plane_tile_bytes(); }
  // The first position that a query at `position` sees; later ones see no earlier one.
  [[nodiscard]] std::int64_t first_visible(std::int64_t position) const;
  // What is needed of a prefix of n tokens: the tiles that a query at n or later can see.
  [[nodiscard]] TileRange tiles_needed(std::int64_t tokens) const;
  auto operator<=>(const KvGroup&) const = default;
};

struct KvLayout {
  std::vector<KvGroup> groups;
  std::int32_t block_tokens = 128;  // 32, 64, 128 or 256

  [[nodiscard]] std::int32_t tiles_per_block() const { return block_tokens / kTileTokens; }
  [[nodiscard]] std::size_t block_bytes(std::size_t group) const;
  // Bytes from the block's start to the K plane of that tile. layer is the index within the group.
  [[nodiscard]] std::size_t tile_offset(std::size_t group, std::int32_t layer, std::int32_t head,
                                        std::int32_t tile_in_block) const;
  [[nodiscard]] std::int32_t blocks_for(std::int64_t tokens) const;  // rounded up
  // The most blocks of that group that a sequence of `tokens` holds at once when it is computed in
  // chunks of at most chunk_tokens: of a window group what a chunk and its window can touch.
  [[nodiscard]] std::int32_t blocks_held(std::size_t group, std::int64_t tokens,
                                         std::int64_t chunk_tokens) const;
  static std::int32_t tiles_for(std::int64_t tokens);  // rounded up
  [[nodiscard]] bool has_windows() const;
  // Bytes that a handoff of n tokens moves: whole tiles with at least one real token that a query
  // to come can see.
  [[nodiscard]] std::uint64_t handoff_bytes(std::int64_t tokens) const;
};

}  // namespace baton::kv
