#include "baton/router/policy.h"

#include <algorithm>

namespace baton::router {

namespace {

using cluster::NodeRecord;
using message::NodeRole;

// What a sequence under way is worth in tokens to compute, for kKvAware: about the prompt whose
// computing delays a node's others as much as one more row in each of its steps.
constexpr std::int64_t kSequenceTokens = 256;
// KV travels faster than it is computed: so many tokens arrive in the time of one.
constexpr std::int64_t kTransferSpeed = 8;

bool is_among(const NodeRecord& node, const std::vector<NodeId>& ids) {
  return std::find(ids.begin(), ids.end(), node.info.id) != ids.end();
}

// Sequences there: what we sent and what has ended of it is known at once, the rest by the last
// Beat.
std::int64_t load_of(const NodeRecord& node) {
  return static_cast<std::int64_t>(node.assigned + node.others);
}

std::int64_t new_tokens(const NodeRecord& node, const Wish& wish) {
  const std::int64_t cached =
      wish.prefixes == nullptr ? 0 : wish.prefixes->cached_tokens(node.info.id, wish.names);
  return wish.prompt_tokens - std::min(cached, wish.prompt_tokens);
}

std::vector<const NodeRecord*> fitting(const cluster::NodeTable& nodes, NodeRole role,
                                       const Wish& wish, std::int64_t pool_tokens) {
  std::vector<const NodeRecord*> out = nodes.usable(role);
  std::erase_if(out, [&](const NodeRecord* node) {
    const auto& info = node->info;
    return (!wish.exactness_tag.empty() && info.exactness_tag != wish.exactness_tag) ||
           wish.total_tokens > info.max_context_tokens || pool_tokens > info.pool_tokens;
  });
  return out;
}

std::vector<const NodeRecord*> with_partner(const std::vector<const NodeRecord*>& nodes,
                                            const std::vector<const NodeRecord*>& partners) {
  std::vector<const NodeRecord*> out;
  for (const NodeRecord* node : nodes) {
    if (std::any_of(partners.begin(), partners.end(), [&](const NodeRecord* other) {
          return other->info.exactness_tag == node->info.exactness_tag;
        })) {
      out.push_back(node);
    }
  }
  return out;
}

}  // namespace

// Tokens to compute until this one has its first: what waits there, what it lacks.
std::int64_t Policy::cost(const NodeRecord& node, const Wish& wish) const {
  const std::int64_t sequences = load_of(node);
  if (kind_ != PolicyKind::kKvAware) {
    return sequences;
  }
  const std::int64_t lacking = new_tokens(node, wish);
  if (node.info.role == NodeRole::kPrefill) {
    return node.prefill_tokens + static_cast<std::int64_t>(node.others) * kSequenceTokens + lacking;
  }
  return sequences * kSequenceTokens + lacking / kTransferSpeed;
}

const NodeRecord* Policy::best(const std::vector<const NodeRecord*>& candidates, const Wish& wish,
                               std::uint64_t& turn) const {
  const auto without = [](std::vector<const NodeRecord*> nodes, const auto& unwanted) {
    std::vector<const NodeRecord*> left = nodes;
    std::erase_if(left, unwanted);
    return left.empty() ? nodes : left;
  };
  const auto from = without(
      without(candidates, [&](const NodeRecord* node) { return is_among(*node, wish.avoid); }),
      [&](const NodeRecord* node) { return node->shunned_until > wish.now; });
  if (from.empty()) {
    return nullptr;
  }
  const auto wanted = std::find_if(from.begin(), from.end(), [&](const NodeRecord* node) {
    return is_among(*node, wish.prefer);
  });
  if (wanted != from.end()) {
    return *wanted;
  }
  // The turn moves on with every pick, so equal loads are shared out in order.
  const std::size_t first = static_cast<std::size_t>(turn++ % from.size());
  const NodeRecord* chosen = from[first];
  if (kind_ != PolicyKind::kRoundRobin) {
    std::int64_t least = cost(*chosen, wish);
    for (std::size_t step = 1; step < from.size(); ++step) {
      const NodeRecord* node = from[(first + step) % from.size()];
      const std::int64_t its = cost(*node, wish);
      if (its < least) {
        chosen = node;
        least = its;
      }
    }
  }
  return chosen;
}

std::optional<Pick> Policy::pick(const cluster::NodeTable& nodes, const Wish& wish) {
  const auto prefill = fitting(nodes, NodeRole::kPrefill, wish, wish.prompt_tokens);
  const auto decode = fitting(nodes, NodeRole::kDecode, wish, wish.total_tokens);
  const auto paired = with_partner(decode, prefill);
  if (!paired.empty()) {
    const NodeRecord* d = best(paired, wish, decode_turn_);
    if (wish.prefixes != nullptr && new_tokens(*d, wish) <= wish.local_prefill_tokens) {
      return Pick{{}, d->info.id, d->info.exactness_tag, 0, true};
    }
    const NodeRecord* p = best(with_partner(prefill, {d}), wish, prefill_turn_);
    return Pick{p->info.id, d->info.id, d->info.exactness_tag, new_tokens(*p, wish)};
  }
  if (const NodeRecord* d = best(decode, wish, decode_turn_)) {
    return Pick{NodeId{}, d->info.id, d->info.exactness_tag};
  }
  if (const NodeRecord* p =
          best(fitting(nodes, NodeRole::kPrefill, wish, wish.total_tokens), wish, prefill_turn_)) {
    return Pick{p->info.id, NodeId{}, p->info.exactness_tag, new_tokens(*p, wish)};
  }
  return std::nullopt;
}

}  // namespace baton::router
