// What this owner believes each node has in its prefix cache: a guess from what it sent there, with
// the pool's size as the only bound. A wrong guess costs computing, never a bit. Soft state: router
// replicas do not share it, and a node that went down has nothing. Thread: control.
#pragma once

#include "baton/base/ids.h"
#include "baton/message/request.h"

#include <cstdint>
#include <list>
#include <map>
#include <span>
#include <unordered_map>
#include <vector>

namespace baton::router {

// Tokens that one name stands for: two tiles, so that a map of long prompts stays small.
inline constexpr std::int64_t kChunkTokens = 64;

// A chunk and all that came before it in the same cache namespace.
using ChunkName = std::uint64_t;

// Of the whole chunks of prompt + emitted, in order. Whoever makes two of them collide on purpose
// sends requests to the wrong node, no more.
std::vector<ChunkName> chunk_names(const message::Namespace& cache_namespace,
                                   std::span<const TokenId> prompt,
                                   std::span<const TokenId> emitted = {});

class PrefixMap {
 public:
  // Tokens of the chunks, from the first on, that the node probably has.
  [[nodiscard]] std::int64_t cached_tokens(const NodeId& node,
                                           std::span<const ChunkName> chunks) const;
  // The node computes or receives them: they are the freshest there, and what is beyond pool_tokens
  // is forgotten, the ends of prompts before their beginnings.
  void note_use(const NodeId& node, std::span<const ChunkName> chunks, std::int64_t pool_tokens);
  void forget(const NodeId& node) { nodes_.erase(node); }

 private:
  struct Cache {
    std::list<ChunkName> order;  // freshest first
    std::unordered_map<ChunkName, std::list<ChunkName>::iterator> places;
  };
  std::map<NodeId, Cache> nodes_;
};

}  // namespace baton::router
