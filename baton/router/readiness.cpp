// Whether this owner can serve, and if not, why. The rest of Router is in router.cpp.
#include "baton/router/router.h"

#include <algorithm>

namespace baton::router {

bool Router::has_pair() const {
  if (options_.local_engine) {
    return local_ready_;
  }
  const auto prefill = nodes_.usable(message::NodeRole::kPrefill);
  const auto decode = nodes_.usable(message::NodeRole::kDecode);
  const bool expects_prefill = nodes_.expects(message::NodeRole::kPrefill);
  const bool expects_decode = nodes_.expects(message::NodeRole::kDecode);
  if (expects_prefill != expects_decode) {
    return expects_prefill ? !prefill.empty() : !decode.empty();  // only one kind was asked for
  }
  return std::any_of(prefill.begin(), prefill.end(), [&](const auto* p) {
    return std::any_of(decode.begin(), decode.end(), [&](const auto* d) {
      return p->info.exactness_tag == d->info.exactness_tag;
    });
  });
}

namespace {

// The parts ("name=value", joined by ';') in which `one` differs from `other`.
std::string differing_parts(const std::string& one, const std::string& other) {
  std::string result;
  std::size_t begin = 0;
  while (begin <= one.size()) {
    const std::size_t end = std::min(one.find(';', begin), one.size());
    const std::string part = one.substr(begin, end - begin);
    if ((";" + other + ";").find(";" + part + ";") == std::string::npos) {
      result += (result.empty() ? "" : ";") + part;
    }
    begin = end + 1;
  }
  return result;
}

// Both kinds are up, yet none of them may pair: which part of their exactness tags differs.
std::string why_no_pair(const cluster::NodeTable& nodes) {
  const auto prefill = nodes.usable(message::NodeRole::kPrefill);
  const auto decode = nodes.usable(message::NodeRole::kDecode);
  if (prefill.empty() || decode.empty()) {
    return "no prefill node and decode node are up";
  }
  const message::NodeInfo& p = prefill.front()->info;
  const message::NodeInfo& d = decode.front()->info;
  return "exactness_tag differs: prefill node " + p.id.value + " has '" +
         differing_parts(p.exactness_tag, d.exactness_tag) + "', decode node " + d.id.value +
         " has '" + differing_parts(d.exactness_tag, p.exactness_tag) + "'";
}

}  // namespace

std::vector<std::string> Router::exactness_tags() const {
  if (options_.local_engine) {
    return {options_.exactness_tag};
  }
  std::vector<std::string> out;
  for (const message::NodeRole role : {message::NodeRole::kPrefill, message::NodeRole::kDecode}) {
    for (const cluster::NodeRecord* node : nodes_.usable(role)) {
      if (std::find(out.begin(), out.end(), node->info.exactness_tag) == out.end()) {
        out.push_back(node->info.exactness_tag);
      }
    }
  }
  return out;
}

Readiness Router::readiness() const {
  Readiness out;
  if (options_.local_engine) {
    out.ready = local_ready_ && !draining_;
    if (!local_ready_) {
      out.missing.emplace_back("the engine is not running");
    }
  } else {
    const bool anybody = !nodes_.usable(message::NodeRole::kPrefill).empty() ||
                         !nodes_.usable(message::NodeRole::kDecode).empty();
    out.ready = (has_pair() || (was_ready_ && anybody)) && !draining_;
    out.missing = nodes_.missing();
    if (!out.ready && out.missing.empty()) {
      out.missing.push_back(why_no_pair(nodes_));
    }
  }
  if (draining_) {
    out.missing.emplace_back("shutting down");
  }
  return out;
}

}  // namespace baton::router
