// What the prefix cache has of a prompt in all groups together: full groups need every tile of the
// prefix, window groups only those that cover its last window. Pure; the engine's thread.
#pragma once

#include "baton/kv/layout.h"
#include "baton/kv/prefix_index.h"
#include "baton/kv/tile_digest.h"

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace baton::kv {

// Valid until an index or a pool changes.
struct SequenceHit {
  struct Group {
    std::int32_t first_block = 0;  // of the table: those before it are not needed
    std::vector<BlockId> blocks;   // whole ones from there on, to be shared
    BlockId partial = kNoBlock;    // the next one: copy partial_tiles of it
    TileRange partial_tiles;       // counted from the block's start; empty without `partial`
  };
  std::vector<Group> groups;
  std::int32_t tiles = 0;  // of the prefix, in all
  [[nodiscard]] bool has_partial() const;
};

// The longest prefix of `tiles` of which the groups have what is needed. indexes: [group].
SequenceHit find_prefix(const KvLayout& layout,
                        std::span<const std::unique_ptr<PrefixIndex>> indexes,
                        std::span<const TileDigest> tiles);

}  // namespace baton::kv
