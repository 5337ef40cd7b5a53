#include "baton/cluster/records.h"

#include <algorithm>

namespace baton::cluster {

namespace {

bool plays(const message::NodeInfo& info, message::NodeRole role) {
  return info.role == role ||
         (role == message::NodeRole::kDecode && info.role == message::NodeRole::kSingle);
}

}  // namespace

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

void NodeTable::await_role(message::NodeRole role, std::string source) {
  awaited_.push_back({role, std::move(source)});
}

void NodeTable::expect(message::NodeRole role, const std::string& address) {
  for (auto& [id, record] : nodes_) {
    if (record.info.address == address) {
      record.retired = false;  // its next Beat says whether it drains itself
    }
  }
  if (Expected* known = find_expected(address)) {
    known->role = role;
    known->retired = false;
    return;
  }
  expected_.push_back({role, address});
}

void NodeTable::retire(const std::string& address) {
  if (Expected* known = find_expected(address)) {
    known->retired = true;
  }
  for (auto& [id, record] : nodes_) {
    if (record.info.address == address) {
      record.retired = true;
      record.state = record.state == NodeState::kUp ? NodeState::kDraining : record.state;
    }
  }
}

void NodeTable::forget(const std::string& address) {
  const Expected* known = find_expected(address);
  if (known != nullptr && !known->retired) {
    return;  // it has come back meanwhile
  }
  std::erase_if(expected_, [&](const Expected& peer) { return peer.address == address; });
  std::erase_if(nodes_, [&](const auto& entry) {
    return entry.second.info.address == address && entry.second.state == NodeState::kDown;
  });
}

NodeTable::Expected* NodeTable::find_expected(const std::string& address) {
  const auto found = std::find_if(expected_.begin(), expected_.end(),
                                  [&](const Expected& peer) { return peer.address == address; });
  return found == expected_.end() ? nullptr : &*found;
}

bool NodeTable::expects(message::NodeRole role) const {
  const auto is_of_role = [&](const auto& peer) { return peer.role == role; };
  return std::any_of(expected_.begin(), expected_.end(), is_of_role) ||
         std::any_of(awaited_.begin(), awaited_.end(), is_of_role);
}

void NodeTable::up(const message::NodeUp& event, TimePoint now) {
  // A node that was started anew at the same address has another name unless it was given one: the
  // dead are not kept beside it, or the table would grow with each restart.
  std::erase_if(nodes_, [&](const auto& entry) {
    return entry.second.state == NodeState::kDown &&
           entry.second.info.address == event.info.address;
  });
  NodeRecord& record = nodes_[event.info.id];
  const Expected* known = find_expected(event.info.address);
  record.info = event.info;
  record.load = {};
  record.retired = known != nullptr && known->retired;
  record.state = record.retired ? NodeState::kDraining : NodeState::kUp;
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
  if (Expected* known = find_expected(address)) {
    known->reason = std::move(reason);
  }
}

void NodeTable::load(const NodeId& id, const message::NodeLoad& load, bool draining,
                     TimePoint now) {
  NodeRecord* record = find(id);
  if (record == nullptr || record->state == NodeState::kDown) {
    return;  // a late Beat does not bring a node back: only a handshake does
  }
  record->load = load;
  const std::uint64_t reported = std::uint64_t{load.running} + load.waiting;
  record->others = reported - std::min<std::uint64_t>(reported, record->assigned);
  record->state = draining || record->retired ? NodeState::kDraining : NodeState::kUp;
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
  for (const Awaited& kind : awaited_) {
    const bool known = std::any_of(expected_.begin(), expected_.end(),
                                   [&](const Expected& peer) { return peer.role == kind.role; });
    if (!known) {
      out.push_back(std::string(message::role_name(kind.role)) + " nodes: none known yet (" +
                    kind.source + ")");
    }
  }
  for (const Expected& peer : expected_) {
    if (peer.retired) {
      continue;
    }
    const auto at = std::find_if(nodes_.begin(), nodes_.end(), [&](const auto& entry) {
      return entry.second.info.address == peer.address && entry.second.state != NodeState::kDown;
    });
    const std::string name = std::string(message::role_name(peer.role)) + " node " + peer.address;
    if (at == nodes_.end()) {
      out.push_back(name + ": " + peer.reason);
    } else if (at->second.state == NodeState::kDraining) {
      out.push_back(name + ": draining");
    } else if (!plays(at->second.info, peer.role)) {
      out.push_back(name + ": is a " + std::string(message::role_name(at->second.info.role)) +
                    " node");
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
