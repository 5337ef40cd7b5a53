// What a node tells others about itself, and the events of its coming and going. Seen by handoff
// (which learns it at the handshake), cluster and router.
#pragma once

#include "baton/base/ids.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace baton::message {

enum class NodeRole : std::uint8_t { kSingle, kPrefill, kDecode, kRouter };

// As --node-role, labels and etcd have it.
inline std::string_view role_name(NodeRole role) {
  switch (role) {
    case NodeRole::kSingle:
      return "single";
    case NodeRole::kPrefill:
      return "prefill";
    case NodeRole::kDecode:
      return "decode";
    case NodeRole::kRouter:
      return "router";
  }
  return "unknown";
}

struct NodeInfo {
  NodeId id;
  NodeRole role = NodeRole::kSingle;
  std::string address;        // host:port that was dialled, for people
  std::string exactness_tag;  // nodes pair only within one tag
  std::int32_t max_context_tokens = 0;
  std::int64_t pool_tokens = 0;  // what its pool can hold in all
};

struct NodeLoad {
  std::uint32_t running = 0;
  std::uint32_t waiting = 0;
  std::uint64_t free_blocks = 0;
  std::uint64_t total_blocks = 0;
  std::uint64_t step_count = 0;
  std::uint64_t turn_count =
      0;  // of the engine's loop, which turns once a second with nothing to do
};

// What has changed in a node's prefix cache, in no order: each name stands for 32 tokens and all
// before them.
struct PrefixChanges {
  bool restart = false;  // what was said before counts no more
  std::vector<PrefixName> added;
  std::vector<PrefixName> removed;
};

struct NodeUp {
  NodeInfo info;
};
struct NodeDown {
  NodeId id;
  std::string reason;
};

}  // namespace baton::message
