// The prefix cache's book: which blocks hold which tiles, by the digest of all tokens up to the
// tile's end (tile_digest.h). A *column* is the block of each group that holds the same tokens of
// one sequence; it is named by its block in group 0. A column whose blocks nobody references stays
// until its room is needed: least recently used goes first. The engine has an index for each group
// (prefix_search.h): a window group may have lost what the others still have.
//
// Tiles of blocks in use are in the index too: complete tiles never change, so a running sequence
// shares its prefix at once. Only ids and digests here; bytes are copied by the engine.
// Thread: the engine's.
#pragma once

#include "baton/kv/block_pool.h"
#include "baton/kv/tile_digest.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

namespace baton::kv {

// What the cache has of a prefix; valid until the index or a pool changes.
struct PrefixHit {
  std::vector<std::vector<BlockId>> blocks;  // [whole block][group]: to be shared
  std::vector<BlockId> partial;              // [group]: copy partial_tiles tiles; may be empty
  std::int32_t partial_tiles = 0;
  std::int32_t tiles = 0;  // in all
};

// What an index is told and loses, for others to know: names of tiles, in no order. A tile that
// several columns have counts for each of them.
struct PrefixJournal {
  std::vector<PrefixName> added;
  std::vector<PrefixName> removed;
};

class PrefixIndex {
 public:
  // pools: [group]; must outlive the index.
  PrefixIndex(std::int32_t tiles_per_block, std::span<const std::unique_ptr<BlockPool>> pools);
  PrefixIndex(const PrefixIndex&) = delete;
  PrefixIndex& operator=(const PrefixIndex&) = delete;

  // The longest prefix of `tiles` that is here.
  [[nodiscard]] PrefixHit find(std::span<const TileDigest> tiles) const;
  // A block of group 0 that has the tiles [first, end) of the block whose tiles `tiles` begins
  // with.
  [[nodiscard]] std::optional<BlockId> holder(std::span<const TileDigest> tiles, std::size_t first,
                                              std::size_t end) const;
  // The first tiles.size() tiles of these blocks ([group]) are complete, but those before
  // first_valid were never there (of a window group, nobody will see them). All tiles of the block
  // so far, each time. Ignored when another column has them already.
  void insert(std::span<const BlockId> blocks, std::span<const TileDigest> tiles,
              std::size_t first_valid = 0);
  // These are the most recently used now, the first most of all: a prefix outlives its extensions.
  // What is no block (kNoBlock) is passed over.
  void touch(std::span<const BlockId> first_group_blocks);
  // Frees the least recently used column that nobody references. False when there is none.
  bool evict();
  void clear();  // of all that nobody references
  // From now on every change is written down there, beginning with all that is here: as changes of
  // an empty index. It must outlive the last of them.
  void record(PrefixJournal& journal);

  [[nodiscard]] std::size_t columns() const { return by_use_.size(); }
  // Maps and pools agree. Dies otherwise.
  void check_integrity() const;

 private:
  struct Column {
    std::vector<BlockId> blocks;    // [group]; empty = not in the index
    std::vector<TileDigest> tiles;  // of its complete tiles, in order
    std::size_t first_valid = 0;    // those before it are not there
    std::int32_t mapped = 0;        // of them, how many the map shows in this column
    std::uint64_t last_use = 0;
    std::multimap<TileDigest, std::uint32_t>::iterator begin{};  // its place in by_begin_
  };

  // Where a tile is found, and how many columns have it.
  struct Place {
    std::uint32_t column = 0;
    std::uint32_t holders = 0;
  };

  void drop(std::uint32_t column);
  // Of the columns that have the tile, the one that has most before it.
  [[nodiscard]] std::uint32_t other_holder(const TileDigest& block_begin, std::size_t tile,
                                           const TileDigest& digest) const;
  void use(std::uint32_t column);
  // The column's tiles from the first-th on, but those that were never there.
  static void note(const Column& column, std::size_t first, std::vector<PrefixName>& names);
  [[nodiscard]] bool referenced(const Column& column) const;

  const std::size_t tiles_per_block_;
  const std::span<const std::unique_ptr<BlockPool>> pools_;
  std::vector<Column> columns_;  // [block of group 0]
  std::unordered_map<TileDigest, Place> by_digest_;
  std::multimap<TileDigest, std::uint32_t> by_begin_;  // first tile, there or not -> columns
  std::map<std::uint64_t, std::uint32_t> by_use_;      // last_use -> column
  std::uint64_t next_use_ = 1;
  PrefixJournal* journal_ = nullptr;  // null: nobody wants to know
};

}  // namespace baton::kv
