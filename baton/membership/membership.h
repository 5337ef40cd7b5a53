// Who belongs to the cluster and how this node says that it does:
//
//   addresses of the flags ──────────────────────┐
//   names ── resolver, every few seconds ────────┼► MemberSet ── take_changes() ► who dials
//   etcd  ── range, then watch ──────────────────┘
//   this node ── lease, put, keep-alive; revoked by leave() ► etcd
//
// A source that cannot be asked keeps its last answer. Nothing here decides what becomes of a node
// that left: apps/ does, with the transport and the router. Thread: all of it on the executor,
// which must be serial (stats: any).
#pragma once

#include "baton/membership/etcd_client.h"
#include "baton/membership/member_set.h"
#include "baton/membership/outage.h"
#include "baton/membership/peer_list.h"
#include "baton/net/async_clock.h"
#include "baton/net/async_event.h"
#include "baton/net/resolver.h"
#include "baton/net/task_group.h"

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace baton::membership {

struct EtcdOptions {
  std::vector<http::HttpTarget> endpoints;  // empty: no etcd
  std::string prefix = "/baton";
  std::int64_t ttl_s = 10;  // a node that is not heard of for so long is gone
  Duration retry_first = std::chrono::milliseconds(100);  // doubles up to:
  Duration retry_most = std::chrono::seconds(2);
  // A watch that brings nothing for so long is begun anew: its connection may be a dead one.
  Duration watch_silence = std::chrono::seconds(30);
};

// What this node writes into etcd.
struct Registration {
  std::string id;
  Member member;
};

struct MembershipOptions {
  std::map<message::NodeRole, PeerList> peers;  // of the roles that this node dials
  Duration dns_interval = std::chrono::seconds(5);
  EtcdOptions etcd;
  std::optional<Registration> self;          // with etcd only
  Duration grace = std::chrono::seconds(5);  // see MemberSet
  // Members join only once others have had the time to hear of them. For routers: a pair that they
  // choose must know each other.
  bool settle = true;
};

struct MembershipStats {
  std::atomic<std::uint64_t> dns_failures{0};
  std::atomic<std::uint64_t> etcd_failures{0};
  std::atomic<std::uint64_t> prefill_nodes{0};
  std::atomic<std::uint64_t> decode_nodes{0};
};

namespace etcd {
struct KeyValue;
}

class Membership {
 public:
  // `clock` and `resolver` must outlive it. The addresses of the flags are members at once.
  Membership(asio::any_io_executor executor, MembershipOptions options, net::AsyncClock& clock,
             net::Resolver& resolver);
  Membership(const Membership&) = delete;
  Membership& operator=(const Membership&) = delete;

  // Asks the sources and keeps this node registered; returns after stop(), when all of it has
  // ended.
  asio::awaitable<void> run();
  void stop();

  // Of members whose role is among options.peers. Poll it.
  std::vector<Change> take_changes();

  // Takes this node out of etcd; registered() turns false when that is done, or could not be.
  void leave();
  [[nodiscard]] bool registered() const { return registered_; }

  [[nodiscard]] const MembershipStats& stats() const { return *stats_; }

 private:
  asio::awaitable<void> follow_name(message::NodeRole role, net::HostPort name);
  asio::awaitable<void> follow_etcd();
  asio::awaitable<Status> list_and_watch(EtcdClient* client);
  bool take_watch_line(const std::string& line);
  void take_pair(const etcd::KeyValue& pair);
  void publish_etcd();
  asio::awaitable<void> keep_registered();
  asio::awaitable<Result<std::string>> sign_up(EtcdClient* client);
  asio::awaitable<void> keep_alive(EtcdClient* client, std::string lease);
  [[nodiscard]] bool watches(message::NodeRole role) const { return options_.peers.contains(role); }

  const MembershipOptions options_;
  net::AsyncClock& clock_;
  net::Resolver& resolver_;
  std::unique_ptr<MembershipStats> stats_;
  MemberSet members_;
  std::map<std::string, Member> etcd_nodes_;  // by key
  Outage watch_outage_;
  net::TaskGroup tasks_;
  net::AsyncEvent stopped_;
  net::AsyncEvent leave_now_;
  bool stopping_ = false;  // what fails now was cut by us
  bool leaving_ = false;
  bool registered_ = false;
};

}  // namespace baton::membership
