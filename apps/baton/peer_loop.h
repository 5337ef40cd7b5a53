// Glue on the control thread between the membership and those who care: a node that joined is
// dialled and expected, one that left gets nothing new, and once nothing of ours runs on it its
// connection is closed and it is forgotten.
#pragma once

#include "baton/handoff/coordinator.h"
#include "baton/handoff/tcp_transport.h"
#include "baton/membership/membership.h"
#include "baton/net/async_clock.h"

#include "apps/baton/options.h"
#include "apps/baton/owner_loop.h"
#include <optional>
#include <set>
#include <string>

namespace baton::app {

// Where a role's nodes come from, for people: "dns:prefill:7001", "etcd http://127.0.0.1:2379".
std::string source_of(const ServeOptions& options, message::NodeRole role);

// From the flags; `serving`: where other nodes reach this one, when it has such an address. Throws
// StartupError naming the flag.
membership::MembershipOptions membership_options(const ServeOptions& options,
                                                 const std::optional<net::HostPort>& serving);

class PeerLoop {
 public:
  // owner_loop: null on engine nodes. All of them must outlive it.
  PeerLoop(asio::any_io_executor control, membership::MembershipOptions options,
           handoff::TcpTransport& transport, handoff::ServingCoordinator& coordinator,
           OwnerLoop* owner_loop, net::AsyncClock& clock);

  // Both until stop(). Thread: control, as all but stats().
  asio::awaitable<void> run_membership() { return membership_.run(); }
  asio::awaitable<void> run();
  void stop();

  // See membership::Membership.
  void begin_drain() { membership_.leave(); }
  [[nodiscard]] bool registered() const { return membership_.registered(); }
  [[nodiscard]] const membership::MembershipStats& stats() const { return membership_.stats(); }

 private:
  void join(const membership::Member& member);
  void leave(const membership::Member& member);
  void let_idle_ones_go();

  net::SystemResolver resolver_;
  membership::Membership membership_;
  handoff::TcpTransport& transport_;
  handoff::ServingCoordinator& coordinator_;
  OwnerLoop* owner_loop_;
  net::AsyncClock& clock_;
  std::set<membership::Member> members_;
  std::set<net::HostPort> leaving_;  // connected while something runs there
  bool stopped_ = false;
};

}  // namespace baton::app
