#include "baton/router/policy.h"

#include <algorithm>

namespace baton::router {

namespace {

using cluster::NodeRecord;
using message::NodeRole;

bool is_among(const NodeRecord& node, const std::vector<NodeId>& ids) {
  return std::find(ids.begin(), ids.end(), node.info.id) != ids.end();
}

// Sequences there: what we sent is known at once, what others sent by the last Beat.
std::uint64_t load_of(const NodeRecord& node) {
  const std::uint64_t reported = std::uint64_t{node.load.running} + node.load.waiting;
  return std::max<std::uint64_t>(node.assigned, reported);
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

const NodeRecord* Policy::best(const std::vector<const NodeRecord*>& candidates, const Wish& wish,
                               std::uint64_t& turn) const {
  std::vector<const NodeRecord*> preferred;
  std::copy_if(candidates.begin(), candidates.end(), std::back_inserter(preferred),
               [&](const NodeRecord* node) { return !is_among(*node, wish.avoid); });
  const auto& from = preferred.empty() ? candidates : preferred;
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
  if (kind_ == PolicyKind::kLeastLoaded) {
    for (std::size_t step = 1; step < from.size(); ++step) {
      const NodeRecord* node = from[(first + step) % from.size()];
      if (load_of(*node) < load_of(*chosen)) {
        chosen = node;
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
    const NodeRecord* p = best(with_partner(prefill, {d}), wish, prefill_turn_);
    return Pick{p->info.id, d->info.id, d->info.exactness_tag};
  }
  if (const NodeRecord* d = best(decode, wish, decode_turn_)) {
    return Pick{NodeId{}, d->info.id, d->info.exactness_tag};
  }
  if (const NodeRecord* p =
          best(fitting(nodes, NodeRole::kPrefill, wish, wish.total_tokens), wish, prefill_turn_)) {
    return Pick{p->info.id, NodeId{}, p->info.exactness_tag};
  }
  return std::nullopt;
}

}  // namespace baton::router
