// Which nodes take an attempt. Pure; thread: control.
#pragma once

#include "baton/base/ids.h"
#include "baton/cluster/records.h"
#include "baton/router/prefix_map.h"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace baton::router {

enum class PolicyKind : std::uint8_t { kRoundRobin, kLeastLoaded, kKvAware };

// One of the two may be empty: the other node does both.
struct Pick {
  NodeId prefill;
  NodeId decode;
  std::string exactness_tag;
  std::int64_t new_tokens = 0;  // that the prefill node probably has to compute
  bool by_choice = false;       // the decode node alone, though there are prefill nodes
};

struct Wish {
  std::string exactness_tag;   // empty: any; a replay must stay within its first tag
  std::vector<NodeId> avoid;   // nodes that just failed it: taken only when nobody else is left
  TimePoint now{};             // nodes that are shunned until later are asked after the others
  std::vector<NodeId> prefer;  // nodes that have its prompt: taken whatever their load
  // Nodes that can never hold the sequence are no candidates. A prefill node of a pair holds the
  // prompt only.
  std::int64_t prompt_tokens = 0;
  std::int64_t total_tokens = 0;  // prompt + limit
  // kKvAware: the names of the prompt's prefixes, and who has them.
  std::span<const PrefixName> names;
  const PrefixMap* prefixes = nullptr;
  // So many new tokens, at most, are computed on the decode node rather than handed over; 0: never.
  std::int64_t local_prefill_tokens = 0;
};

class Policy {
 public:
  explicit Policy(PolicyKind kind) : kind_(kind) {}
  // A prefill and a decode node of one tag; else a decode node alone, else a prefill node alone.
  std::optional<Pick> pick(const cluster::NodeTable& nodes, const Wish& wish);

 private:
  const cluster::NodeRecord* best(const std::vector<const cluster::NodeRecord*>& candidates,
                                  const Wish& wish, std::uint64_t& turn) const;
  [[nodiscard]] std::int64_t cost(const cluster::NodeRecord& node, const Wish& wish) const;

  PolicyKind kind_;
  std::uint64_t prefill_turn_ = 0;
  std::uint64_t decode_turn_ = 0;
};

}  // namespace baton::router
