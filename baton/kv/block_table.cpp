#include "baton/kv/block_table.h"

#include "baton/base/check.h"

#include <algorithm>
#include <utility>

namespace baton::kv {

void BlockTable::append(std::vector<BlockRef> blocks) {
  for (BlockRef& block : blocks) {
    ids_.push_back(block.id());
    refs_.push_back(std::move(block));
  }
}

void BlockTable::skip(std::size_t count) {
  BATON_CHECK(refs_.empty(), "a table of {} blocks", refs_.size());
  refs_.resize(count);
  ids_.assign(count, kNoBlock);
  released_ = count;
}

void BlockTable::release_first(std::size_t count) {
  BATON_CHECK(count <= refs_.size(), "{} of {} blocks", count, refs_.size());
  for (; released_ < count; ++released_) {
    refs_[released_].reset();
    ids_[released_] = kNoBlock;
  }
}

std::vector<BlockRef> BlockTable::share_first(std::size_t count) const {
  BATON_CHECK(count <= refs_.size(), "{} of {} blocks", count, refs_.size());
  std::vector<BlockRef> shared;
  shared.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    shared.push_back(refs_[i].empty() ? BlockRef() : refs_[i].share());
  }
  return shared;
}

TileRange tiles_of_tokens(std::int64_t begin, std::int64_t end) {
  if (begin >= end) {
    const auto empty = static_cast<std::int32_t>(begin / kTileTokens);
    return {empty, empty};
  }
  return {static_cast<std::int32_t>(begin / kTileTokens), KvLayout::tiles_for(end)};
}

std::vector<BlockTiles> split_by_block(const KvLayout& layout, TileRange tiles) {
  const std::int32_t per_block = layout.tiles_per_block();
  std::vector<BlockTiles> parts;
  for (std::int32_t tile = tiles.begin; tile < tiles.end;) {
    const std::int32_t block = tile / per_block;
    const std::int32_t first = block * per_block;
    const std::int32_t end = std::min(tiles.end, first + per_block);
    parts.push_back({block, {tile - first, end - first}});
    tile = end;
  }
  return parts;
}

}  // namespace baton::kv
