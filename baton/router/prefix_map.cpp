#include "baton/router/prefix_map.h"

namespace baton::router {

namespace {

std::uint64_t mix(std::uint64_t state, std::uint64_t value) {
  state = (state ^ value) * 0x9E3779B97F4A7C15U;
  return state ^ state >> 32U;
}

}  // namespace

std::vector<ChunkName> chunk_names(const message::Namespace& cache_namespace,
                                   std::span<const TokenId> prompt,
                                   std::span<const TokenId> emitted) {
  std::uint64_t state = 1;
  for (const std::uint8_t byte : cache_namespace) {
    state = mix(state, byte);
  }
  std::vector<ChunkName> names;
  names.reserve((prompt.size() + emitted.size()) / kChunkTokens);
  std::int64_t tokens = 0;
  for (const auto part : {prompt, emitted}) {
    for (const TokenId token : part) {
      state = mix(state, static_cast<std::uint64_t>(token));
      if (++tokens % kChunkTokens == 0) {
        names.push_back(state);
      }
    }
  }
  return names;
}

std::int64_t PrefixMap::cached_tokens(const NodeId& node, std::span<const ChunkName> chunks) const {
  const auto found = nodes_.find(node);
  if (found == nodes_.end()) {
    return 0;
  }
  std::int64_t count = 0;
  for (const ChunkName name : chunks) {
    if (!found->second.places.contains(name)) {
      break;
    }
    ++count;
  }
  return count * kChunkTokens;
}

void PrefixMap::note_use(const NodeId& node, std::span<const ChunkName> chunks,
                         std::int64_t pool_tokens) {
  Cache& cache = nodes_[node];
  for (std::size_t i = chunks.size(); i-- > 0;) {
    const auto known = cache.places.find(chunks[i]);
    if (known == cache.places.end()) {
      cache.order.push_front(chunks[i]);
      cache.places.emplace(chunks[i], cache.order.begin());
    } else {
      cache.order.splice(cache.order.begin(), cache.order, known->second);
    }
  }
  while (static_cast<std::int64_t>(cache.order.size()) * kChunkTokens > pool_tokens) {
    cache.places.erase(cache.order.back());
    cache.order.pop_back();
  }
}

}  // namespace baton::router
