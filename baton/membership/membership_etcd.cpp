// Membership by etcd: following who is there, and being there.
#include "baton/base/log.h"
#include "baton/membership/etcd_messages.h"
#include "baton/membership/membership.h"
#include "baton/membership/outage.h"

#include <algorithm>
#include <utility>

namespace baton::membership {

namespace {

// A node is used once others have had time to hear of it, too; a watch takes a moment.
constexpr Duration kEtcdSettle = std::chrono::seconds(1);

}  // namespace

// ---- who is there
// ------------------------------------------------------------------------------

// List, then watch from the revision of the list on; whatever ends the watch (an error, silence, a
// revision that is compacted away), begin again with the list. Nothing can be missed that way.
asio::awaitable<void> Membership::follow_etcd() {
  EtcdClient client(options_.etcd.endpoints);
  while (true) {
    auto followed = co_await list_and_watch(&client);
    if (stopping_) {
      co_return;
    }
    Duration pause = options_.etcd.retry_first;
    if (!followed) {
      ++stats_->etcd_failures;
      pause = watch_outage_.failed(followed.error());
    }
    co_await clock_.sleep_for(pause);
  }
}

asio::awaitable<Status> Membership::list_and_watch(EtcdClient* client) {
  const std::string prefix = etcd::nodes_prefix(options_.etcd.prefix);
  std::string path = "/v3/kv/range";
  std::string body = etcd::range_body(prefix);
  auto page = co_await client->call(std::move(path), std::move(body));
  if (!page) {
    co_return fail(std::move(page).error());
  }
  auto snapshot = etcd::parse_range(*page);
  if (!snapshot) {
    co_return fail(std::move(snapshot).error());
  }
  etcd_nodes_.clear();
  for (const etcd::KeyValue& pair : snapshot->pairs) {
    take_pair(pair);
  }
  publish_etcd();
  path = "/v3/watch";
  body = etcd::watch_body(prefix, snapshot->revision + 1);
  EtcdClient::OnLine on_line = [this](const std::string& line) { return take_watch_line(line); };
  co_return co_await client->stream(std::move(path), std::move(body), options_.etcd.watch_silence,
                                    std::move(on_line));
}

bool Membership::take_watch_line(const std::string& line) {
  const auto answer = etcd::parse_watch(line);
  if (!answer || answer->ended) {
    log::info("{}: the nodes are listed again",
              answer ? "etcd has ended the watch" : answer.error().message);
    return false;
  }
  watch_outage_.over();
  for (const etcd::Event& event : answer->events) {
    if (event.deleted) {
      etcd_nodes_.erase(event.pair.key);
    } else {
      take_pair(event.pair);
    }
  }
  publish_etcd();
  return true;
}

void Membership::take_pair(const etcd::KeyValue& pair) {
  auto member = etcd::parse_node(pair);
  if (!member) {
    log::warn("{}", member.error().message);
    etcd_nodes_.erase(pair.key);
  } else if (etcd_nodes_.size() >= kMaxPeers && !etcd_nodes_.contains(pair.key)) {
    log::warn("etcd names more than {} nodes: {} is left out", kMaxPeers, pair.key);
  } else {
    etcd_nodes_[pair.key] = *std::move(member);
  }
}

void Membership::publish_etcd() {
  std::set<Member> members;
  for (const auto& [key, member] : etcd_nodes_) {
    if (watches(member.role)) {
      members.insert(member);
    }
  }
  members_.set("etcd", std::move(members), clock_.now(),
               options_.settle ? kEtcdSettle : Duration::zero());
}

// ---- being there
// -------------------------------------------------------------------------------

asio::awaitable<void> Membership::keep_registered() {
  EtcdClient client(options_.etcd.endpoints);
  Outage outage("this node is not in etcd", options_.etcd.retry_first, options_.etcd.retry_most);
  std::string lease;
  while (!leaving_) {
    auto granted = co_await sign_up(&client);
    if (stopping_) {
      co_return;
    }
    if (!granted) {
      ++stats_->etcd_failures;
      co_await leave_now_.wait_for(outage.failed(granted.error()));
      continue;
    }
    outage.over();
    lease = *granted;
    co_await keep_alive(&client, lease);
  }
  if (!lease.empty()) {
    std::string path = "/v3/lease/revoke";
    std::string body = etcd::lease_body(lease);
    auto revoked = co_await client.call(std::move(path), std::move(body));
    if (revoked) {
      log::info("this node has left etcd");
    } else {
      log::warn("{}: this node stays in etcd until its lease ends", revoked.error().message);
    }
  }
  registered_ = false;
}

// Returns the lease under which the node's key now is.
asio::awaitable<Result<std::string>> Membership::sign_up(EtcdClient* client) {
  std::string path = "/v3/lease/grant";
  std::string body = etcd::grant_body(options_.etcd.ttl_s);
  auto answer = co_await client->call(std::move(path), std::move(body));
  if (!answer) {
    co_return fail(std::move(answer).error());
  }
  auto lease = etcd::parse_grant(*answer);
  if (!lease) {
    co_return fail(std::move(lease).error());
  }
  const Registration& self = *options_.self;
  const etcd::KeyValue pair = etcd::node_pair(options_.etcd.prefix, self.id, self.member);
  path = "/v3/kv/put";
  body = etcd::put_body(pair, *lease);
  auto put = co_await client->call(std::move(path), std::move(body));
  if (!put) {
    co_return fail(std::move(put).error());
  }
  log::info("this node is in etcd as {}", pair.key);
  co_return *std::move(lease);
}

// Until the lease is lost or this node leaves. While etcd does not answer the lease may live on
// there: whether it does, only etcd can say.
asio::awaitable<void> Membership::keep_alive(EtcdClient* client, std::string lease) {
  const Duration interval = Duration(std::chrono::seconds(options_.etcd.ttl_s)) / 3;
  Outage outage("this node's lease is not renewed", options_.etcd.retry_first,
                options_.etcd.retry_most);
  Duration pause = interval;
  while (!leaving_) {
    co_await leave_now_.wait_for(pause);
    if (leaving_) {
      co_return;
    }
    std::string path = "/v3/lease/keepalive";
    std::string body = etcd::lease_body(lease);
    auto answer = co_await client->call(std::move(path), std::move(body));
    if (stopping_) {
      co_return;
    }
    const auto left = answer ? etcd::parse_keep_alive(*answer) : fail(std::move(answer).error());
    if (!left) {
      ++stats_->etcd_failures;
      pause = std::min(outage.failed(left.error()), interval);
    } else if (*left <= 0) {
      log::warn("etcd has ended this node's lease: it signs up again");
      co_return;
    } else {
      outage.over();
      pause = interval;
    }
  }
}

void Membership::leave() {
  leaving_ = true;
  leave_now_.set();
}

}  // namespace baton::membership
