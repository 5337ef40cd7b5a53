#include "apps/baton/peer_loop.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "apps/baton/addresses.h"
#include <algorithm>
#include <chrono>
#include <utility>

namespace baton::app {
namespace {

using membership::Member;
using message::NodeRole;

constexpr Duration kTick = std::chrono::milliseconds(100);

membership::EtcdOptions etcd_options(const ServeOptions& options) {
  membership::EtcdOptions etcd;
  etcd.prefix = options.etcd_prefix;
  while (etcd.prefix.ends_with('/')) {
    etcd.prefix.pop_back();
  }
  etcd.ttl_s = options.etcd_ttl_s;
  for (const std::string& url : options.etcd_endpoints) {
    auto endpoint = http::parse_http_url(url, "--etcd-endpoints");
    if (!endpoint) {
      throw StartupError(endpoint.error());
    }
    etcd.endpoints.push_back(*std::move(endpoint));
  }
  return etcd;
}

}  // namespace

std::string source_of(const ServeOptions& options, NodeRole role) {
  std::string source = role == NodeRole::kPrefill ? options.prefill_peers : options.decode_peers;
  if (!options.etcd_endpoints.empty()) {
    source += fmt::format("{}etcd {}", source.empty() ? "" : ", ",
                          fmt::join(options.etcd_endpoints, ","));
  }
  return source;
}

membership::MembershipOptions membership_options(const ServeOptions& options,
                                                 const std::optional<net::HostPort>& serving) {
  membership::MembershipOptions result;
  if (options.role == NodeRole::kRouter) {
    result.peers[NodeRole::kPrefill] = prefill_peers(options);
  }
  if (options.role == NodeRole::kRouter || options.role == NodeRole::kPrefill) {
    result.peers[NodeRole::kDecode] = decode_peers(options);
  }
  result.dns_interval = std::chrono::milliseconds(options.dns_interval_ms);
  const bool any_name = std::any_of(result.peers.begin(), result.peers.end(),
                                    [](const auto& list) { return !list.second.names.empty(); });
  if (any_name) {
    result.grace += result.dns_interval;  // one answer without it is not enough
  }
  result.etcd = etcd_options(options);
  if (options.role == NodeRole::kPrefill) {
    // Routers pair it with each decode node that they know, so it must know that one earlier and
    // longer than they do.
    result.settle = false;
    result.grace *= 2;
  }
  if (serving && options.role != NodeRole::kRouter) {
    result.self =
        membership::Registration{options.node_id, {options.role, advertised(options, *serving)}};
  }
  return result;
}

PeerLoop::PeerLoop(asio::any_io_executor control, membership::MembershipOptions options,
                   handoff::TcpTransport& transport, handoff::ServingCoordinator& coordinator,
                   OwnerLoop* owner_loop, net::AsyncClock& clock)
    : membership_(std::move(control), std::move(options), clock, resolver_),
      transport_(transport),
      coordinator_(coordinator),
      owner_loop_(owner_loop),
      clock_(clock) {}

asio::awaitable<void> PeerLoop::run() {
  while (!stopped_) {
    for (const membership::Change& change : membership_.take_changes()) {
      if (change.joined) {
        join(change.member);
      } else {
        leave(change.member);
      }
    }
    let_idle_ones_go();
    co_await clock_.sleep_for(kTick);
  }
}

void PeerLoop::stop() {
  stopped_ = true;
  membership_.stop();
}

void PeerLoop::join(const Member& member) {
  members_.insert(member);
  leaving_.erase(member.address);
  transport_.add_peer(member.address);
  if (owner_loop_ != nullptr) {
    owner_loop_->expect_peer(member.role, net::to_string(member.address));
  }
}

void PeerLoop::leave(const Member& member) {
  members_.erase(member);
  const bool is_another = std::any_of(members_.begin(), members_.end(), [&](const Member& other) {
    return other.address == member.address;
  });
  if (is_another) {
    return;  // it has come back at that address in another role
  }
  leaving_.insert(member.address);
  if (owner_loop_ != nullptr) {
    owner_loop_->retire_peer(net::to_string(member.address));
  }
}

void PeerLoop::let_idle_ones_go() {
  std::erase_if(leaving_, [&](const net::HostPort& address) {
    const auto id = transport_.peer_at(address);
    if (id && coordinator_.busy_with(*id)) {
      return false;
    }
    transport_.remove_peer(address);  // the node table hears of it by an event
    return true;
  });
}

}  // namespace baton::app
