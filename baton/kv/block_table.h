// The blocks of one sequence in one group, in order of position, and which tiles of a block a range
// of tokens touches. The first blocks of a window group's table go when no query can see them any
// more, or were never there. Thread: the engine's.
#pragma once

#include "baton/kv/block_pool.h"
#include "baton/kv/layout.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace baton::kv {

class BlockTable {
 public:
  BlockTable() = default;
  explicit BlockTable(std::vector<BlockRef> blocks) { append(std::move(blocks)); }

  void append(std::vector<BlockRef> blocks);
  // Makes an empty table one whose first `count` blocks are not held.
  void skip(std::size_t count);
  // Gives back those of the first `count` blocks that are still held.
  void release_first(std::size_t count);
  [[nodiscard]] std::size_t block_count() const { return refs_.size(); }  // not held ones too
  [[nodiscard]] std::span<const BlockId> ids() const { return ids_; }     // kNoBlock: not held
  // One more reference to each of the first `count` blocks that is held; else an empty one.
  [[nodiscard]] std::vector<BlockRef> share_first(std::size_t count) const;

 private:
  std::vector<BlockRef> refs_;
  std::vector<BlockId> ids_;  // of refs_, contiguous for the plan's spans
  std::size_t released_ = 0;  // the first ones, not held
};

// The tiles with at least one of the tokens [begin, end).
[[nodiscard]] TileRange tiles_of_tokens(std::int64_t begin, std::int64_t end);

// Part of a tile range that lies in one block.
struct BlockTiles {
  std::int32_t block = 0;  // index into the block table
  TileRange tiles;         // counted from the block's start
  auto operator<=>(const BlockTiles&) const = default;
};
[[nodiscard]] std::vector<BlockTiles> split_by_block(const KvLayout& layout, TileRange tiles);

}  // namespace baton::kv
