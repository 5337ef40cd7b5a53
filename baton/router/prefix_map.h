// Who has which prefix in its cache: what nodes say of it themselves, and for the time until they
// have, a guess from what this owner sent there. A wrong guess costs computing, never a bit. Soft
// state: a node that went down has nothing. Thread: control.
#pragma once

#include "baton/base/clock.h"
#include "baton/base/ids.h"
#include "baton/kv/tile_digest.h"
#include "baton/message/node.h"
#include "baton/message/request.h"

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace baton::router {

// Tokens that one name stands for: a tile, the unit of prefix caches.
inline constexpr std::int64_t kNameTokens = 32;

// Of a node that tells what it has, a guess that it did not confirm in this time is dropped: longer
// than a prompt waits to be computed. And once it was computed, in this one.
inline constexpr Duration kUnconfirmedFor = std::chrono::seconds(60);
inline constexpr Duration kUnconfirmedAfterEnd = std::chrono::seconds(5);

// Of one node; far above what a pool holds (32 M tokens), and some 60 MiB.
inline constexpr std::size_t kMaxReported = std::size_t{1} << 20;

// Of the whole tiles of prompt + emitted, in order, as the nodes name them. About 0.5 us each.
std::vector<PrefixName> prefix_names(kv::TileHasher& hasher,
                                     const message::Namespace& cache_namespace,
                                     std::span<const TokenId> prompt,
                                     std::span<const TokenId> emitted = {});

class PrefixMap {
 public:
  // Tokens that the names stand for, from the first on, that the node has or probably has.
  [[nodiscard]] std::int64_t cached_tokens(const NodeId& node,
                                           std::span<const PrefixName> names) const;
  // The node computes or receives them: they are the freshest there, and of what is guessed the
  // rest beyond pool_tokens is forgotten, the ends of prompts before their beginnings.
  void note_use(const NodeId& node, std::span<const PrefixName> names, std::int64_t pool_tokens,
                TimePoint now);
  // Likewise, of a sequence that has ended there: all of it is in the node's cache, or never will.
  void note_end(const NodeId& node, std::span<const PrefixName> names, std::int64_t pool_tokens,
                TimePoint now);
  // The node's word, which ends all guessing about those names.
  void report(const NodeId& node, const message::PrefixChanges& changes);
  void expire(TimePoint now);
  void forget(const NodeId& node) { nodes_.erase(node); }

  [[nodiscard]] std::size_t reported() const;  // names, by all nodes

 private:
  struct Guess {
    PrefixName name = 0;
    TimePoint until{};  // of a node that tells what it has
  };
  struct Cache {
    bool reports = false;
    bool doubted = false;  // it did not confirm a guess, and has reported nothing new since
    std::unordered_set<PrefixName> reported;
    std::list<Guess> guesses;  // of names that are not reported; freshest first
    std::unordered_map<PrefixName, std::list<Guess>::iterator> places;

    void guess(std::span<const PrefixName> names, TimePoint until, std::int64_t pool_tokens);
    void drop_guess(PrefixName name);
    void drop_stalest();
  };
  std::map<NodeId, Cache> nodes_;
};

}  // namespace baton::router
