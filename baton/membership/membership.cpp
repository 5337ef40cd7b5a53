// Addresses and names; etcd's part is in membership_etcd.cpp.
#include "baton/membership/membership.h"

#include "baton/base/log.h"

#include <utility>

namespace baton::membership {

Membership::Membership(asio::any_io_executor executor, MembershipOptions options,
                       net::AsyncClock& clock, net::Resolver& resolver)
    : options_(std::move(options)),
      clock_(clock),
      resolver_(resolver),
      stats_(std::make_unique<MembershipStats>()),
      members_(options_.grace),
      watch_outage_("the last known members stay", options_.etcd.retry_first,
                    options_.etcd.retry_most),
      tasks_(executor),
      stopped_(executor),
      leave_now_(executor) {
  std::set<Member> fixed;
  for (const auto& [role, list] : options_.peers) {
    for (const net::HostPort& address : list.addresses) {
      fixed.insert({role, address});
    }
  }
  members_.set("flags", std::move(fixed), clock_.now(), Duration::zero());
}

asio::awaitable<void> Membership::run() {
  for (const auto& [role, list] : options_.peers) {
    for (const net::HostPort& name : list.names) {
      tasks_.spawn(follow_name(role, name));
    }
  }
  if (!options_.etcd.endpoints.empty() && !options_.peers.empty()) {
    tasks_.spawn(follow_etcd());
  }
  if (!options_.etcd.endpoints.empty() && options_.self) {
    registered_ = true;  // or about to be
    tasks_.spawn(keep_registered());
  }
  co_await stopped_.wait();
  tasks_.stop();
  co_await tasks_.wait_empty();
}

void Membership::stop() {
  stopping_ = true;
  stopped_.set();
}

std::vector<Change> Membership::take_changes() {
  std::vector<Change> changes = members_.take_changes(clock_.now());
  for (const Change& change : changes) {
    log::info("{} node {} {} the cluster", message::role_name(change.member.role),
              net::to_string(change.member.address), change.joined ? "belongs to" : "has left");
  }
  stats_->prefill_nodes = members_.count(message::NodeRole::kPrefill);
  stats_->decode_nodes = members_.count(message::NodeRole::kDecode);
  return changes;
}

asio::awaitable<void> Membership::follow_name(message::NodeRole role, net::HostPort name) {
  const std::string source = "dns:" + net::to_string(name);
  // Others ask at other moments: who uses a new node at once may meet one that has not heard of it.
  const Duration settle =
      options_.settle ? options_.dns_interval + std::chrono::seconds(1) : Duration::zero();
  std::string said;
  while (true) {
    auto found = co_await resolver_.resolve(name.host);
    if (found) {
      std::set<Member> members;
      for (std::string& host : *found) {
        members.insert({role, {std::move(host), name.port}});
      }
      members_.set(source, std::move(members), clock_.now(), settle);
      if (!said.empty()) {
        log::info("{} can be looked up again", source);
        said.clear();
      }
    } else {
      ++stats_->dns_failures;
      if (said != found.error().message) {
        said = found.error().message;
        log::warn("{}: its last addresses stay", said);
      }
    }
    co_await clock_.sleep_for(options_.dns_interval);
  }
}

}  // namespace baton::membership
