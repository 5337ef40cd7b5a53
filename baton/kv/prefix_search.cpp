#include "baton/kv/prefix_search.h"

#include <algorithm>
#include <optional>

namespace baton::kv {

namespace {

// What a full group has of the first `count` tiles; `hit` has at least as many.
SequenceHit::Group cut(const PrefixHit& hit, std::int32_t count, std::int32_t per_block) {
  SequenceHit::Group group;
  const auto whole = static_cast<std::size_t>(count / per_block);
  for (std::size_t block = 0; block < whole; ++block) {
    group.blocks.push_back(hit.blocks[block][0]);
  }
  if (count % per_block > 0) {
    group.partial = whole < hit.blocks.size() ? hit.blocks[whole][0] : hit.partial[0];
    group.partial_tiles = {0, count % per_block};
  }
  return group;
}

// The blocks of a window group that a prefix of `count` tiles needs; none when one is missing.
std::optional<SequenceHit::Group> last_window(const KvGroup& shape, const PrefixIndex& index,
                                              std::span<const TileDigest> tiles, std::int32_t count,
                                              std::int32_t per_block) {
  const TileRange needed = shape.tiles_needed(std::int64_t{count} * kTileTokens);
  SequenceHit::Group group;
  group.first_block = needed.begin / per_block;
  for (std::int32_t tile = needed.begin; tile < count;) {
    const std::int32_t begin = tile / per_block * per_block;
    const std::int32_t end = std::min(count, begin + per_block);
    const std::optional<BlockId> block =
        index.holder(tiles.subspan(static_cast<std::size_t>(begin)),
                     static_cast<std::size_t>(tile - begin), static_cast<std::size_t>(end - begin));
    if (!block) {
      return std::nullopt;
    }
    if (end - begin == per_block) {
      group.blocks.push_back(*block);
    } else {
      group.partial = *block;
      group.partial_tiles = {tile - begin, end - begin};
    }
    tile = end;
  }
  return group;
}

}  // namespace

bool SequenceHit::has_partial() const {
  return std::ranges::any_of(groups, [](const Group& group) { return group.partial != kNoBlock; });
}

SequenceHit find_prefix(const KvLayout& layout,
                        std::span<const std::unique_ptr<PrefixIndex>> indexes,
                        std::span<const TileDigest> tiles) {
  const std::int32_t per_block = layout.tiles_per_block();
  std::vector<PrefixHit> full(indexes.size());
  auto count = static_cast<std::int32_t>(tiles.size());
  for (std::size_t group = 0; group < indexes.size(); ++group) {
    if (layout.groups[group].kind == GroupKind::kFull) {
      full[group] = indexes[group]->find(tiles);
      count = std::min(count, full[group].tiles);
    }
  }
  // A window may be gone where the rest of the prefix is still there: an earlier one may not be.
  SequenceHit hit;
  for (; count > 0; --count) {
    hit.groups.clear();
    for (std::size_t group = 0; group < indexes.size(); ++group) {
      const KvGroup& shape = layout.groups[group];
      std::optional<SequenceHit::Group> found =
          shape.kind == GroupKind::kFull
              ? std::optional(cut(full[group], count, per_block))
              : last_window(shape, *indexes[group], tiles, count, per_block);
      if (!found) {
        break;
      }
      hit.groups.push_back(*std::move(found));
    }
    if (hit.groups.size() == indexes.size()) {
      hit.tiles = count;
      return hit;
    }
  }
  hit.groups.assign(indexes.size(), {});
  return hit;
}

}  // namespace baton::kv
