// The prefix cache as the engine uses it: what is known of a prompt, what is worth knowing of a
// sequence that ran.
#include "baton/base/check.h"
#include "baton/engine/batch_scheduler.h"
#include "baton/message/prefix_root.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace baton::engine {

void BatchScheduler::set_digest_root(Sequence& sequence) {
  sequence.digest_root = message::prefix_root(hasher_, sequence.request.cache_namespace);
}

void BatchScheduler::extend_digests(Sequence& sequence, std::size_t tiles) {
  constexpr auto kTile = static_cast<std::size_t>(kv::kTileTokens);
  BATON_CHECK(tiles * kTile <= sequence.tokens.size(), "{} tiles of {} tokens", tiles,
              sequence.tokens.size());
  while (sequence.digests.size() < tiles) {
    const kv::TileDigest parent =
        sequence.digests.empty() ? sequence.digest_root : sequence.digests.back();
    const auto tokens =
        std::span<const TokenId>(sequence.tokens).subspan(sequence.digests.size() * kTile, kTile);
    sequence.digests.push_back(hasher_.tile(parent, tokens));
  }
}

std::vector<std::unique_ptr<kv::PrefixIndex>> BatchScheduler::make_indexes() {
  std::vector<std::unique_ptr<kv::PrefixIndex>> indexes;
  for (std::size_t group = 0; group < pools_.size(); ++group) {
    indexes.push_back(std::make_unique<kv::PrefixIndex>(info_.layout.tiles_per_block(),
                                                        std::span(pools_).subspan(group, 1)));
  }
  return indexes;
}

// Whole tiles before the last token: that one is always computed, for its logits (or comes by
// handoff with its tile).
kv::SequenceHit BatchScheduler::find_prefix(Sequence& sequence) {
  if (!config_.prefix_cache) {
    kv::SequenceHit none;
    none.groups.resize(pools_.size());
    return none;
  }
  const std::size_t tiles =
      (sequence.tokens.size() - 1) / static_cast<std::size_t>(kv::kTileTokens);
  extend_digests(sequence, tiles);
  return kv::find_prefix(info_.layout, indexes_, std::span(sequence.digests).first(tiles));
}

// A hit that ends where a block ends, so that nothing is copied.
kv::SequenceHit BatchScheduler::whole_blocks_of(const Sequence& sequence,
                                                const kv::SequenceHit& hit) const {
  const std::int32_t per_block = info_.layout.tiles_per_block();
  std::int32_t tiles = hit.tiles / per_block * per_block;
  for (;; tiles -= per_block) {
    kv::SequenceHit shorter = kv::find_prefix(
        info_.layout, indexes_, std::span(sequence.digests).first(static_cast<std::size_t>(tiles)));
    if (!shorter.has_partial()) {
      return shorter;
    }
  }
}

// Rows [0, computed_tokens) are in its blocks, those of window groups as far as they were not given
// back: their complete tiles may be shared from now on.
void BatchScheduler::index_tiles(Sequence& sequence, std::int32_t computed_tokens) {
  const std::int32_t complete = computed_tokens / kv::kTileTokens;
  if (!config_.prefix_cache || complete <= sequence.indexed_tiles) {
    return;
  }
  extend_digests(sequence, static_cast<std::size_t>(complete));
  const std::int32_t per_block = info_.layout.tiles_per_block();
  for (std::size_t group = 0; group < pools_.size(); ++group) {
    const std::span<const kv::BlockId> table = sequence.tables[group].ids();
    for (std::int32_t block = sequence.indexed_tiles / per_block; block * per_block < complete;
         ++block) {
      const std::int32_t first = block * per_block;
      const std::int32_t count = std::min(per_block, complete - first);
      const std::int32_t valid = std::max(0, sequence.first_tiles[group] - first);
      const kv::BlockId id = table[static_cast<std::size_t>(block)];
      if (id != kv::kNoBlock && valid < count) {
        indexes_[group]->insert(
            {&id, 1},
            std::span(sequence.digests)
                .subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count)),
            static_cast<std::size_t>(valid));
      }
    }
  }
  sequence.indexed_tiles = complete;
}

// One group speaks for all: the first that keeps whole prefixes.
void BatchScheduler::watch_prefixes() {
  std::size_t group = 0;
  while (group + 1 < indexes_.size() && info_.layout.groups[group].kind != kv::GroupKind::kFull) {
    ++group;
  }
  indexes_[group]->record(journal_);
  report_prefixes(true);
}

void BatchScheduler::report_prefixes(bool restart) {
  kv::PrefixJournal journal = std::exchange(journal_, {});
  events_.push_unbounded(
      message::PrefixChanges{restart, std::move(journal.added), std::move(journal.removed)});
}

// Tiles of a block lie side by side for each layer and head.
void BatchScheduler::copy_tiles(std::size_t group, kv::BlockId from, kv::BlockId to,
                                kv::TileRange tiles) {
  const kv::KvGroup& shape = info_.layout.groups[group];
  const std::span<const std::byte> source = backend_.block_bytes(group, from);
  const std::span<std::byte> target = backend_.block_bytes(group, to);
  const std::size_t bytes = static_cast<std::size_t>(tiles.end - tiles.begin) * shape.tile_bytes();
  for (std::int32_t layer = 0; layer < static_cast<std::int32_t>(shape.layers.size()); ++layer) {
    for (std::int32_t head = 0; head < shape.kv_heads; ++head) {
      const std::size_t offset = info_.layout.tile_offset(group, layer, head, tiles.begin);
      std::memcpy(target.data() + offset, source.data() + offset, bytes);
    }
  }
}

}  // namespace baton::engine
