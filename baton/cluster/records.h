// What an owner knows of its nodes: identity, load, and why a peer cannot be used. A plain table
// fed by transport events; router/ picks from it, /ready and the cluster view print it. No I/O.
// Thread: the control thread (copies may go anywhere).
#pragma once

#include "baton/base/clock.h"
#include "baton/base/ids.h"
#include "baton/message/node.h"

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace baton::cluster {

enum class NodeState : std::uint8_t { kUp, kDraining, kDown };
std::string_view node_state_name(NodeState state);

struct NodeRecord {
  message::NodeInfo info;
  message::NodeLoad load;
  NodeState state = NodeState::kDown;
  bool retired = false;  // it left the membership: kDraining for as long as it is connected
  TimePoint last_seen{};
  std::string down_reason;     // set when kDown
  std::uint32_t assigned = 0;  // sequences that this owner has there now
  // Those that the last Beat counted beyond the ones that this owner had there then: of other
  // owners.
  std::uint64_t others = 0;
  // Of those that it prefills: tokens that it probably has to compute yet (routing by cached
  // prefixes).
  std::int64_t prefill_tokens = 0;
  // Circuit breaker: attempts in a row that failed there, and until when others are asked first.
  std::uint32_t faults = 0;
  TimePoint shunned_until{};
};

class NodeTable {
 public:
  // Nodes of that role are wanted, though none may be known yet; `source` says where from.
  void await_role(message::NodeRole role, std::string source);
  // An address (host:port as dialled) that counts as missing until a node of it is up. One that was
  // retired is wanted again.
  void expect(message::NodeRole role, const std::string& address);
  // No longer wanted: nothing new for the node there, and nobody misses it.
  void retire(const std::string& address);
  // A retired address is not dialled any more, and nobody is connected there.
  void forget(const std::string& address);

  [[nodiscard]] bool expects(message::NodeRole role) const;

  // Takes the place of a dead node of the same address, whatever that one's name.
  void up(const message::NodeUp& event, TimePoint now);
  void down(const message::NodeDown& event);
  // A peer that was reached and refused, or cannot be reached: `reason` is shown until it is up.
  void unusable(const std::string& address, std::string reason);
  void load(const NodeId& id, const message::NodeLoad& load, bool draining, TimePoint now);

  [[nodiscard]] NodeRecord* find(const NodeId& id);
  [[nodiscard]] const NodeRecord* find(const NodeId& id) const;
  // Nodes in order of id: the same table gives the same choice everywhere.
  [[nodiscard]] const std::map<NodeId, NodeRecord>& nodes() const { return nodes_; }
  // Up, not draining. A kSingle node counts as a decode node.
  [[nodiscard]] std::vector<const NodeRecord*> usable(message::NodeRole role) const;
  // One line per expected peer that is not up, with the reason: "prefill node 10.0.0.1:7001:
  // refused ...", and one per awaited role of which no address is known.
  [[nodiscard]] std::vector<std::string> missing() const;
  // The smallest of the usable engine nodes' limits; 0 when there is none.
  [[nodiscard]] std::int32_t min_context_tokens() const;

 private:
  struct Expected {
    message::NodeRole role;
    std::string address;
    std::string reason = "not reached yet";
    bool retired = false;
  };
  struct Awaited {
    message::NodeRole role;
    std::string source;
  };
  Expected* find_expected(const std::string& address);

  std::map<NodeId, NodeRecord> nodes_;
  std::vector<Expected> expected_;
  std::vector<Awaited> awaited_;
};

}  // namespace baton::cluster
