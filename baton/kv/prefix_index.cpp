#include "baton/kv/prefix_index.h"

#include "baton/base/check.h"

#include <algorithm>
#include <utility>

namespace baton::kv {

PrefixIndex::PrefixIndex(std::int32_t tiles_per_block,
                         std::span<const std::unique_ptr<BlockPool>> pools)
    : tiles_per_block_(static_cast<std::size_t>(tiles_per_block)),
      pools_(pools),
      columns_(pools.empty() ? 0 : pools[0]->total_blocks()) {}

// Block by block: its last tile names the whole block, else its longest part ends the hit. Earlier
// tiles of the same block need no entry of their own, the column has them.
PrefixHit PrefixIndex::find(std::span<const TileDigest> tiles) const {
  PrefixHit hit;
  for (std::size_t begin = 0; begin < tiles.size(); begin += tiles_per_block_) {
    const std::size_t available = std::min(tiles_per_block_, tiles.size() - begin);
    std::size_t found_tiles = 0;
    const Column* column = nullptr;
    for (std::size_t count = available; count > 0 && column == nullptr; --count) {
      if (const auto found = by_digest_.find(tiles[begin + count - 1]); found != by_digest_.end()) {
        column = &columns_[found->second.column];
        found_tiles = count;
      }
    }
    hit.tiles += static_cast<std::int32_t>(found_tiles);
    if (found_tiles == tiles_per_block_) {
      hit.blocks.push_back(column->blocks);
      continue;
    }
    if (column != nullptr) {
      hit.partial = column->blocks;
      hit.partial_tiles = static_cast<std::int32_t>(found_tiles);
    }
    break;
  }
  return hit;
}

std::optional<BlockId> PrefixIndex::holder(std::span<const TileDigest> tiles, std::size_t first,
                                           std::size_t end) const {
  for (std::size_t count = std::min(tiles_per_block_, tiles.size()); count >= end; --count) {
    const auto found = by_digest_.find(tiles[count - 1]);
    if (found != by_digest_.end() && columns_[found->second.column].first_valid <= first) {
      return columns_[found->second.column].blocks[0];
    }
  }
  return std::nullopt;
}

void PrefixIndex::insert(std::span<const BlockId> blocks, std::span<const TileDigest> tiles,
                         std::size_t first_valid) {
  BATON_CHECK(blocks.size() == pools_.size() && first_valid < tiles.size() &&
                  tiles.size() <= tiles_per_block_,
              "{} blocks, {} tiles from {}", blocks.size(), tiles.size(), first_valid);
  const std::uint32_t id = blocks[0].value;
  Column& column = columns_[id];
  if (const auto found = by_digest_.find(tiles.back());
      found != by_digest_.end() && found->second.column != id &&
      columns_[found->second.column].first_valid <= first_valid) {
    return;
  }
  if (column.blocks.empty()) {
    column.first_valid = first_valid;
    column.blocks.assign(blocks.begin(), blocks.end());
    column.begin = by_begin_.emplace(tiles.front(), id);
    for (std::size_t group = 0; group < pools_.size(); ++group) {
      pools_[group]->keep(blocks[group]);
    }
  }
  BATON_CHECK(tiles.size() >= column.tiles.size() && column.first_valid == first_valid &&
                  std::equal(column.tiles.begin(), column.tiles.end(), tiles.begin()),
              "block {} holds other tiles than were written down", id);
  const std::size_t known = column.tiles.size();
  column.tiles.assign(tiles.begin(), tiles.end());
  if (journal_ != nullptr) {
    note(column, known, journal_->added);
  }
  // A shorter column that has the same beginning gives it to this one, and goes when it is bare.
  for (std::size_t tile = first_valid; tile < column.tiles.size(); ++tile) {
    const auto [entry, is_new] = by_digest_.try_emplace(column.tiles[tile], Place{id, 0});
    Place& place = entry->second;
    place.holders += tile >= known ? 1 : 0;
    if (is_new) {
      ++column.mapped;
    } else if (place.column != id && columns_[place.column].first_valid >= first_valid) {
      const std::uint32_t other = std::exchange(place.column, id);
      ++column.mapped;
      if (--columns_[other].mapped == 0) {
        drop(other);
      }
    }
  }
  use(id);
}

void PrefixIndex::use(std::uint32_t id) {
  Column& column = columns_[id];
  by_use_.erase(column.last_use);
  column.last_use = next_use_++;
  by_use_.emplace(column.last_use, id);
}

void PrefixIndex::touch(std::span<const BlockId> first_group_blocks) {
  for (std::size_t i = first_group_blocks.size(); i > 0; --i) {
    const std::uint32_t id = first_group_blocks[i - 1].value;
    if (first_group_blocks[i - 1] != kNoBlock && !columns_[id].blocks.empty()) {
      use(id);
    }
  }
}

bool PrefixIndex::referenced(const Column& column) const {
  for (std::size_t group = 0; group < pools_.size(); ++group) {
    if (pools_[group]->references(column.blocks[group]) > 0) {
      return true;
    }
  }
  return false;
}

bool PrefixIndex::evict() {
  for (const auto& [last_use, id] : by_use_) {
    if (!referenced(columns_[id])) {
      drop(id);
      return true;
    }
  }
  return false;
}

void PrefixIndex::clear() {
  while (evict()) {
  }
}

void PrefixIndex::record(PrefixJournal& journal) {
  journal = {};
  journal_ = &journal;
  for (const Column& column : columns_) {
    note(column, 0, journal.added);
  }
}

void PrefixIndex::note(const Column& column, std::size_t first, std::vector<PrefixName>& names) {
  for (std::size_t tile = std::max(first, column.first_valid); tile < column.tiles.size(); ++tile) {
    names.push_back(prefix_name(column.tiles[tile]));
  }
}

void PrefixIndex::drop(std::uint32_t id) {
  const Column column = std::exchange(columns_[id], {});
  if (journal_ != nullptr) {
    note(column, 0, journal_->removed);
  }
  by_use_.erase(column.last_use);
  by_begin_.erase(column.begin);
  for (std::size_t tile = column.first_valid; tile < column.tiles.size(); ++tile) {
    const auto found = by_digest_.find(column.tiles[tile]);
    if (--found->second.holders == 0) {
      by_digest_.erase(found);
    } else if (found->second.column == id) {
      found->second.column = other_holder(column.tiles.front(), tile, found->first);
      ++columns_[found->second.column].mapped;
    }
  }
  for (std::size_t group = 0; group < pools_.size(); ++group) {
    pools_[group]->forget(column.blocks[group]);
  }
}

std::uint32_t PrefixIndex::other_holder(const TileDigest& block_begin, std::size_t tile,
                                        const TileDigest& digest) const {
  const Column* best = nullptr;
  std::uint32_t holder = 0;
  const auto [begin, end] = by_begin_.equal_range(block_begin);
  for (auto entry = begin; entry != end && (best == nullptr || best->first_valid > 0); ++entry) {
    const Column& column = columns_[entry->second];
    if (column.first_valid <= tile && tile < column.tiles.size() && column.tiles[tile] == digest &&
        (best == nullptr || column.first_valid < best->first_valid)) {
      best = &column;
      holder = entry->second;
    }
  }
  BATON_CHECK(best != nullptr, "a tile is counted that no block holds");
  return holder;
}

void PrefixIndex::check_integrity() const {
  std::vector<std::int32_t> mapped(columns_.size(), 0);
  std::int64_t holders = 0;
  for (const auto& [digest, place] : by_digest_) {
    const std::vector<TileDigest>& tiles = columns_[place.column].tiles;
    BATON_CHECK(std::find(tiles.begin(), tiles.end(), digest) != tiles.end(),
                "block {} does not hold a tile that names it", place.column);
    ++mapped[place.column];
    holders += place.holders;
  }
  std::vector<std::uint32_t> kept(pools_.size(), 0);
  for (std::uint32_t id = 0; id < columns_.size(); ++id) {
    const Column& column = columns_[id];
    if (column.blocks.empty()) {
      BATON_CHECK(mapped[id] == 0 && column.tiles.empty(), "block {} is not in the index", id);
      continue;
    }
    BATON_CHECK(column.mapped == mapped[id] && mapped[id] > 0, "block {}: {} tiles, {} counted", id,
                mapped[id], column.mapped);
    holders -= static_cast<std::int64_t>(column.tiles.size() - column.first_valid);
    const auto use = by_use_.find(column.last_use);
    BATON_CHECK(use != by_use_.end() && use->second == id, "block {} has no place by use", id);
    for (std::size_t group = 0; group < pools_.size(); ++group) {
      BATON_CHECK(pools_[group]->is_kept(column.blocks[group]), "block {} of group {} is not kept",
                  column.blocks[group].value, group);
      ++kept[group];
    }
  }
  BATON_CHECK(holders == 0 && by_begin_.size() == by_use_.size(),
              "{} tiles more are counted than there are, {} beginnings of {} blocks", holders,
              by_begin_.size(), by_use_.size());
  for (std::size_t group = 0; group < pools_.size(); ++group) {
    BATON_CHECK(kept[group] == pools_[group]->kept_blocks(), "group {} keeps {} blocks, {} named",
                group, pools_[group]->kept_blocks(), kept[group]);
  }
}

}  // namespace baton::kv
