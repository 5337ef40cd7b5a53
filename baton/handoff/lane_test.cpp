// When KV goes over a fabric and when it does not: what the handshake agrees on, and what becomes
// of a lane that cannot be opened, is answered with nonsense, or gets stuck.
#include "baton/handoff/bulk_connection.h"
#include "baton/handoff/tcp_test_util.h"

#include <boost/asio/use_future.hpp>

#include "tests/support/certificates.h"
#include "tests/support/fabrics.h"

namespace baton::handoff {
namespace {

using message::NodeRole;
using test::key_of;
using test::pattern;
using test::RawPeer;
using test::TestNode;

// A fabric that cannot fetch more than so many bytes at once: none, and nothing gets through; some,
// and whatever is said first does.
class FrailLane final : public net::Lane {
 public:
  FrailLane(std::unique_ptr<net::Lane> inner, std::uint64_t most)
      : inner_(std::move(inner)), most_(most) {}
  [[nodiscard]] const std::string& address() const override { return inner_->address(); }
  Status connect(const std::string& address) override { return inner_->connect(address); }
  asio::awaitable<Status> send(std::vector<std::byte> header,
                               std::vector<std::span<const std::byte>> payload,
                               Duration deadline) override {
    return inner_->send(std::move(header), std::move(payload), deadline);
  }
  asio::awaitable<Result<net::LaneMessage>> next() override { return inner_->next(); }
  asio::awaitable<Status> take(std::vector<std::span<std::byte>> into, Duration deadline) override {
    std::uint64_t bytes = 0;
    for (const auto& part : into) {
      bytes += part.size();
    }
    if (bytes > most_) {
      inner_->close();
      co_return fail(ErrorCode::kPeerLost, "this way fetches nothing so large");
    }
    co_return co_await inner_->take(std::move(into), deadline);
  }
  void drop() override { inner_->drop(); }
  void close() override { inner_->close(); }

 private:
  std::unique_ptr<net::Lane> inner_;
  std::uint64_t most_;
};

class FrailFabric final : public net::Fabric {
 public:
  explicit FrailFabric(std::uint64_t most) : most_(most) {}
  [[nodiscard]] const std::string& name() const override { return inner_->name(); }
  Result<std::unique_ptr<net::Lane>> open_lane(const asio::any_io_executor& executor) override {
    auto lane = inner_->open_lane(executor);
    if (!lane) {
      return lane;
    }
    return std::make_unique<FrailLane>(*std::move(lane), most_);
  }

 private:
  std::shared_ptr<net::Fabric> inner_ = testing::fabric_of("ucx_tcp");
  std::uint64_t most_;
};

class LaneTest : public test::TcpFixture {
 protected:
  void SetUp() override {
    TcpFixture::SetUp();
    if (testing::fabric_kinds().empty()) {
      GTEST_SKIP() << "this build has no UCX";
    }
    options_.handshake_deadline = std::chrono::seconds(5);
  }
  std::unique_ptr<TestNode> node_with(const std::string& fabric, const std::string& id,
                                      NodeRole role, std::vector<net::HostPort> peers = {}) {
    options_.fabric = testing::fabric_of(fabric);
    return node(test::hello(id, role), std::move(peers));
  }
  static const TransportStats& stats(TestNode* node) {
    return static_cast<TcpTransport*>(node->transport.get())->stats();
  }
  // One frame from p1 to d1.
  Result<BulkSent> ship(TestNode* p, TestNode* d, std::uint64_t number) {
    const auto data = pattern(300'000, static_cast<std::uint32_t>(number));
    d->sink.expect(key_of(number), data.size());
    auto sent = p->blocks("d1", key_of(number), number, data);
    if (sent) {
      EXPECT_TRUE(d->take<BlocksReceived>().status.has_value());
      EXPECT_TRUE(d->sink.bytes(key_of(number)) == data);
    }
    return sent;
  }
  void expect_shipped_by(const std::string& p_fabric, const std::string& d_fabric, bool lane) {
    SCOPED_TRACE(p_fabric + " to " + d_fabric);
    auto d = node_with(d_fabric, "d1", NodeRole::kDecode);
    auto p = node_with(p_fabric, "p1", NodeRole::kPrefill, {address(d.get())});
    p->take<PeerUp>();
    d->take<PeerUp>();
    ASSERT_TRUE(ship(p.get(), d.get(), 1).has_value());
    EXPECT_EQ(stats(p.get()).fabric.bytes_sent, lane ? 300'000U : 0U);
    EXPECT_EQ(stats(p.get()).tcp.bytes_sent, lane ? 0U : 300'000U);
    EXPECT_EQ(stats(d.get()).fabric.bytes_received, lane ? 300'000U : 0U);
    EXPECT_EQ(stats(d.get()).tcp.bytes_received, lane ? 0U : 300'000U);
  }
  template <class T>
  T run(asio::awaitable<T> work) {
    return asio::co_spawn(loop_.executor(), std::move(work), asio::use_future).get();
  }
};

TEST_F(LaneTest, BothMustHaveIt) {
  expect_shipped_by("ucx_tcp", "ucx_tcp", true);
  expect_shipped_by("ucx_shm", "ucx_shm", true);
  expect_shipped_by("ucx_tcp", "", false);
  expect_shipped_by("", "ucx_tcp", false);
}

TEST_F(LaneTest, WithoutAWayInCommonItIsTcp) {
  auto d = node_with("ucx_shm", "d1", NodeRole::kDecode);
  auto p = node_with("ucx_tcp", "p1", NodeRole::kPrefill, {address(d.get())});
  p->take<PeerUp>();
  d->take<PeerUp>();
  EXPECT_EQ(stats(p.get()).fabric.peers, 1);
  for (std::uint64_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(ship(p.get(), d.get(), i).has_value());
  }
  EXPECT_EQ(stats(p.get()).fabric.bytes_sent, 0U);
  EXPECT_EQ(stats(p.get()).tcp.bytes_sent, 900'000U);
  EXPECT_EQ(stats(p.get()).lanes_failed, 1U);
  EXPECT_EQ(p->count<PeerDown>() + d->count<PeerDown>(), 0U);
}

TEST_F(LaneTest, PeersAreCountedByTheirWay) {
  auto d = node_with("ucx_tcp", "d1", NodeRole::kDecode);
  auto p = node_with("", "p1", NodeRole::kPrefill, {address(d.get())});
  d->take<PeerUp>();
  EXPECT_EQ(stats(d.get()).tcp.peers, 1);
  auto other = node_with("ucx_tcp", "p2", NodeRole::kPrefill, {address(d.get())});
  d->take<PeerUp>();
  EXPECT_EQ(stats(d.get()).fabric.peers, 1);
  other->stop();
  d->take<PeerDown>();
  EXPECT_EQ(stats(d.get()).fabric.peers, 0);
  EXPECT_EQ(stats(d.get()).tcp.peers, 1);
}

TEST_F(LaneTest, NotUnderTls) {
  testing::TestAuthority authority;
  TcpTransportOptions options = options_;
  options.hello = test::hello("d1", NodeRole::kDecode);
  options.fabric = testing::fabric_of("ucx_tcp");
  options.tls = authority.node("d1");
  TcpTransport transport(loop_.executor(), &io_, options);
  const Status status = transport.start();
  ASSERT_FALSE(status.has_value());
  EXPECT_EQ(status.error().param, "kv-transport");
  EXPECT_NE(status.error().message.find("does not encrypt"), std::string::npos);
}

// A peer that agrees on a lane and then breaks the protocol loses that connection and no more.
TEST_F(LaneTest, NonsenseInsteadOfALane) {
  d_ = node_with("ucx_tcp", "d1", NodeRole::kDecode);
  raw_hello_.set_fabric("ucx");
  RawPeer control(address(d_.get()));
  ASSERT_TRUE(control.greet(raw_hello_).accepted());
  d_->take<PeerUp>();
  wire::pb::Lane lane;
  lane.set_address("too short");
  const std::vector<std::vector<std::byte>> words = {
      *wire::encode_lane(lane), *wire::encode_commit(key_of(1), test::sample_commit()),
      pattern(200, 1)};
  for (const auto& said : words) {
    RawPeer bulk(address(d_.get()));
    const auto reply = bulk.greet(raw_hello_, true);
    ASSERT_TRUE(reply.accepted());
    EXPECT_EQ(reply.hello().fabric(), "ucx");
    bulk.send(said);
    EXPECT_TRUE(bulk.sees_close());
  }
  // Without a fabric in its Hello the same peer is served by the socket.
  raw_hello_.clear_fabric();
  RawPeer bulk(address(d_.get()));
  ASSERT_TRUE(bulk.greet(raw_hello_, true).accepted());
  const auto frame = test::blocks_frame(key_of(2), 0, 5000);
  d_->sink.expect(key_of(2), 5000);
  bulk.send(frame.bytes);
  EXPECT_TRUE(d_->take<BlocksReceived>().status.has_value());
  EXPECT_TRUE(d_->sink.bytes(key_of(2)) == frame.tiles);
  EXPECT_EQ(d_->count<PeerDown>(), 0U);
}

TEST_F(LaneTest, AWayThatFetchesNothingIsNotUsed) {
  options_.fabric = std::make_shared<FrailFabric>(0);
  auto d = node(test::hello("d1", NodeRole::kDecode));
  auto p = node_with("ucx_tcp", "p1", NodeRole::kPrefill, {address(d.get())});
  p->take<PeerUp>();
  d->take<PeerUp>();
  ASSERT_TRUE(ship(p.get(), d.get(), 1).has_value());
  EXPECT_EQ(stats(p.get()).tcp.bytes_sent, 300'000U);
  EXPECT_EQ(stats(p.get()).lanes_failed, 1U);
}

TEST_F(LaneTest, ALaneThatBreaksAtItsFirstFrameIsLeft) {
  options_.fabric = std::make_shared<FrailFabric>(1000);  // greetings
  auto d = node(test::hello("d1", NodeRole::kDecode));
  auto p = node_with("ucx_tcp", "p1", NodeRole::kPrefill, {address(d.get())});
  p->take<PeerUp>();
  d->take<PeerUp>();
  d->sink.expect(key_of(1), 300'000);
  EXPECT_FALSE(p->blocks("d1", key_of(1), 1, pattern(300'000, 1)).has_value());
  EXPECT_FALSE(d->take<BlocksReceived>().status.has_value());
  ASSERT_TRUE(ship(p.get(), d.get(), 2).has_value());
  EXPECT_EQ(stats(p.get()).tcp.bytes_sent, 300'000U);
  EXPECT_EQ(d->count<PeerDown>(), 0U);
}

// The peer lives and takes nothing from the lane: the frame fails at its deadline, the next goes by
// TCP.
TEST_F(LaneTest, AStuckLaneIsLeft) {
  asio::io_context context;
  tcp::acceptor acceptor(context, tcp::endpoint(asio::ip::make_address("127.0.0.1"), 0));
  auto d_hello = test::hello("d1", NodeRole::kDecode);
  d_hello.set_fabric("ucx");
  d_hello.set_serving_port(acceptor.local_endpoint().port());
  auto p = node_with("ucx_tcp", "p1", NodeRole::kPrefill,
                     {{"127.0.0.1", acceptor.local_endpoint().port()}});
  RawPeer control(&acceptor);
  EXPECT_EQ(control.welcome(d_hello).fabric(), "ucx");
  p->take<PeerUp>();

  const auto data = pattern(300'000, 1);
  auto stuck = std::async(std::launch::async, [&] { return p->blocks("d1", key_of(1), 0, data); });
  RawPeer bulk(&acceptor);
  EXPECT_TRUE(bulk.welcome(d_hello).bulk());
  const auto [header, payload] = bulk.receive();
  const auto theirs = wire::decode_lane(header, payload);
  ASSERT_TRUE(theirs.has_value());
  std::unique_ptr<net::Lane> lane =
      p->on_loop([&] { return *testing::fabric_of("ucx_tcp")->open_lane(loop_.executor()); });
  ASSERT_TRUE(p->on_loop([&] { return lane->connect(theirs->address()); }).has_value());
  wire::pb::Lane ours;
  ours.set_address(lane->address());
  bulk.send(*wire::encode_lane(ours));
  const auto first = run(lane->next());
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(first->header.size(), wire::kHeaderBytes);
  p->on_loop([&] { lane->drop(); });
  run(lane->next()).value();  // the Blocks frame, which is neither taken nor dropped

  const auto result = stuck.get();
  ASSERT_FALSE(result.has_value());
  EXPECT_EQ(result.error().code, ErrorCode::kDeadlineExceeded);
  EXPECT_EQ(stats(p.get()).lanes_failed, 1U);
  EXPECT_TRUE(bulk.sees_close());
  p->on_loop([&] { lane.reset(); });

  auto again = std::async(std::launch::async, [&] { return p->blocks("d1", key_of(2), 0, data); });
  RawPeer by_tcp(&acceptor);
  EXPECT_EQ(by_tcp.welcome(d_hello).fabric(), "");
  EXPECT_EQ(by_tcp.receive().first.type, wire::FrameType::kBlocks);
  EXPECT_TRUE(again.get().has_value());
}

}  // namespace
}  // namespace baton::handoff
