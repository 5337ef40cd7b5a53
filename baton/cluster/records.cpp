#include "baton/cluster/records.h"

#include <algorithm>

namespace baton::cluster {

namespace {

bool plays(const message::NodeInfo& info, message::NodeRole role) {
  return info.role == role ||
         (role == message::NodeRole::kDecode && info.role == message::NodeRole::kSingle);
}

}  // namespace

std::string_view role_name(message::NodeRole role) {
  switch (role) {
    case message::NodeRole::kSingle:
      return "single";
    case message::NodeRole::kPrefill:
      return "prefill";
    case message::NodeRole::kDecode:
      return "decode";
    case message::NodeRole::kRouter:
      return "router";
  }
  return "unknown";
}

std::string_view node_state_name(NodeState state) {
  switch (state) {
    case NodeState::kUp:
      return "up";
    case NodeState::kDraining:
      return "draining";
    case NodeState::kDown:
      return "down";
  }
  return "unknown";
}

void NodeTable::expect(message::NodeRole role, std::string address) {
  expected_.push_back({role, std::move(address)});
}

bool NodeTable::expects(message::NodeRole role) const {
  return std::any_of(expected_.begin(), expected_.end(),
                     [&](const Expected& peer) { return peer.role == role; });
}

void NodeTable::up(const message::NodeUp& event, TimePoint now) {
  // A node that was started anew at the same address has another name unless it was given one: the
  // dead are not kept beside it, or the table would grow with each restart.
  std::erase_if(nodes_, [&](const auto& entry) {
    return entry.second.state == NodeState::kDown &&
           entry.second.info.address == event.info.address;
  });
  NodeRecord& record = nodes_[event.info.id];
  record.info = event.info;
  record.load = {};
  record.state = NodeState::kUp;
  record.last_seen = now;
  record.down_reason.clear();
  record.faults = 0;
  record.shunned_until = {};
}

void NodeTable::down(const message::NodeDown& event) {
  NodeRecord* record = find(event.id);
  if (record == nullptr) {
    return;
  }
  record->state = NodeState::kDown;
  record->down_reason = event.reason;
  record->load = {};
  unusable(record->info.address, event.reason);
}

void NodeTable::unusable(const std::string& address, std::string reason) {
  for (Expected& peer : expected_) {
    if (peer.address == address) {
      peer.reason = reason;
    }
  }
}

void NodeTable::load(const NodeId& id, const message::NodeLoad& load, bool draining,
                     TimePoint now) {
  NodeRecord* record = find(id);
  if (record == nullptr || record->state == NodeState::kDown) {
    return;  // a late Beat does not bring a node back: only a handshake does
  }
  record->load = load;
  record->state = draining ? NodeState::kDraining : NodeState::kUp;
  record->last_seen = now;
}

NodeRecord* NodeTable::find(const NodeId& id) {
  const auto found = nodes_.find(id);
  return found == nodes_.end() ? nullptr : &found->second;
}

const NodeRecord* NodeTable::find(const NodeId& id) const {
  const auto found = nodes_.find(id);
  return found == nodes_.end() ? nullptr : &found->second;
}

std::vector<const NodeRecord*> NodeTable::usable(message::NodeRole role) const {
  std::vector<const NodeRecord*> out;
  for (const auto& [id, record] : nodes_) {
    if (record.state == NodeState::kUp && plays(record.info, role)) {
      out.push_back(&record);
    }
  }
  return out;
}

std::vector<std::string> NodeTable::missing() const {
  std::vector<std::string> out;
  for (const Expected& peer : expected_) {
    const auto at = std::find_if(nodes_.begin(), nodes_.end(), [&](const auto& entry) {
      return entry.second.info.address == peer.address && entry.second.state != NodeState::kDown;
    });
    const std::string name = std::string(role_name(peer.role)) + " node " + peer.address;
    if (at == nodes_.end()) {
      out.push_back(name + ": " + peer.reason);
    } else if (at->second.state == NodeState::kDraining) {
      out.push_back(name + ": draining");
    } else if (!plays(at->second.info, peer.role)) {
      out.push_back(name + ": is a " + std::string(role_name(at->second.info.role)) + " node");
    }
  }
  return out;
}

std::int32_t NodeTable::min_context_tokens() const {
  std::int32_t least = 0;
  for (const auto& [id, record] : nodes_) {
    if (record.state != NodeState::kUp || record.info.role == message::NodeRole::kRouter) {
      continue;
    }
    const auto pool =
        std::min<std::int64_t>(record.info.pool_tokens, record.info.max_context_tokens);
    const auto limit = static_cast<std::int32_t>(pool);
    least = least == 0 ? limit : std::min(least, limit);
  }
  return least;
}

}  // namespace baton::cluster
