// What every Transport promises, tested on TcpTransport (in the clear, over TLS, with a token, with
// both, with KV over UCX by shared memory and by TCP) and MockTransport alike; then the faults of
// MockNetwork, on virtual time.
#include "baton/handoff/mock_transport.h"
#include "baton/handoff/tcp_transport.h"
#include "baton/handoff/transport_test_util.h"
#include "baton/wire/digest.h"
#include "baton/wire/limits.h"

#include <gtest/gtest.h>

#include "tests/support/certificates.h"
#include "tests/support/fabrics.h"
#include <algorithm>

namespace baton::handoff {
namespace {

using message::NodeRole;
using test::beat;
using test::key_of;
using test::pattern;
using test::TestNode;

// ---- the contract -----------------------------------------------------------------------------

std::vector<std::string> kinds() {
  std::vector<std::string> all{"tcp", "tls", "token", "tls_and_token", "mock"};
  for (const std::string& fabric : testing::fabric_kinds()) {
    all.push_back(fabric);
    all.push_back(fabric + "_and_token");
  }
  return all;
}

class Contract : public ::testing::TestWithParam<std::string> {
 public:
  ~Contract() override {
    p_.reset();
    d_.reset();
    if (network_) {
      std::promise<void> stopped;
      asio::co_spawn(loop_.executor(), network_->stop(),
                     [&](const std::exception_ptr&) { stopped.set_value(); });
      stopped.get_future().get();
    }
  }

 protected:
  // p1 dials d1.
  void connect(wire::pb::Hello p, wire::pb::Hello d) {
    if (GetParam() == "mock") {
      network_ = std::make_unique<MockNetwork>(loop_.executor());
      d_ = std::make_unique<TestNode>(&loop_, network_->attach(d));
      p_ = std::make_unique<TestNode>(&loop_, network_->attach(p));
      p_->on_loop([&] { network_->connect(NodeId{p.node_id()}, NodeId{d.node_id()}); });
      return;
    }
    const std::string kind = GetParam();
    fabric_ = testing::fabric_of(kind.substr(0, kind.find("_and")));
    const bool tls = kind.find("tls") != std::string::npos;
    std::shared_ptr<const ClusterToken> token;
    if (kind.find("token") != std::string::npos) {
      token = std::make_shared<const ClusterToken>(*ClusterToken::parse("correct horse battery"));
    }
    TcpTransportOptions serving;
    serving.hello = d;
    serving.tls = tls ? ca_.node("d1") : nullptr;
    serving.token = token;
    serving.fabric = fabric_;
    serving.serving_bind = net::HostPort{"127.0.0.1", 0};
    auto listening = std::make_unique<TcpTransport>(loop_.executor(), &io_, serving);
    auto* raw = listening.get();
    d_ = std::make_unique<TestNode>(&loop_, std::move(listening));
    ASSERT_TRUE(d_->on_loop([&] { return raw->start(); }).has_value());
    TcpTransportOptions dialling;
    dialling.hello = p;
    dialling.tls = tls ? ca_.node("p1") : nullptr;
    dialling.token = token;
    dialling.fabric = fabric_;
    dialling.peers = {d_->on_loop([&] { return raw->serving_address(); })};
    auto dialler = std::make_unique<TcpTransport>(loop_.executor(), &io_, dialling);
    raw = dialler.get();
    p_ = std::make_unique<TestNode>(&loop_, std::move(dialler));
    ASSERT_TRUE(p_->on_loop([&] { return raw->start(); }).has_value());
  }
  void connect() {
    connect(test::hello("p1", NodeRole::kPrefill), test::hello("d1", NodeRole::kDecode));
    p_->take<PeerUp>();
    d_->take<PeerUp>();
  }

  const TransportStats& stats_at(TestNode* node) {
    return static_cast<TcpTransport*>(node->transport.get())->stats();
  }

  testing::TestAuthority ca_;
  std::shared_ptr<net::Fabric> fabric_;
  net::EventLoop loop_{"test-control"};
  net::IoPool io_{2, "test-io"};
  std::unique_ptr<MockNetwork> network_;
  std::unique_ptr<TestNode> p_;
  std::unique_ptr<TestNode> d_;
};
INSTANTIATE_TEST_SUITE_P(Transports, Contract, ::testing::ValuesIn(kinds()),
                         [](const auto& param) { return param.param; });

TEST_P(Contract, PeersLearnOfEachOther) {
  connect(test::hello("p1", NodeRole::kPrefill), test::hello("d1", NodeRole::kDecode));
  const PeerUp up_at_p = p_->take<PeerUp>();
  const PeerUp up_at_d = d_->take<PeerUp>();
  EXPECT_EQ(up_at_p.info.id.value, "d1");
  EXPECT_EQ(up_at_p.info.role, NodeRole::kDecode);
  EXPECT_EQ(up_at_p.info.exactness_tag, "tag-1");
  EXPECT_EQ(up_at_p.block_tokens, 128);
  EXPECT_EQ(up_at_d.info.id.value, "p1");
  EXPECT_EQ(up_at_d.info.max_context_tokens, 8192);
}

TEST_P(Contract, UnlikeNodesAreToldFieldAndBothValues) {
  auto other = test::hello("d1", NodeRole::kDecode);
  other.set_model_digest("model-2");
  connect(test::hello("p1", NodeRole::kPrefill), other);
  std::vector<TestNode*> told{p_.get()};
  if (GetParam().find("token") == std::string::npos) {
    told.push_back(d_.get());  // else a line in its log: the dialler had not shown the token yet
  }
  for (TestNode* node : told) {
    const PeerUnusable refusal = node->take<PeerUnusable>();
    EXPECT_EQ(refusal.error.code, ErrorCode::kHandshakeMismatch);
    EXPECT_EQ(refusal.error.param, "model_digest");
    EXPECT_NE(
        refusal.error.message.find(node == p_.get() ? "ours is 'model-1'" : "ours is 'model-2'"),
        std::string::npos)
        << refusal.error.message;
    EXPECT_NE(refusal.error.message.find(node == p_.get() ? "theirs is 'model-2'"
                                                          : "theirs is 'model-1'"),
              std::string::npos)
        << refusal.error.message;
    EXPECT_EQ(node->count<PeerUp>(), 0U);
  }
}

TEST_P(Contract, ControlKeepsItsOrderBothWays) {
  connect();
  constexpr std::uint64_t kMessages = 2000;
  for (std::uint64_t i = 0; i < kMessages; ++i) {
    ASSERT_TRUE(p_->control("d1", key_of(i), beat(i)).has_value());
    ASSERT_TRUE(d_->control("p1", key_of(i), beat(i)).has_value());
  }
  for (TestNode* node : {p_.get(), d_.get()}) {
    for (std::uint64_t i = 0; i < kMessages; ++i) {
      const auto got = node->take<ControlReceived>();
      ASSERT_EQ(std::get<wire::pb::Beat>(got.message).step_count(), i);
      ASSERT_EQ(got.key, key_of(i));
    }
  }
}

TEST_P(Contract, TilesLandInTheirPlaceAndDigestsAgree) {
  connect();
  wire::HandoffDigest sent;
  wire::HandoffDigest received;
  const std::vector<std::size_t> sizes{1, 4096, 300'000, 5 << 20};
  std::map<std::uint64_t, wire::EncodedHeader> headers;
  for (std::uint64_t i = 0; i < sizes.size(); ++i) {
    d_->sink.expect(key_of(i), sizes[i]);
    const auto data = pattern(sizes[i], static_cast<std::uint32_t>(i));
    const auto result = p_->blocks("d1", key_of(i), i, data);
    ASSERT_TRUE(result.has_value()) << result.error().message;
    EXPECT_EQ(result->payload_bytes, sizes[i]);
    sent.add(result->header);
    const auto got = d_->take<BlocksReceived>();
    ASSERT_TRUE(got.status.has_value()) << got.status.error().message;
    EXPECT_EQ(got.key, key_of(i));
    EXPECT_EQ(got.sequence, i);
    EXPECT_EQ(got.payload_bytes, sizes[i]);
    EXPECT_EQ(got.blocks, (wire::BlocksHeader{0, 0, 4, 0, 3, 0, 4, 128}));
    received.add(got.header);
    EXPECT_TRUE(d_->sink.bytes(key_of(i)) == data);
  }
  EXPECT_EQ(sent.value(), received.value());
  if (GetParam() != "mock") {
    std::uint64_t bytes = 0;
    for (const std::size_t size : sizes) {
      bytes += size;
    }
    const bool by_fabric = fabric_ != nullptr;
    for (const TransportStats* stats : {&stats_at(p_.get()), &stats_at(d_.get())}) {
      const std::uint64_t by_lane = stats->fabric.bytes_sent + stats->fabric.bytes_received;
      const std::uint64_t by_socket = stats->tcp.bytes_sent + stats->tcp.bytes_received;
      EXPECT_EQ(by_lane, by_fabric ? bytes : 0);
      EXPECT_EQ(by_socket, by_fabric ? 0 : bytes);
      EXPECT_EQ(stats->fabric.peers, by_fabric ? 1 : 0);
      EXPECT_EQ(stats->lanes_failed, 0U);
    }
  }
}

TEST_P(Contract, ManySmallPieces) {
  connect();
  const auto data = pattern(3 << 20, 7);
  for (std::uint64_t i = 0; i < 3; ++i) {
    d_->sink.expect(key_of(i), data.size(), 4'099 + i);
    ASSERT_TRUE(p_->wait(p_->transport->send_blocks(NodeId{"d1"}, key_of(i),
                                                    wire::BlocksHeader{0, 0, 4, 0, 3, 0, 4, 128}, i,
                                                    test::pieces(std::span(data), 5'003)))
                    .has_value());
    ASSERT_TRUE(d_->take<BlocksReceived>().status.has_value());
    EXPECT_TRUE(d_->sink.bytes(key_of(i)) == data);
  }
}

TEST_P(Contract, UnwantedTilesAreDroppedAndTheConnectionLives) {
  connect();
  const auto data = pattern(700'000, 1);
  ASSERT_TRUE(p_->blocks("d1", key_of(1), 0, data).has_value());
  EXPECT_EQ(d_->take<BlocksReceived>().status.error().code, ErrorCode::kCancelled);
  d_->sink.expect(key_of(2), data.size() - 1);  // another size than the frame's
  ASSERT_TRUE(p_->blocks("d1", key_of(2), 0, data).has_value());
  EXPECT_EQ(d_->take<BlocksReceived>().status.error().code, ErrorCode::kProtocol);
  d_->sink.expect(key_of(3), data.size());
  ASSERT_TRUE(p_->blocks("d1", key_of(3), 0, data).has_value());
  EXPECT_TRUE(d_->take<BlocksReceived>().status.has_value());
  EXPECT_TRUE(d_->sink.bytes(key_of(3)) == data);
  EXPECT_EQ(d_->count<PeerDown>(), 0U);
}

TEST_P(Contract, CommitArrives) {
  connect();
  ASSERT_TRUE(p_->commit("d1", key_of(1), test::sample_commit()).has_value());
  const auto got = d_->take<CommitReceived>();
  EXPECT_EQ(got.key, key_of(1));
  EXPECT_EQ(got.commit.SerializeAsString(), test::sample_commit().SerializeAsString());
}

TEST_P(Contract, UnknownPeersAndInvalidMessages) {
  connect();
  EXPECT_EQ(p_->control("nobody", key_of(1), beat(1)).error().code, ErrorCode::kPeerLost);
  EXPECT_EQ(p_->blocks("nobody", key_of(1), 0, pattern(8, 1)).error().code, ErrorCode::kPeerLost);
  EXPECT_EQ(p_->commit("nobody", key_of(1), test::sample_commit()).error().code,
            ErrorCode::kPeerLost);
  EXPECT_EQ(p_->control("d1", key_of(1), wire::pb::Prefill()).error().code, ErrorCode::kInternal);
  EXPECT_FALSE(p_->blocks("d1", key_of(1), 0, pattern(wire::kMaxBlocksBytes, 1)).has_value());
}

TEST_P(Contract, DisconnectIsSeenByBoth) {
  connect();
  p_->on_loop([&] {
    p_->transport->disconnect(NodeId{"d1"}, Error{ErrorCode::kDeadlineExceeded, "no beats"});
  });
  EXPECT_EQ(p_->take<PeerDown>().reason.code, ErrorCode::kDeadlineExceeded);
  EXPECT_EQ(d_->take<PeerDown>().reason.code, ErrorCode::kPeerLost);
}

TEST_P(Contract, ShutdownWithTrafficEndsEverything) {
  connect();
  const auto data = pattern(3 << 20, 1);
  std::vector<std::future<Result<BulkSent>>> sends;
  for (std::uint64_t i = 0; i < 8; ++i) {
    d_->sink.expect(key_of(i + 1), data.size());  // each its own bytes: they land side by side
    sends.push_back(std::async(std::launch::async,
                               [&, i] { return p_->blocks("d1", key_of(i + 1), i, data); }));
    (void)p_->control("d1", key_of(i), beat(i));
  }
  d_->take<BlocksReceived>();
  d_->stop();
  EXPECT_EQ(p_->take<PeerDown>().peer.value, "d1");
  for (auto& send : sends) {
    const auto result = send.get();  // sent before, or lost: never hanging
    if (!result) {
      EXPECT_EQ(result.error().code, ErrorCode::kPeerLost) << result.error().message;
    }
  }
  p_->stop();
  EXPECT_EQ(d_->sink.accepted, d_->sink.done);
}

// ---- handshake rule ---------------------------------------------------------------------------

TEST(Handshake, EachFieldIsNamed) {
  const auto ours = test::hello("p1", NodeRole::kPrefill);
  const auto expect = [&](const char* field, auto change) {
    auto theirs = test::hello("d1", NodeRole::kDecode);
    ASSERT_FALSE(find_mismatch(ours, theirs).has_value());
    change(theirs);
    for (const auto& found : {find_mismatch(ours, theirs), find_mismatch(theirs, ours)}) {
      ASSERT_TRUE(found.has_value()) << field;
      EXPECT_EQ(found->field, field);
      EXPECT_NE(found->ours, found->theirs);
    }
  };
  using Hello = wire::pb::Hello;
  expect("protocol", [](Hello& h) {
    h.set_protocol_min(2);
    h.set_protocol_max(3);
  });
  expect("model_digest", [](Hello& h) { h.set_model_digest("x"); });
  expect("tokenizer_digest", [](Hello& h) { h.set_tokenizer_digest("x"); });
  expect("exactness_tag", [](Hello& h) { h.set_exactness_tag("x"); });
  expect("groups", [](Hello& h) { h.mutable_groups(0)->set_dtype("f32"); });
  expect("groups", [](Hello& h) { *h.add_groups() = h.groups(0); });
  expect("node_id", [](Hello& h) { h.set_node_id("p1"); });
}

TEST(Handshake, RouterNeedsProtocolAndTokenizerOnly) {
  const auto engine = test::hello("p1", NodeRole::kPrefill);
  message::NodeInfo info;
  info.id = NodeId{"router"};
  info.role = NodeRole::kRouter;
  auto router = make_hello(info, kv::KvLayout{}, "", "tokenizer-1");
  EXPECT_FALSE(find_mismatch(router, engine).has_value());
  router.set_tokenizer_digest("another");
  EXPECT_EQ(find_mismatch(router, engine)->field, "tokenizer_digest");
}

TEST(Handshake, BlockSizeAndLimitsMayDiffer) {
  const auto ours = test::hello("p1", NodeRole::kPrefill);
  auto theirs = test::hello("d1", NodeRole::kDecode);
  theirs.set_block_tokens(32);
  theirs.set_max_context_tokens(100);
  theirs.set_pool_tokens(100);
  EXPECT_FALSE(find_mismatch(ours, theirs).has_value());
}

// ---- the mock's faults ------------------------------------------------------------------------

class Faults : public ::testing::Test {
 protected:
  void SetUp() override {
    p_ = network_.attach(test::hello("p1", NodeRole::kPrefill));
    d_ = network_.attach(test::hello("d1", NodeRole::kDecode));
    d_->set_bulk_sink(&sink_);
    tasks_.spawn(collect(p_.get(), &at_p_));
    tasks_.spawn(collect(d_.get(), &at_d_));
    network_.connect(kP, kD);
    poll();
    ASSERT_EQ(at_p_.size(), 1U);
    ASSERT_EQ(at_d_.size(), 1U);
    at_p_.clear();
    at_d_.clear();
  }
  void TearDown() override {
    p_->shutdown();
    d_->shutdown();
    asio::co_spawn(context_, network_.stop(), asio::detached);
    context_.restart();
    context_.run();
    EXPECT_EQ(tasks_.size(), 0U);
    EXPECT_EQ(sink_.accepted, sink_.done);
  }

  static asio::awaitable<void> collect(MockTransport* node, std::vector<TransportEvent>* into) {
    while (true) {
      auto event = co_await node->next();
      if (!event) {
        co_return;
      }
      into->push_back(*std::move(event));
    }
  }
  void poll() {
    context_.restart();
    context_.poll();
  }
  void send_beats(int from, int to) {
    for (int i = from; i < to; ++i) {
      ASSERT_TRUE(p_->send_control(kD, key_of(1), beat(static_cast<std::uint64_t>(i))).has_value());
    }
  }
  std::vector<std::uint64_t> beats_at_d() {
    std::vector<std::uint64_t> steps;
    for (const auto& event : at_d_) {
      if (const auto* control = std::get_if<ControlReceived>(&event)) {
        steps.push_back(std::get<wire::pb::Beat>(control->message).step_count());
      }
    }
    return steps;
  }
  void send_blocks(std::span<const std::byte> data) {
    asio::co_spawn(
        context_,
        p_->send_blocks(kD, key_of(1), wire::BlocksHeader{0, 0, 1, 0, 1, 0, 1, 32}, 0, {data}),
        asio::detached);
    poll();
  }

  const NodeId kP{"p1"};
  const NodeId kD{"d1"};
  asio::io_context context_;
  net::VirtualClock clock_;
  MockNetwork network_{context_.get_executor(), &clock_};
  net::TaskGroup tasks_{context_.get_executor()};
  test::TestSink sink_;
  std::unique_ptr<MockTransport> p_;
  std::unique_ptr<MockTransport> d_;
  std::vector<TransportEvent> at_p_;
  std::vector<TransportEvent> at_d_;
  using Steps = std::vector<std::uint64_t>;
};

TEST_F(Faults, DropDuplicateSwap) {
  network_.add_fault({kP, kD, wire::FrameType::kBeat, 2, FaultAction::kDrop});
  network_.add_fault({kP, kD, wire::FrameType::kBeat, 4, FaultAction::kDuplicate});
  network_.add_fault({kP, kD, wire::FrameType::kBeat, 5, FaultAction::kSwapNext});
  send_beats(0, 7);
  poll();
  EXPECT_EQ(beats_at_d(), (Steps{0, 2, 3, 3, 5, 4, 6}));
  EXPECT_EQ(network_.frames_sent(kP, kD, wire::FrameType::kBeat), 7U);
}

TEST_F(Faults, CorruptTilesAreSeenByTheirCrc) {
  const auto data = pattern(5000, 1);
  sink_.expect(key_of(1), data.size());
  network_.add_fault({kP, kD, wire::FrameType::kBlocks, 1, FaultAction::kCorrupt});
  send_blocks(data);
  ASSERT_EQ(at_d_.size(), 1U);
  EXPECT_EQ(std::get<BlocksReceived>(at_d_[0]).status.error().code, ErrorCode::kCorruptFrame);
  send_blocks(data);
  EXPECT_TRUE(std::get<BlocksReceived>(at_d_[1]).status.has_value());
  EXPECT_TRUE(sink_.bytes(key_of(1)) == data);
}

TEST_F(Faults, CorruptControlCostsTheConnection) {
  network_.add_fault({kP, kD, wire::FrameType::kBeat, 1, FaultAction::kCorrupt});
  send_beats(1, 2);
  poll();
  EXPECT_EQ(std::get<PeerDown>(at_d_.at(0)).reason.code, ErrorCode::kCorruptFrame);
  EXPECT_EQ(std::get<PeerDown>(at_p_.at(0)).reason.code, ErrorCode::kPeerLost);
  network_.connect(kP, kD);
  send_beats(2, 3);
  poll();
  EXPECT_EQ(beats_at_d(), (Steps{2}));
}

TEST_F(Faults, PartitionHoldsAndHealDelivers) {
  network_.partition(kP, kD);
  send_beats(0, 3);
  poll();
  EXPECT_TRUE(at_d_.empty());
  EXPECT_EQ(network_.waiting(kP, kD, MockNetwork::Lane::kControl), 3U);
  network_.heal(kP, kD);
  poll();
  EXPECT_EQ(beats_at_d(), (Steps{0, 1, 2}));
}

TEST_F(Faults, DisconnectInAPartitionIsSeenAtHeal) {
  network_.partition(kP, kD);
  p_->disconnect(kD, Error{ErrorCode::kDeadlineExceeded, "no beats"});
  poll();
  EXPECT_EQ(at_p_.size(), 1U);
  EXPECT_TRUE(at_d_.empty());
  network_.heal(kP, kD);
  poll();
  ASSERT_EQ(at_d_.size(), 1U);
  EXPECT_TRUE(std::holds_alternative<PeerDown>(at_d_[0]));
  EXPECT_EQ(at_p_.size(), 1U);
}

TEST_F(Faults, HalfCloseIsSeenByTheReceiverOnly) {
  network_.add_fault({kP, kD, wire::FrameType::kBeat, 2, FaultAction::kHalfClose});
  send_beats(0, 4);
  poll();
  EXPECT_EQ(beats_at_d(), (Steps{}));  // the frame before was still under way: lost with it
  ASSERT_EQ(at_d_.size(), 1U);
  EXPECT_TRUE(std::holds_alternative<PeerDown>(at_d_[0]));
  EXPECT_TRUE(at_p_.empty());
  EXPECT_EQ(d_->send_control(kP, key_of(1), beat(1)).error().code, ErrorCode::kPeerLost);
}

TEST_F(Faults, DelayRunsOnTheClock) {
  network_.set_delay(kP, kD, std::chrono::milliseconds(100));
  send_beats(0, 2);
  clock_.run_for(context_, std::chrono::milliseconds(99));
  EXPECT_TRUE(at_d_.empty());
  clock_.run_for(context_, std::chrono::milliseconds(1));
  EXPECT_EQ(beats_at_d(), (Steps{0, 1}));
}

TEST_F(Faults, ManualDeliveryReordersLanes) {
  const auto data = pattern(64, 1);
  sink_.expect(key_of(1), data.size());
  network_.hold(kP, kD);
  send_beats(0, 1);
  send_blocks(data);
  EXPECT_TRUE(at_d_.empty());
  EXPECT_TRUE(network_.deliver(kP, kD, MockNetwork::Lane::kBulk));
  EXPECT_FALSE(network_.deliver(kP, kD, MockNetwork::Lane::kBulk));
  network_.release(kP, kD);
  poll();
  ASSERT_EQ(at_d_.size(), 2U);
  EXPECT_TRUE(std::holds_alternative<BlocksReceived>(at_d_[0]));
  EXPECT_TRUE(std::holds_alternative<ControlReceived>(at_d_[1]));
}

TEST_F(Faults, KillAndRestart) {
  network_.kill(kD);
  poll();
  EXPECT_TRUE(std::holds_alternative<PeerDown>(at_p_.at(0)));
  EXPECT_EQ(p_->send_control(kD, key_of(1), beat(1)).error().code, ErrorCode::kPeerLost);
  d_ = network_.attach(test::hello("d1", NodeRole::kDecode));
  network_.connect(kP, kD);
  poll();
  EXPECT_TRUE(std::holds_alternative<PeerUp>(at_p_.at(1)));
}

TEST_F(Faults, HookSeesHeaders) {
  network_.set_hook([&](const NodeId&, const NodeId& to,
                        const wire::FrameHeader& header) -> std::optional<FaultAction> {
    const bool reset = to == kD && header.key == key_of(9);
    return reset ? std::optional(FaultAction::kReset) : std::nullopt;
  });
  send_beats(0, 1);
  poll();
  ASSERT_TRUE(p_->send_control(kD, key_of(9), beat(9)).has_value());
  poll();
  EXPECT_EQ(beats_at_d(), (Steps{0}));
  EXPECT_TRUE(std::holds_alternative<PeerDown>(at_d_.back()));
  EXPECT_TRUE(std::holds_alternative<PeerDown>(at_p_.back()));
}

}  // namespace
}  // namespace baton::handoff
