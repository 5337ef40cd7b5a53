#include "baton/router/prefix_map.h"

#include "baton/kv/layout.h"
#include "baton/message/prefix_root.h"

#include <algorithm>
#include <array>

namespace baton::router {

static_assert(kNameTokens == kv::kTileTokens);

std::vector<PrefixName> prefix_names(kv::TileHasher& hasher,
                                     const message::Namespace& cache_namespace,
                                     std::span<const TokenId> prompt,
                                     std::span<const TokenId> emitted) {
  std::vector<PrefixName> names;
  names.reserve((prompt.size() + emitted.size()) / kNameTokens);
  kv::TileDigest digest = message::prefix_root(hasher, cache_namespace);
  std::array<TokenId, kNameTokens> tile;
  std::size_t filled = 0;
  for (const auto part : {prompt, emitted}) {
    for (const TokenId token : part) {
      tile[filled++] = token;
      if (filled == tile.size()) {
        digest = hasher.tile(digest, tile);
        names.push_back(kv::prefix_name(digest));
        filled = 0;
      }
    }
  }
  return names;
}

void PrefixMap::Cache::drop_guess(PrefixName name) {
  if (const auto found = places.find(name); found != places.end()) {
    guesses.erase(found->second);
    places.erase(found);
  }
}

void PrefixMap::Cache::drop_stalest() {
  places.erase(guesses.back().name);
  guesses.pop_back();
}

std::int64_t PrefixMap::cached_tokens(const NodeId& node, std::span<const PrefixName> names) const {
  const auto found = nodes_.find(node);
  if (found == nodes_.end()) {
    return 0;
  }
  const Cache& cache = found->second;
  std::int64_t count = 0;
  for (const PrefixName name : names) {
    if (!cache.reported.contains(name) && !cache.places.contains(name)) {
      break;
    }
    ++count;
  }
  return count * kNameTokens;
}

// Of what was guessed before the earlier end holds: asking again confirms nothing. A node that
// tells, but did not tell of what it was sent, keeps nothing (its cache is off, or full).
void PrefixMap::Cache::guess(std::span<const PrefixName> names, TimePoint until,
                             std::int64_t pool_tokens) {
  if (doubted) {
    return;
  }
  for (std::size_t i = names.size(); i-- > 0;) {
    const auto known = places.find(names[i]);
    if (known != places.end()) {
      known->second->until = std::min(known->second->until, until);
      guesses.splice(guesses.begin(), guesses, known->second);
    } else if (!reported.contains(names[i])) {
      guesses.push_front({names[i], until});
      places.emplace(names[i], guesses.begin());
    }
  }
  while (static_cast<std::int64_t>(guesses.size()) * kNameTokens > pool_tokens) {
    drop_stalest();
  }
}

void PrefixMap::note_use(const NodeId& node, std::span<const PrefixName> names,
                         std::int64_t pool_tokens, TimePoint now) {
  nodes_[node].guess(names, now + kUnconfirmedFor, pool_tokens);
}

void PrefixMap::note_end(const NodeId& node, std::span<const PrefixName> names,
                         std::int64_t pool_tokens, TimePoint now) {
  nodes_[node].guess(names, now + kUnconfirmedAfterEnd, pool_tokens);
}

void PrefixMap::report(const NodeId& node, const message::PrefixChanges& changes) {
  Cache& cache = nodes_[node];
  cache.reports = true;
  cache.doubted &= changes.added.empty();
  if (changes.restart) {
    cache.reported.clear();
  }
  for (const PrefixName name : changes.added) {
    cache.drop_guess(name);
    if (cache.reported.size() < kMaxReported) {
      cache.reported.insert(name);
    }
  }
  for (const PrefixName name : changes.removed) {
    cache.drop_guess(name);
    cache.reported.erase(name);
  }
}

// Few are left to look at: what was confirmed is no guess any more.
void PrefixMap::expire(TimePoint now) {
  for (auto& [node, cache] : nodes_) {
    if (cache.reports) {
      const std::size_t dropped = cache.guesses.remove_if([&](const Guess& guess) {
        return guess.until <= now && cache.places.erase(guess.name) == 1;
      });
      cache.doubted |= dropped > 0;
    }
  }
}

std::size_t PrefixMap::reported() const {
  std::size_t count = 0;
  for (const auto& [node, cache] : nodes_) {
    count += cache.reported.size();
  }
  return count;
}

}  // namespace baton::router
