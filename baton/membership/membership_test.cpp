// The flags' lists, the table of members, and names that are looked up, on virtual time.
#include "baton/membership/membership.h"

#include <gtest/gtest.h>

#include <exception>

namespace baton::membership {
namespace {

using message::NodeRole;
using std::chrono::seconds;

TEST(PeerList, ReadsAddressesAndNames) {
  const auto peers =
      parse_peers(" a:1, dns:p.svc:7, node-7.local:65535 ,[::1]:9,dns:///q:1,dns://r:2,dns:7",
                  "--decode-peers");
  ASSERT_TRUE(peers.has_value()) << peers.error().message;
  EXPECT_EQ(peers->addresses, (std::vector<net::HostPort>{
                                  {"a", 1}, {"node-7.local", 65535}, {"::1", 9}, {"dns", 7}}));
  EXPECT_EQ(peers->names, (std::vector<net::HostPort>{{"p.svc", 7}, {"q", 1}, {"r", 2}}));
  EXPECT_TRUE(parse_peers("", "--decode-peers")->addresses.empty());
  EXPECT_TRUE(parse_peers("  ", "--decode-peers")->addresses.empty());
}

TEST(PeerList, ErrorsNameFlagAndEntry) {
  struct Row {
    const char* text;
    const char* named;
  };
  for (const Row& row :
       {Row{"a:1,", "entry 2"}, Row{",a:1", "entry 1"}, Row{"a:1,b", "b"}, Row{"a:0", "a:0"},
        Row{"a:65536", "a:65536"}, Row{"a:1,c:x", "c:x"}, Row{"a:1,b:2,a:1", "a:1"},
        Row{"a:-1", "a:-1"}, Row{"dns:a:1,dns:///a:1", "dns:///a:1"}, Row{"dns:///a", "dns:///a"},
        Row{"dns://8.8.8.8/a:1", "dns://8.8.8.8/a:1"}, Row{"dns:a:b", "dns:a:b"}}) {
    const auto peers = parse_peers(row.text, "--prefill-peers");
    ASSERT_FALSE(peers.has_value()) << row.text;
    EXPECT_EQ(peers.error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(peers.error().param, "--prefill-peers");
    EXPECT_NE(peers.error().message.find(row.named), std::string::npos) << peers.error().message;
    EXPECT_NE(peers.error().message.find("--prefill-peers"), std::string::npos);
  }
}

Member decode(const std::string& host) { return {NodeRole::kDecode, {host, 7}}; }

// "+a" joined, "-b" left.
std::vector<std::string> words(const std::vector<Change>& changes) {
  std::vector<std::string> out;
  for (const Change& change : changes) {
    out.push_back((change.joined ? "+" : "-") + change.member.address.host);
  }
  return out;
}

using Words = std::vector<std::string>;

TEST(MemberSet, NewOnesSettleAndGoneOnesAreGivenTime) {
  MemberSet set(seconds(5));
  const TimePoint start{};
  const auto at = [&](int second) { return start + seconds(second); };
  set.set("dns", {decode("a"), decode("b")}, at(0), seconds(2));
  EXPECT_EQ(words(set.take_changes(at(0))), (Words{"+a", "+b"})) << "a first answer joins at once";
  EXPECT_TRUE(set.take_changes(at(0)).empty());

  set.set("dns", {decode("b"), decode("c")}, at(10), seconds(2));
  EXPECT_TRUE(set.take_changes(at(11)).empty());
  EXPECT_EQ(words(set.take_changes(at(12))), Words{"+c"});
  set.set("dns", {decode("b"), decode("c")}, at(14), seconds(2));  // asked again: a is still gone
  EXPECT_EQ(words(set.take_changes(at(15))), Words{"-a"});
  EXPECT_EQ(set.count(NodeRole::kDecode), 2U);
  EXPECT_EQ(set.count(NodeRole::kPrefill), 0U);
}

TEST(MemberSet, WhoComesBackInTimeNeverLeft) {
  MemberSet set(seconds(5));
  const TimePoint start{};
  set.set("etcd", {decode("a"), decode("b")}, start, seconds(1));
  set.take_changes(start);
  set.set("etcd", {}, start + seconds(1), seconds(1));  // it has lost everything
  EXPECT_TRUE(set.take_changes(start + seconds(4)).empty());
  set.set("etcd", {decode("a"), decode("b")}, start + seconds(5), seconds(1));
  EXPECT_TRUE(set.take_changes(start + seconds(60)).empty());
  // One that came and went before it had settled leaves no trace.
  set.set("etcd", {decode("a"), decode("b"), decode("c")}, start + seconds(60), seconds(1));
  set.set("etcd", {decode("a"), decode("b")}, start + seconds(60), seconds(1));
  EXPECT_TRUE(set.take_changes(start + seconds(90)).empty());
}

TEST(MemberSet, OneSourceIsEnough) {
  MemberSet set(seconds(5));
  const TimePoint start{};
  set.set("flags", {decode("a")}, start, seconds(0));
  set.set("dns", {decode("a"), decode("b")}, start, seconds(0));
  EXPECT_EQ(words(set.take_changes(start)), (Words{"+a", "+b"}));
  set.set("dns", {}, start, seconds(0));
  EXPECT_EQ(words(set.take_changes(start + seconds(9))), Words{"-b"});
}

class TestResolver final : public net::Resolver {
 public:
  asio::awaitable<Result<std::vector<std::string>>> resolve(std::string host) override {
    ++asked;
    if (hangs) {
      net::AsyncEvent never(co_await asio::this_coro::executor);
      co_await never.wait();
    }
    if (hosts.empty()) {
      co_return fail(ErrorCode::kIo, "cannot look up '" + host + "'");
    }
    co_return hosts;
  }
  std::vector<std::string> hosts;
  bool hangs = false;
  int asked = 0;
};

class Names : public ::testing::Test {
 protected:
  void start(bool settle = true) {
    MembershipOptions options;
    options.settle = settle;
    options.peers[NodeRole::kDecode] = *parse_peers("fixed:7,dns:d.svc:7", "x");
    members_ = std::make_unique<Membership>(context_.get_executor(), options, clock_, resolver_);
    asio::co_spawn(context_, members_->run(),
                   [this](const std::exception_ptr& failure) { ended_ = failure == nullptr; });
  }
  void TearDown() override {
    members_->stop();
    context_.restart();
    context_.poll();
    EXPECT_TRUE(ended_);
  }
  Words after(int passed_s) {
    Words out;
    for (int i = 0; i < passed_s * 10; ++i) {
      clock_.run_for(context_, std::chrono::milliseconds(100));
      for (const std::string& word : words(members_->take_changes())) {
        out.push_back(word);
      }
    }
    return out;
  }

  asio::io_context context_;
  net::VirtualClock clock_;
  TestResolver resolver_;
  std::unique_ptr<Membership> members_;
  bool ended_ = false;
};

TEST_F(Names, AreLookedUpAgainAndAgain) {
  resolver_.hosts = {"10.0.0.1", "10.0.0.2"};
  start();
  EXPECT_EQ(after(1), (Words{"+10.0.0.1", "+10.0.0.2", "+fixed"}));
  resolver_.hosts = {"10.0.0.2", "10.0.0.3"};
  EXPECT_EQ(after(8), Words{});  // seen after 5 s: neither settled nor given up
  EXPECT_EQ(after(3), (Words{"-10.0.0.1", "+10.0.0.3"}));
  EXPECT_EQ(members_->stats().decode_nodes, 3U);
  EXPECT_EQ(members_->stats().dns_failures, 0U);
}

TEST_F(Names, AFailedLookUpKeepsTheLastAnswer) {
  start();
  EXPECT_EQ(after(1), Words{"+fixed"});
  resolver_.hosts = {"10.0.0.1"};
  EXPECT_EQ(after(5), Words{"+10.0.0.1"});  // the first answer
  resolver_.hosts = {};
  EXPECT_EQ(after(60), Words{});
  EXPECT_EQ(members_->stats().dns_failures, 13U);
  resolver_.hosts = {"10.0.0.1"};
  EXPECT_EQ(after(60), Words{});
}

TEST_F(Names, PrefillNodesDialAtOnce) {
  resolver_.hosts = {"10.0.0.1"};
  start(false);
  EXPECT_EQ(after(1), (Words{"+10.0.0.1", "+fixed"}));
  resolver_.hosts = {"10.0.0.1", "10.0.0.2"};
  EXPECT_EQ(after(5), Words{"+10.0.0.2"});
}

TEST_F(Names, ALookUpThatHangsHoldsNothingUp) {
  resolver_.hangs = true;
  start();
  EXPECT_EQ(after(60), Words{"+fixed"});
  EXPECT_EQ(resolver_.asked, 1);
}  // and the end does not wait for it, either

}  // namespace
}  // namespace baton::membership
