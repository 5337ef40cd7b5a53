// Following etcd and being in it, against a gateway that is written here and does what it is told;
// tests/e2e/test_membership.py has the real one.
#include "baton/http/routes.h"
#include "baton/http/server.h"
#include "baton/membership/etcd_messages.h"
#include "baton/membership/membership.h"
#include "baton/net/event_loop.h"

#include <boost/asio/use_future.hpp>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/on_loop.h"
#include <future>
#include <thread>

namespace baton::membership {
namespace {

using http::HttpRequest;
using http::HttpResponse;
using http::ResponseWriter;
using message::NodeRole;
using std::chrono::milliseconds;
using Json = nlohmann::json;

// Keys, leases and watches, as far as baton uses them. Everything on its loop.
class FakeEtcd {
 public:
  using Lines = net::AsyncQueue<std::string>;

  FakeEtcd(const asio::any_io_executor& executor, std::uint16_t port) {
    http::Routes routes;
    for (const char* path : {"/v3/kv/range", "/v3/kv/put", "/v3/lease/grant", "/v3/lease/keepalive",
                             "/v3/lease/revoke", "/v3/watch"}) {
      routes.add("POST", path, [this](HttpRequest request, ResponseWriter& writer) {
        return answer(std::move(request), writer);
      });
    }
    http::ServerOptions options;
    options.port = port;
    server_ = std::make_unique<http::HttpServer>(executor, options, routes.handler(nullptr));
    const Status listening = server_->listen();
    EXPECT_TRUE(listening.has_value()) << listening.error().message;
  }
  void stop() {
    for (const auto& watch : watches_) {
      watch->close_and_clear();
    }
    server_->stop();
  }
  [[nodiscard]] std::uint16_t port() const { return server_->port(); }

  void put(const std::string& id, const Member& member) {
    const etcd::KeyValue pair = etcd::node_pair("/t", id, member);
    ++revision;
    keys[pair.key] = {pair.value, ""};
    tell({{"kv", {{"key", etcd::base64(pair.key)}, {"value", etcd::base64(pair.value)}}}});
  }
  void remove(const std::string& id) {
    const std::string key = etcd::nodes_prefix("/t") + id;
    ++revision;
    keys.erase(key);
    tell({{"type", "DELETE"}, {"kv", {{"key", etcd::base64(key)}}}});
  }
  // The watches end as etcd ends those that ask for what it has compacted.
  void compact() {
    send_all({{"result",
               {{"header", header()},
                {"canceled", true},
                {"compact_revision", std::to_string(revision)}}}});
  }

  std::map<std::string, std::pair<std::string, std::string>> keys;  // value, lease
  std::map<std::string, std::vector<Json>> asked;                   // by path
  std::set<std::string> leases;
  std::int64_t revision = 5;
  int status = 200;  // of every answer

 private:
  [[nodiscard]] Json header() const { return {{"revision", std::to_string(revision)}}; }
  void tell(const Json& event) {
    send_all({{"result", {{"header", header()}, {"events", Json::array({event})}}}});
  }
  void send_all(const Json& line) {
    for (const auto& watch : watches_) {
      watch->push_unbounded(line.dump() + "\n");
    }
  }

  asio::awaitable<void> answer(HttpRequest request, ResponseWriter& writer) {
    Json body = Json::parse(request.body);
    asked[request.path].push_back(body);
    HttpResponse response;
    if (status != 200) {
      response.status = status;
      response.body = R"({"error":"etcdserver: told to fail"})";
    } else if (request.path == "/v3/watch") {
      co_await watch(writer);
      co_return;
    } else {
      response.body = page(request.path, body).dump();
    }
    (void)co_await writer.send(std::move(response));
  }

  asio::awaitable<void> watch(ResponseWriter& writer) {
    auto lines = std::make_shared<Lines>(writer.executor(), 1000);
    watches_.push_back(lines);
    const Json created = {{"result", {{"header", header()}, {"created", true}}}};
    lines->push_unbounded(created.dump() + "\n");
    writer.on_client_gone([lines] { lines->close_and_clear(); });
    HttpResponse head;
    (void)co_await writer.start_stream(std::move(head));
    while (auto line = co_await lines->pop()) {
      (void)co_await writer.write(*std::move(line));
    }
    std::erase(watches_, lines);
  }

  Json page(const std::string& path, const Json& body) {
    Json out = {{"header", header()}};
    if (path == "/v3/kv/range") {
      for (const auto& [key, value] : keys) {
        out["kvs"].push_back({{"key", etcd::base64(key)}, {"value", etcd::base64(value.first)}});
      }
    } else if (path == "/v3/lease/grant") {
      const std::string id = std::to_string(100 + asked[path].size());
      leases.insert(id);
      out["ID"] = id;
    } else if (path == "/v3/kv/put") {
      keys[*etcd::from_base64(body["key"].get<std::string>())] = {
          *etcd::from_base64(body["value"].get<std::string>()), body["lease"]};
    } else if (path == "/v3/lease/keepalive") {
      out = {{"result", {{"header", header()}, {"ID", body["ID"]}}}};
      if (leases.contains(body["ID"].get<std::string>())) {
        out["result"]["TTL"] = "10";
      }
    } else if (path == "/v3/lease/revoke") {
      const std::string id = body["ID"].get<std::string>();
      leases.erase(id);
      std::erase_if(keys, [&](const auto& entry) { return entry.second.second == id; });
    }
    return out;
  }

  std::vector<std::shared_ptr<Lines>> watches_;
  std::unique_ptr<http::HttpServer> server_;
};

class NoNames final : public net::Resolver {
 public:
  asio::awaitable<Result<std::vector<std::string>>> resolve(std::string host) override {
    co_return fail(ErrorCode::kIo, host);
  }
};

class Etcd : public ::testing::Test {
 protected:
  void SetUp() override { serve(0); }
  void TearDown() override {
    if (members_) {
      on_loop([&] { members_->stop(); });
      ran_.get();
    }
    on_loop([&] {
      for (const auto& each : gateways_) {
        each->stop();
      }
    });
    loop_.stop();
  }

  template <class Function>
  std::invoke_result_t<Function> on_loop(Function function) {
    return testing::on_loop(loop_, std::move(function));
  }
  // Polls on the loop; false after 20 s.
  template <class Condition>
  bool comes_true(Condition condition) {
    for (int i = 0; i < 10'000; ++i) {
      if (on_loop(condition)) {
        return true;
      }
      std::this_thread::sleep_for(milliseconds(2));
    }
    return false;
  }

  void serve(std::uint16_t port) {
    gateways_.push_back(std::make_unique<FakeEtcd>(loop_.executor(), port));
    etcd_ = gateways_.back().get();
  }
  http::HttpTarget target(std::uint16_t port) {
    return *http::parse_http_url("http://127.0.0.1:" + std::to_string(port), "x");
  }
  void start(std::optional<Registration> self = {}) {
    options_.etcd.prefix = "/t";
    if (options_.etcd.endpoints.empty()) {
      options_.etcd.endpoints = {target(etcd_->port())};
    }
    options_.etcd.retry_first = milliseconds(2);
    options_.etcd.retry_most = milliseconds(20);
    options_.etcd.ttl_s = 2;
    options_.grace = milliseconds(100);
    options_.settle = false;
    options_.self = std::move(self);
    if (!options_.self) {
      options_.peers[NodeRole::kDecode] = {};
    }
    members_ = std::make_unique<Membership>(loop_.executor(), options_, clock_, resolver_);
    ran_ = asio::co_spawn(loop_.executor(), members_->run(), asio::use_future);
  }
  // Hosts of all that have joined and not left.
  const std::set<std::string>& here() {
    for (const Change& change : members_->take_changes()) {
      if (change.joined) {
        here_.insert(change.member.address.host);
      } else {
        here_.erase(change.member.address.host);
      }
    }
    return here_;
  }
  bool becomes(const std::set<std::string>& hosts) {
    return comes_true([&] { return here() == hosts; });
  }
  static Member decode(const std::string& host) { return {NodeRole::kDecode, {host, 7}}; }

  net::EventLoop loop_{"test"};
  net::SystemAsyncClock clock_;
  NoNames resolver_;
  MembershipOptions options_;
  std::vector<std::unique_ptr<FakeEtcd>> gateways_;
  FakeEtcd* etcd_ = nullptr;  // the last one
  std::unique_ptr<Membership> members_;
  std::future<void> ran_;
  std::set<std::string> here_;
};

TEST_F(Etcd, ListsAndWatchesFromThere) {
  on_loop([&] {
    etcd_->put("d1", decode("a"));
    etcd_->put("p1", {NodeRole::kPrefill, {"p", 7}});  // not for a node that dials decode nodes
    etcd_->keys["/t/nodes/odd"] = {"{}", ""};
  });
  start();
  EXPECT_TRUE(becomes({"a"}));
  ASSERT_TRUE(comes_true([&] { return etcd_->asked["/v3/watch"].size() == 1; }));
  EXPECT_EQ(
      on_loop([&] { return etcd_->asked["/v3/watch"][0]["create_request"]["start_revision"]; }),
      "8");
  on_loop([&] { etcd_->put("d2", decode("b")); });
  EXPECT_TRUE(becomes({"a", "b"}));
  on_loop([&] { etcd_->remove("d1"); });
  EXPECT_TRUE(becomes({"b"}));
  on_loop([&] { etcd_->put("d2", decode("c")); });  // the same node at another address
  EXPECT_TRUE(becomes({"c"}));
  EXPECT_EQ(on_loop([&] { return etcd_->asked["/v3/kv/range"].size(); }), 1U);
}

TEST_F(Etcd, ACompactedWatchIsAListAgain) {
  start();
  ASSERT_TRUE(comes_true([&] { return etcd_->asked["/v3/watch"].size() == 1; }));
  on_loop([&] {
    etcd_->keys[etcd::node_pair("/t", "d1", decode("a")).key] = {
        etcd::node_pair("/t", "d1", decode("a")).value, ""};  // an event that is never told
    etcd_->compact();
  });
  EXPECT_TRUE(becomes({"a"}));
  EXPECT_EQ(on_loop([&] { return members_->stats().etcd_failures.load(); }), 0U);
}

TEST_F(Etcd, ASilentWatchIsBegunAnew) {
  options_.etcd.watch_silence = milliseconds(200);
  start();
  EXPECT_TRUE(comes_true([&] { return etcd_->asked["/v3/watch"].size() >= 3; }));
  EXPECT_EQ(on_loop([&] { return members_->stats().etcd_failures.load(); }), 0U);
}

TEST_F(Etcd, AnOutageKeepsTheMembers) {
  on_loop([&] { etcd_->put("d1", decode("a")); });
  start();
  EXPECT_TRUE(becomes({"a"}));
  const std::uint16_t port = etcd_->port();
  on_loop([&] { etcd_->stop(); });
  ASSERT_TRUE(comes_true([&] { return members_->stats().etcd_failures >= 5; }));
  std::this_thread::sleep_for(2 * options_.grace);
  EXPECT_TRUE(becomes({"a"}));
  serve(port);  // with other data
  on_loop([&] { etcd_->put("d2", decode("b")); });
  EXPECT_TRUE(becomes({"b"}));
}

TEST_F(Etcd, AnErrorIsAnOutageToo) {
  on_loop([&] { etcd_->put("d1", decode("a")); });
  start();
  EXPECT_TRUE(becomes({"a"}));
  on_loop([&] {
    etcd_->status = 503;
    etcd_->compact();
  });
  ASSERT_TRUE(comes_true([&] { return members_->stats().etcd_failures >= 3; }));
  EXPECT_TRUE(becomes({"a"}));
  on_loop([&] {
    etcd_->status = 200;
    etcd_->put("d2", decode("b"));
  });
  EXPECT_TRUE(becomes({"a", "b"}));
}

TEST_F(Etcd, TheNextEndpointIsAsked) {
  const std::uint16_t dead = etcd_->port();
  on_loop([&] { etcd_->stop(); });
  serve(0);
  options_.etcd.endpoints = {target(dead), target(etcd_->port())};
  on_loop([&] { etcd_->put("d1", decode("a")); });
  start();
  EXPECT_TRUE(becomes({"a"}));
}

TEST_F(Etcd, ANodeIsThereUntilItLeaves) {
  start(Registration{"p1", {NodeRole::kPrefill, {"h", 9}}});
  const std::string key = "/t/nodes/p1";
  ASSERT_TRUE(comes_true([&] { return etcd_->keys.contains(key); }));
  EXPECT_EQ(*etcd::parse_node({key, on_loop([&] { return etcd_->keys[key].first; })}),
            (Member{NodeRole::kPrefill, {"h", 9}}));
  ASSERT_TRUE(comes_true([&] { return !etcd_->asked["/v3/lease/keepalive"].empty(); }));
  EXPECT_TRUE(on_loop([&] { return members_->registered(); }));
  on_loop([&] { members_->leave(); });
  EXPECT_TRUE(comes_true([&] { return !members_->registered(); }));
  EXPECT_TRUE(on_loop([&] { return etcd_->keys.empty() && etcd_->leases.empty(); }));
  EXPECT_EQ(on_loop([&] { return etcd_->asked["/v3/lease/grant"].size(); }), 1U);
}

TEST_F(Etcd, ALostLeaseIsTakenAnew) {
  start(Registration{"d1", decode("h")});
  ASSERT_TRUE(comes_true([&] { return etcd_->keys.contains("/t/nodes/d1"); }));
  on_loop([&] {
    etcd_->leases.clear();
    etcd_->keys.clear();
  });
  EXPECT_TRUE(comes_true([&] { return etcd_->keys.contains("/t/nodes/d1"); }));
  EXPECT_EQ(on_loop([&] { return etcd_->keys["/t/nodes/d1"].second; }), "102") << "the new lease";
}

TEST_F(Etcd, ANodeSignsUpWhenEtcdComes) {
  const std::uint16_t port = etcd_->port();
  options_.etcd.endpoints = {target(port)};
  on_loop([&] { etcd_->stop(); });
  start(Registration{"d1", decode("h")});
  ASSERT_TRUE(comes_true([&] { return members_->stats().etcd_failures >= 2; }));
  serve(port);
  EXPECT_TRUE(comes_true([&] { return etcd_->keys.contains("/t/nodes/d1"); }));
}

TEST_F(Etcd, LeavingDoesNotWaitForADeadEtcd) {
  on_loop([&] { etcd_->stop(); });
  start(Registration{"d1", decode("h")});
  ASSERT_TRUE(comes_true([&] { return members_->stats().etcd_failures >= 1; }));
  on_loop([&] { members_->leave(); });
  EXPECT_TRUE(comes_true([&] { return !members_->registered(); }));
}

}  // namespace
}  // namespace baton::membership
