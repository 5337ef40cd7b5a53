// TcpTransport against raw sockets that break the protocol, die, stall or lie; listening, dialling
// and redialling.
#include "baton/handoff/tcp_transport.h"

#include "baton/handoff/tcp_test_util.h"
#include "baton/wire/crc32c.h"
#include "baton/wire/little_endian.h"

#include <gtest/gtest.h>

#include <thread>

namespace baton::handoff {
namespace {

using message::NodeRole;
using std::chrono::milliseconds;
using test::beat;
using test::Blocks;
using test::blocks_frame;
using test::key_of;
using test::pattern;
using test::RawPeer;
using test::TestNode;

class Tcp : public test::TcpFixture {};

TEST_F(Tcp, SixtyFourMebibytesOfTilesIntoSpans) {
  make_d();
  auto p = node(test::hello("p1", NodeRole::kPrefill), {address_});
  p->take<PeerUp>();
  constexpr std::size_t kFrame = 16 << 20;
  const auto data = pattern(kFrame, 9);
  for (std::uint64_t i = 0; i < 4; ++i) {
    d_->sink.expect(key_of(i), kFrame, 1 << 20);
  }
  std::vector<std::future<Result<BulkSent>>> sends;  // all at once, over two connections
  for (std::uint64_t i = 0; i < 4; ++i) {
    sends.push_back(std::async(std::launch::async,
                               [&, i] { return p->blocks("d1", key_of(i), 0, data, 1 << 20); }));
  }
  for (auto& send : sends) {
    ASSERT_TRUE(send.get().has_value());
  }
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(d_->take<BlocksReceived>().status.has_value());
  }
  for (std::uint64_t i = 0; i < 4; ++i) {
    EXPECT_TRUE(d_->sink.bytes(key_of(i)) == data);
  }
}

TEST_F(Tcp, GarbageBeforeTheHandshake) {
  make_d();
  RawPeer http(address_);
  const std::string request = "GET / HTTP/1.1\r\nHost: x\r\n\r\n" + std::string(100, ' ');
  http.send(std::as_bytes(std::span(request.data(), request.size())));
  EXPECT_TRUE(http.sees_close());
  RawPeer silent(address_);
  EXPECT_TRUE(silent.sees_close());  // at the handshake's deadline
  RawPeer good(address_);
  EXPECT_TRUE(good.greet(raw_hello_).accepted());
  EXPECT_EQ(d_->take<PeerUp>().info.id.value, "raw");
}

TEST_F(Tcp, BadFramesOnControlEndTheConnectionOnly) {
  make_d();
  auto bad_crc = wire::encode_header({1, wire::FrameType::kBeat, 0, key_of(1), 0, 0, 0});
  bad_crc[40] ^= std::byte{1};
  auto magic = wire::encode_header({1, wire::FrameType::kBeat, 0, key_of(1), 0, 0, 0});
  magic[0] = std::byte{'X'};
  const auto huge =
      wire::encode_header({1, wire::FrameType::kBeat, 0, key_of(1), 0, wire::kMaxBeatBytes + 1, 0});
  auto version = wire::encode_header({99, wire::FrameType::kBeat, 0, key_of(1), 0, 0, 0});
  const auto blocks =
      wire::encode_header({1, wire::FrameType::kBlocks, 0, key_of(1), 0, wire::kMaxBlocksBytes, 0});
  auto payload_crc = *wire::encode_control(key_of(1), beat(5));
  payload_crc.back() ^= std::byte{1};
  const std::vector<std::pair<std::vector<std::byte>, ErrorCode>> cases{
      {{bad_crc.begin(), bad_crc.end()}, ErrorCode::kCorruptFrame},
      {{magic.begin(), magic.end()}, ErrorCode::kProtocol},
      {{huge.begin(), huge.end()}, ErrorCode::kPayloadTooLarge},
      {{version.begin(), version.end()}, ErrorCode::kProtocol},
      {{blocks.begin(), blocks.end()}, ErrorCode::kProtocol},
      {payload_crc, ErrorCode::kCorruptFrame}};
  for (const auto& [bytes, code] : cases) {
    RawPeer peer(address_);
    ASSERT_TRUE(peer.greet(raw_hello_).accepted());
    d_->take<PeerUp>();
    peer.send(bytes);
    EXPECT_TRUE(peer.sees_close());
    const auto down = d_->take<PeerDown>();
    EXPECT_EQ(down.reason.code, code) << down.reason.message;
  }
}

TEST_F(Tcp, InvalidMessageEndsItsSequenceOnBothSides) {
  make_d();
  RawPeer peer(address_);
  peer.greet(raw_hello_);
  d_->take<PeerUp>();
  wire::FrameHeader header{1, wire::FrameType::kPrefill, 0, key_of(4), 0, 0, 0};  // empty message
  peer.send(wire::encode_header(header));
  const auto here = d_->take<ControlReceived>();
  EXPECT_EQ(here.key, key_of(4));
  EXPECT_EQ(std::get<wire::pb::Abort>(here.message).code(),
            static_cast<std::uint32_t>(ErrorCode::kProtocol));
  const auto [there, payload] = peer.receive();
  EXPECT_EQ(there.type, wire::FrameType::kAbort);
  EXPECT_EQ(there.key, key_of(4));
  peer.send(*wire::encode_control(key_of(5), beat(3)));
  EXPECT_EQ(d_->take<ControlReceived>().key, key_of(5));
}

TEST_F(Tcp, PeerKilledInsideAControlFrame) {
  make_d();
  RawPeer peer(address_);
  peer.greet(raw_hello_);
  d_->take<PeerUp>();
  const auto frame = *wire::encode_control(key_of(1), beat(5));
  peer.send(std::span(frame).first(frame.size() - 1));
  peer.reset();
  EXPECT_EQ(d_->take<PeerDown>().reason.code, ErrorCode::kPeerLost);
}

TEST_F(Tcp, PeerStalledInsideAFrameMeetsTheDeadline) {
  make_d();
  RawPeer peer(address_);
  peer.greet(raw_hello_);
  d_->take<PeerUp>();
  const auto frame = *wire::encode_control(key_of(1), beat(5));
  peer.send(std::span(frame).first(10));
  EXPECT_EQ(d_->take<PeerDown>().reason.code, ErrorCode::kDeadlineExceeded);
}

// A node that slept finds a Commit on one connection, and an Abort sent after it on another.
TEST_F(Tcp, AnAbortThatHasComeIsHeardBeforeItsCommit) {
  make_d();
  RawPeer control(address_);
  control.greet(raw_hello_);
  d_->take<PeerUp>();
  RawPeer bulk(address_);
  ASSERT_TRUE(bulk.greet(raw_hello_, true).accepted());
  d_->sink.expect(key_of(1), 128);
  bulk.send(blocks_frame(key_of(1), 0, 128).bytes);
  d_->take<BlocksReceived>();

  std::promise<void> awake;
  asio::post(loop_.executor(), [&awake] { awake.get_future().wait(); });
  bulk.send(*wire::encode_commit(key_of(1), test::sample_commit()));
  std::this_thread::sleep_for(
      milliseconds(50));  // read by then, most times; if not, nothing is shown
  control.send(*wire::encode_control(key_of(1), wire::Control(wire::pb::Abort{})));
  awake.set_value();
  EXPECT_TRUE((d_->in_order<ControlReceived, CommitReceived>()));
}

TEST_F(Tcp, CorruptTilesAreReportedAndTheConnectionLives) {
  make_d();
  RawPeer control(address_);
  control.greet(raw_hello_);
  d_->take<PeerUp>();
  RawPeer bulk(address_);
  ASSERT_TRUE(bulk.greet(raw_hello_, true).accepted());
  d_->sink.expect(key_of(1), 1 << 20);
  Blocks bad = blocks_frame(key_of(1), 0, 1 << 20);
  bad.bytes[500'000] ^= std::byte{4};
  bulk.send(bad.bytes);
  const auto corrupt = d_->take<BlocksReceived>();
  EXPECT_EQ(corrupt.status.error().code, ErrorCode::kCorruptFrame);
  EXPECT_EQ(corrupt.key, key_of(1));
  const Blocks good = blocks_frame(key_of(1), 1, 1 << 20);
  bulk.send(good.bytes);
  EXPECT_TRUE(d_->take<BlocksReceived>().status.has_value());
  EXPECT_TRUE(d_->sink.bytes(key_of(1)) == good.tiles);
  EXPECT_EQ(d_->count<PeerDown>(), 0U);
}

TEST_F(Tcp, BulkConnectionThatBreaksInsideAFrame) {
  make_d();
  RawPeer control(address_);
  control.greet(raw_hello_);
  d_->take<PeerUp>();
  d_->sink.expect(key_of(1), 1 << 20);
  const Blocks frame = blocks_frame(key_of(1), 0, 1 << 20);
  for (const std::size_t bytes : {frame.bytes.size() - 1, std::size_t{200}, std::size_t{96}}) {
    RawPeer bulk(address_);
    ASSERT_TRUE(bulk.greet(raw_hello_, true).accepted());
    bulk.send(std::span(frame.bytes).first(bytes));
    bulk.reset();
    EXPECT_EQ(d_->take<BlocksReceived>().status.error().code, ErrorCode::kPeerLost);
  }
  {  // one that stalls
    RawPeer bulk(address_);
    ASSERT_TRUE(bulk.greet(raw_hello_, true).accepted());
    bulk.send(std::span(frame.bytes).first(5000));
    EXPECT_EQ(d_->take<BlocksReceived>().status.error().code, ErrorCode::kDeadlineExceeded);
    EXPECT_TRUE(bulk.sees_close());
  }
  control.send(*wire::encode_control(key_of(1), beat(1)));  // the control connection lives
  d_->take<ControlReceived>();
  EXPECT_EQ(d_->count<PeerDown>(), 0U);
}

TEST_F(Tcp, GarbageOnABulkConnectionClosesIt) {
  make_d();
  RawPeer control(address_);
  control.greet(raw_hello_);
  d_->take<PeerUp>();
  RawPeer bulk(address_);
  ASSERT_TRUE(bulk.greet(raw_hello_, true).accepted());
  const auto noise = pattern(1000, 3);
  bulk.send(noise);
  EXPECT_TRUE(bulk.sees_close());
  RawPeer beats(address_);
  ASSERT_TRUE(beats.greet(raw_hello_, true).accepted());
  beats.send(*wire::encode_control(key_of(1), beat(1)));  // not for this kind of connection
  EXPECT_TRUE(beats.sees_close());
  EXPECT_EQ(d_->count<PeerDown>(), 0U);
}

TEST_F(Tcp, BulkNeedsAControlConnection) {
  make_d();
  RawPeer bulk(address_);
  const auto reply = bulk.greet(raw_hello_, true);
  EXPECT_FALSE(reply.accepted());
  EXPECT_EQ(reply.field(), "connection");
}

TEST_F(Tcp, ReceiverThatDoesNotReadMeetsTheSendersDeadline) {
  asio::io_context context;
  tcp::acceptor acceptor(context, tcp::endpoint(asio::ip::address_v4::loopback(), 0));
  auto p = node(test::hello("p1", NodeRole::kPrefill), {net::local_address(acceptor)});
  RawPeer control(&acceptor);
  auto raw = test::hello("raw", NodeRole::kDecode);
  control.welcome(raw);
  p->take<PeerUp>();
  const auto data = pattern(48 << 20, 1);
  auto send = std::async(std::launch::async, [&] { return p->blocks("raw", key_of(1), 0, data); });
  RawPeer bulk(&acceptor);
  EXPECT_TRUE(bulk.welcome(raw).bulk());
  const auto result = send.get();
  ASSERT_FALSE(result.has_value());
  EXPECT_EQ(result.error().code, ErrorCode::kDeadlineExceeded);
  EXPECT_EQ(p->count<PeerDown>(), 0U);  // only the send under way ended
}

TEST_F(Tcp, SecondProcessUnderOneNameIsRefusedUntilTheFirstIsDead) {
  make_d();
  auto first = std::make_unique<RawPeer>(address_);
  first->greet(raw_hello_);
  d_->take<PeerUp>();
  auto restarted = raw_hello_;
  restarted.set_boot_low(raw_hello_.boot_low() + 1);
  {
    RawPeer second(address_);
    const auto reply = second.greet(restarted);
    EXPECT_FALSE(reply.accepted());
    EXPECT_EQ(reply.field(), "node_id");
    EXPECT_NE(reply.ours().find(boot_text(raw_hello_)), std::string::npos);
    EXPECT_NE(reply.theirs().find(boot_text(restarted)), std::string::npos);
  }
  EXPECT_EQ(d_->take<PeerUnusable>().error.param, "node_id");
  first->reset();
  d_->take<PeerDown>();
  RawPeer second(address_);
  EXPECT_TRUE(second.greet(restarted).accepted());
  d_->take<PeerUp>();
}

TEST_F(Tcp, SameProcessThatDialsAgainReplacesItsDeadConnection) {
  make_d();
  RawPeer first(address_);
  first.greet(raw_hello_);
  d_->take<PeerUp>();
  RawPeer second(address_);
  EXPECT_TRUE(second.greet(raw_hello_).accepted());
  d_->take<PeerDown>();
  d_->take<PeerUp>();
  EXPECT_TRUE(first.sees_close());
  second.send(*wire::encode_control(key_of(1), beat(1)));
  d_->take<ControlReceived>();
}

TEST_F(Tcp, DiallersReconnectWithBackoff) {
  make_d();
  auto p = node(test::hello("p1", NodeRole::kPrefill), {address_});
  p->take<PeerUp>();
  d_->stop();
  d_.reset();
  p->take<PeerDown>();
  const auto unusable = p->take<PeerUnusable>();  // nobody listens: said once, naming the address
  EXPECT_NE(unusable.error.message.find(net::to_string(address_)), std::string::npos);
  d_ = node(test::hello("d1", NodeRole::kDecode), {}, address_.port);
  EXPECT_EQ(p->take<PeerUp>().info.id.value, "d1");
  EXPECT_EQ(p->count<PeerUnusable>(), 0U);
  const auto data = pattern(100'000, 1);
  d_->sink.expect(key_of(1), data.size());
  ASSERT_TRUE(p->blocks("d1", key_of(1), 0, data).has_value());
  EXPECT_TRUE(d_->take<BlocksReceived>().status.has_value());
}

// The transport of a node, for what is not in the interface.
class TcpPeers : public Tcp {
 protected:
  static TcpTransport* tcp(TestNode* node) {
    return static_cast<TcpTransport*>(node->transport.get());
  }
  void add(const net::HostPort& address) {
    p_->on_loop([&] { tcp(p_.get())->add_peer(address); });
  }
  void remove(const net::HostPort& address) {
    p_->on_loop([&] { tcp(p_.get())->remove_peer(address); });
  }
  std::optional<NodeId> at(const net::HostPort& address) {
    return p_->on_loop([&] { return tcp(p_.get())->peer_at(address); });
  }
  void SetUp() override {
    Tcp::SetUp();
    make_d();
    p_ = node(test::hello("p1", NodeRole::kPrefill));
  }
  std::unique_ptr<TestNode> p_;
};

TEST_F(TcpPeers, ComeAndGoAtRunTime) {
  const auto data = pattern(100'000, 1);
  for (std::uint64_t round = 1; round <= 3; ++round) {
    add(address_);
    add(address_);  // it does already
    EXPECT_EQ(p_->take<PeerUp>().info.address, net::to_string(address_));
    EXPECT_EQ(at(address_), NodeId{"d1"});
    d_->take<PeerUp>();
    d_->sink.expect(key_of(round), data.size());
    ASSERT_TRUE(p_->blocks("d1", key_of(round), 0, data).has_value());
    EXPECT_TRUE(d_->take<BlocksReceived>().status.has_value());

    remove(address_);
    remove(address_);
    EXPECT_EQ(at(address_), std::nullopt);
    EXPECT_EQ(p_->take<PeerForgotten>().address, net::to_string(address_));
    ASSERT_EQ(p_->count<PeerDown>(), 1U);  // before it
    EXPECT_EQ(p_->take<PeerDown>().peer, NodeId{"d1"});
    d_->take<PeerDown>();
    EXPECT_FALSE(p_->control("d1", key_of(round), beat(1)).has_value());
  }
  EXPECT_EQ(p_->count<PeerUp>() + p_->count<PeerForgotten>() + d_->count<PeerUp>(), 0U);
}

TEST_F(TcpPeers, OneThatIsForgottenIsNotDialledAgain) {
  asio::io_context context;
  tcp::acceptor acceptor(context, tcp::endpoint(asio::ip::address_v4::loopback(), 0));
  const net::HostPort silent = net::local_address(acceptor);
  add(silent);
  RawPeer waiting(&acceptor);  // in the middle of its handshake
  remove(silent);
  EXPECT_TRUE(waiting.sees_close());
  EXPECT_EQ(p_->take<PeerForgotten>().address, net::to_string(silent));
  acceptor.close();
  add(silent);
  EXPECT_EQ(p_->take<PeerUnusable>().address, net::to_string(silent));
  remove(silent);
  p_->take<PeerForgotten>();
  add(silent);  // a new start: what was said before is said again
  EXPECT_EQ(p_->take<PeerUnusable>().address, net::to_string(silent));
  remove(silent);
  p_->take<PeerForgotten>();
  EXPECT_EQ(p_->count<PeerUnusable>(), 0U);
}

TEST_F(TcpPeers, ANodeWithTwoAddressesStaysWhileOneIsWanted) {
  add(address_);
  p_->take<PeerUp>();
  const net::HostPort other{"localhost", address_.port};
  add(other);
  for (int i = 0; i < 4'000 && !at(other); ++i) {  // it is told that they are connected already
    std::this_thread::sleep_for(milliseconds(5));
  }
  remove(address_);
  EXPECT_EQ(p_->take<PeerForgotten>().address, net::to_string(address_));
  EXPECT_EQ(at(other), NodeId{"d1"});
  EXPECT_TRUE(p_->control("d1", key_of(1), beat(1)).has_value());
  EXPECT_EQ(p_->count<PeerDown>(), 0U);
  remove(other);
  EXPECT_EQ(p_->take<PeerDown>().peer, NodeId{"d1"});
}

// Killed and started again elsewhere while its old address is still a member. Addresses are walked
// in order: where it is now comes before or after.
TEST_F(TcpPeers, ANodeThatMovedIsReachedWhereItIsNow) {
  net::HostPort places[2];
  {
    asio::io_context context;
    tcp::acceptor one(context, tcp::endpoint(asio::ip::address_v4::loopback(), 0));
    tcp::acceptor two(context, tcp::endpoint(asio::ip::address_v4::loopback(), 0));
    places[0] = net::local_address(one);
    places[1] = net::local_address(two);
  }
  for (const int now : {0, 1}) {
    const net::HostPort before = places[1 - now];
    d_->stop();
    d_ = node(test::hello("d1", NodeRole::kDecode), {}, before.port);
    add(before);
    p_->take<PeerUp>();
    d_->stop();
    p_->take<PeerDown>();
    d_ = node(test::hello("d1", NodeRole::kDecode), {}, places[now].port);
    add(places[now]);
    EXPECT_EQ(p_->take<PeerUp>().info.address, net::to_string(places[now]));
    EXPECT_EQ(at(places[now]), NodeId{"d1"});
    remove(before);
    p_->take<PeerForgotten>();
    EXPECT_EQ(p_->count<PeerDown>(), 0U);
    const auto data = pattern(100'000, 1);
    d_->sink.expect(key_of(1), data.size());
    ASSERT_TRUE(p_->blocks("d1", key_of(1), 0, data).has_value());
    EXPECT_TRUE(d_->take<BlocksReceived>().status.has_value());
    remove(places[now]);
    p_->take<PeerDown>();
    p_->take<PeerForgotten>();
  }
}

// Somebody answers under the name of a node that is connected elsewhere, and is renamed later.
TEST_F(TcpPeers, WhoDoesNotFitIsDialledAgain) {
  add(address_);
  p_->take<PeerUp>();
  asio::io_context context;
  tcp::acceptor acceptor(context, tcp::endpoint(asio::ip::address_v4::loopback(), 0));
  const net::HostPort other = net::local_address(acceptor);
  add(other);
  auto theirs = test::hello("d1", NodeRole::kDecode);
  RawPeer(&acceptor).answer(theirs);
  EXPECT_EQ(p_->take<PeerUnusable>().address, net::to_string(other));
  acceptor.close();
  const auto renamed = node(test::hello("d2", NodeRole::kDecode), {}, other.port);
  EXPECT_EQ(p_->take<PeerUp>().info.id, NodeId{"d2"});
  EXPECT_EQ(at(other), NodeId{"d2"});
  renamed->stop();
}

TEST_F(Tcp, TwoThatDialEachOtherEndWithOneConnection) {
  for (int round = 0; round < 10; ++round) {
    // Each needs the other's port before it starts: take two, free them, and bind them again.
    asio::io_context context;
    std::vector<net::HostPort> ports;
    {
      tcp::acceptor a(context, tcp::endpoint(asio::ip::address_v4::loopback(), 0));
      tcp::acceptor b(context, tcp::endpoint(asio::ip::address_v4::loopback(), 0));
      ports = {net::local_address(a), net::local_address(b)};
    }
    auto a = node(test::hello("a", NodeRole::kPrefill), {ports[1]}, ports[0].port);
    auto b = node(test::hello("b", NodeRole::kDecode), {ports[0]}, ports[1].port);
    const auto drain = [](TestNode* from, const std::string& to) {
      // The last PeerUp is the connection that stays: a message gets through in the end.
      from->take<PeerUp>();
      for (int tries = 0; tries < 200; ++tries) {
        if (from->control(to, key_of(1), beat(1))) {
          return true;
        }
        from->take<PeerUp>();
      }
      return false;
    };
    EXPECT_TRUE(drain(a.get(), "b"));
    EXPECT_TRUE(drain(b.get(), "a"));
    EXPECT_LE(a->count<PeerDown>(), 1U);
    EXPECT_LE(b->count<PeerDown>(), 1U);
    EXPECT_LE(a->count<PeerUnusable>(), 1U);  // a may have dialled before b listened
    EXPECT_EQ(b->count<PeerUnusable>(), 0U);
    const auto data = pattern(1000, 1);  // both ways over bulk
    a->sink.expect(key_of(1), data.size());
    b->sink.expect(key_of(1), data.size());
    const auto send = [&data](TestNode* from, const std::string& to) {
      auto sent = from->blocks(to, key_of(1), 0, data);
      for (int tries = 0; !sent && tries < 10; ++tries) {
        from->take<PeerUp>();  // the other's dial replaced ours just now
        sent = from->blocks(to, key_of(1), 0, data);
      }
      return sent.has_value();
    };
    EXPECT_TRUE(send(a.get(), "b"));
    EXPECT_TRUE(send(b.get(), "a"));
  }
}

TEST_F(Tcp, BulkToAPeerThatDialledUs) {
  make_d();
  auto p = node(test::hello("p1", NodeRole::kPrefill), {address_});
  d_->take<PeerUp>();
  p->take<PeerUp>();
  const auto data = pattern(1000, 1);
  p->sink.expect(key_of(1), data.size());
  ASSERT_TRUE(d_->blocks("p1", key_of(1), 0, data).has_value());
  EXPECT_TRUE(p->take<BlocksReceived>().status.has_value());
}

TEST_F(Tcp, DiallingOneselfIsNamed) {
  asio::io_context context;
  net::HostPort port;
  {
    tcp::acceptor free(context, tcp::endpoint(asio::ip::address_v4::loopback(), 0));
    port = net::local_address(free);
  }
  auto a = node(test::hello("a", NodeRole::kPrefill), {port}, port.port);
  EXPECT_EQ(a->take<PeerUnusable>().error.param, "node_id");
}

TEST_F(Tcp, BindErrors) {
  make_d();
  TcpTransportOptions options = options_;
  options.hello = test::hello("x", NodeRole::kDecode);
  options.serving_bind = address_;
  TcpTransport taken(loop_.executor(), &io_, options);
  const auto in_use = d_->on_loop([&] { return taken.start(); });
  EXPECT_EQ(in_use.error().code, ErrorCode::kIo);
  EXPECT_NE(in_use.error().message.find(net::to_string(address_)), std::string::npos);
  options.serving_bind = net::HostPort{"0.0.0.0", 0};
  TcpTransport open(loop_.executor(), &io_, options);
  const auto insecure = d_->on_loop([&] { return open.start(); });
  EXPECT_EQ(insecure.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(insecure.error().message.find("0.0.0.0"), std::string::npos);
}

}  // namespace
}  // namespace baton::handoff
