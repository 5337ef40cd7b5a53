// The seed's parity test: a prefill node and a decode node, each its own engine, thread and
// process- like set of loops, joined by real TCP over loopback, KV by TCP or by UCX; the stream is
// identical to a single node's.
#include "baton/handoff/handshake.h"
#include "baton/handoff/tcp_transport.h"
#include "baton/net/event_loop.h"

#include <boost/asio/use_future.hpp>
#include <gtest/gtest.h>

#include "tests/handoff/cluster.h"
#include "tests/support/certificates.h"
#include "tests/support/fabrics.h"
#include <atomic>
#include <functional>
#include <future>
#include <thread>

namespace baton::testing {
namespace {

using message::NodeRole;

NodeSetup setup(std::int32_t block_tokens) {
  NodeSetup result;
  result.backend.block_tokens = block_tokens;
  result.backend.max_step_tokens = 128;
  result.backend.groups[0] = {6, 4, 64, static_cast<std::uint32_t>(16'384 / block_tokens)};
  return result;
}

// What joins the nodes of a test.
struct Links {
  TestAuthority* authority = nullptr;  // of TLS; then there is a cluster token, too
  std::shared_ptr<net::Fabric> fabric = nullptr;
  std::int64_t slow_way_us = 3'000;
};

class TcpNode {
 public:
  // on_launch: FakeBackend's, on the engine thread.
  TcpNode(const std::string& id, NodeRole role, const NodeSetup* setup,
          std::vector<net::HostPort> peers,
          std::function<void(const backend::StepPlan&)> on_launch = {}, const Links& links = {}) {
    message::NodeInfo info;
    info.id = NodeId{id};
    info.role = role;
    handoff::EngineLink link;
    if (setup != nullptr) {
      backend_ = std::make_unique<FakeBackend>(setup->backend);
      backend_->set_on_launch(std::move(on_launch));
      engine_ = std::make_unique<engine::BatchScheduler>(*backend_, clock_, setup->engine, events_);
      info.exactness_tag = backend_->info().exactness_tag;
      info.max_context_tokens = backend_->info().max_context_tokens;
      info.pool_tokens = engine_->probe_block_geometry().pool_tokens;
      link.post = [this](message::EngineCommand&& command) {
        return engine_->post(std::move(command));
      };
      link.events = &events_;
      link.layout = backend_->info().layout;
      link.load = [this] {
        message::NodeLoad load;
        load.step_count = engine_->stats().step_count;
        load.turn_count = engine_->stats().turn_count;
        return load;
      };
    }
    const std::string digest(64, 'a');
    handoff::TcpTransportOptions options;
    options.hello = handoff::make_hello(info, link.layout, setup != nullptr ? digest : "", digest);
    options.peers = std::move(peers);
    options.fabric = setup != nullptr ? links.fabric : nullptr;
    if (links.authority != nullptr) {
      options.tls = links.authority->node(id);
      options.token = std::make_shared<const handoff::ClusterToken>(
          *handoff::ClusterToken::parse("a secret of the whole cluster"));
    }
    if (setup != nullptr) {
      options.serving_bind = net::HostPort{"127.0.0.1", 0};
    }
    transport_ =
        std::make_unique<handoff::TcpTransport>(control_.executor(), &io_, std::move(options));
    handoff::CoordinatorOptions coordinator;
    coordinator.self = info.id;
    coordinator.slow_way_us = links.slow_way_us;
    coordinator_ = std::make_unique<handoff::ServingCoordinator>(
        control_.executor(), coordinator, transport_.get(), setup != nullptr ? &link : nullptr,
        clock_);
    const Status started = transport_->start();
    EXPECT_TRUE(started.has_value());
    ran_ = asio::co_spawn(control_.executor(), coordinator_->run(), asio::use_future);
    if (engine_) {
      thread_ = std::thread([this] { engine_->run(); });
    }
  }

  ~TcpNode() {
    asio::post(control_.executor(), [this] { coordinator_->stop(); });
    ran_.get();
    if (engine_) {
      engine_->stop();
      thread_.join();
      engine_->check_integrity();
      EXPECT_EQ(backend_->bad_rows_read(), 0U);
    }
    io_.stop();  // its threads may still be leaving what control waited for
    control_.stop();
    coordinator_.reset();
    transport_.reset();
  }

  // Before it is asked anything.
  FakeBackend& backend() { return *backend_; }
  [[nodiscard]] net::HostPort address() const { return transport_->serving_address(); }
  handoff::Owner& owner() { return coordinator_->owner(); }
  const engine::EngineStats& stats() { return engine_->stats(); }
  const handoff::TransportStats& transport() { return transport_->stats(); }
  const handoff::HandoffStats& handoffs() { return coordinator_->stats(); }
  asio::any_io_executor executor() { return control_.executor(); }
  TimePoint now() { return clock_.now(); }

 private:
  net::SystemAsyncClock clock_;
  net::IoPool io_{2};
  net::EventLoop control_{"test-control"};
  engine::EventQueue events_{1 << 20};
  std::unique_ptr<FakeBackend> backend_;
  std::unique_ptr<engine::BatchScheduler> engine_;
  std::unique_ptr<handoff::TcpTransport> transport_;
  std::unique_ptr<handoff::ServingCoordinator> coordinator_;
  std::future<void> ran_;
  std::thread thread_;
};

using Answers = std::map<SequenceKey, Answer>;

// Waits for both nodes, sends everything, and takes events until every answer has ended. Thread:
// the router's control loop.
asio::awaitable<Answers> ask(TcpNode& router, std::vector<message::Submit> submits) {
  std::set<std::string> up;
  Answers answers;
  std::size_t ended = 0;
  while (up.size() < 2) {
    const auto event = co_await router.owner().next();
    if (!event) {
      co_return answers;
    }
    if (std::holds_alternative<message::NodeUp>(*event)) {
      up.insert(std::get<message::NodeUp>(*event).info.id.value);
    }
  }
  for (const message::Submit& submit : submits) {
    EXPECT_TRUE(router.owner().send_decode(NodeId{"d"}, submit, NodeId{"p"}, router.now()));
    EXPECT_TRUE(router.owner().send_prefill(NodeId{"p"}, submit, NodeId{"d"}, router.now()));
  }
  while (ended < submits.size()) {
    auto event = co_await router.owner().next();
    if (!event) {
      break;
    }
    if (auto* tokens = std::get_if<handoff::NodeTokens>(&*event)) {
      for (message::Token& token : tokens->tokens) {
        Answer& answer = answers[token.key];
        answer.kv_bytes = std::max(answer.kv_bytes, token.kv_bytes);
        if (token.index == static_cast<std::int32_t>(answer.tokens.size())) {
          answer.finished = token.finish != message::FinishReason::kNone;
          ended += answer.finished ? 1 : 0;
          answer.tokens.push_back(std::move(token));
        }
      }
    } else if (auto* refused = std::get_if<handoff::NodeRefused>(&*event)) {
      answers[refused->refused.key].error = refused->refused.error;
      ++ended;
    } else if (auto* finished = std::get_if<handoff::NodeFinished>(&*event)) {
      answers[finished->finished.key].error = finished->finished.error;
      ++ended;
    }
  }
  co_return answers;
}

void expect_parity(std::int32_t p_block, std::int32_t d_block, const Links& links = {}) {
  const NodeSetup p_setup = setup(p_block);
  const NodeSetup d_setup = setup(d_block);
  std::vector<message::Submit> submits;
  const std::int32_t lengths[] = {1, 31, 32, 33, 300, 1500, 77, 512};
  for (std::uint64_t i = 0; i < 8; ++i) {
    submits.push_back(make_submit(900 + i, lengths[i], 16, i % 2 == 0 ? 0.0F : 0.9F));
    submits.back().ignore_eos = true;
  }
  TcpNode d("d", NodeRole::kDecode, &d_setup, {}, {}, links);
  TcpNode p("p", NodeRole::kPrefill, &p_setup, {d.address()}, {}, links);
  TcpNode router("router", NodeRole::kRouter, nullptr, {p.address(), d.address()}, {}, links);
  auto asked = asio::co_spawn(router.executor(), ask(router, submits), asio::use_future);
  ASSERT_EQ(asked.wait_for(std::chrono::seconds(60)), std::future_status::ready);
  const Answers answers = asked.get();
  std::uint64_t bytes = 0;
  for (const message::Submit& submit : submits) {
    const Answer& answer = answers.at(submit.key);
    ASSERT_TRUE(answer.finished) << (answer.error ? answer.error->message : "no end");
    EXPECT_EQ(canonical(answer), single_node_answer(p_setup, submit));
    bytes += answer.kv_bytes;
  }
  // The KV did come over: the decode node computed no prompt row, the prefill node one token each.
  EXPECT_EQ(d.stats().prompt_tokens_computed, 0U);
  EXPECT_EQ(p.stats().tokens_generated, submits.size());
  EXPECT_EQ(p.handoffs().bytes_sent, bytes);
  EXPECT_EQ(d.handoffs().bytes_received, bytes);
  const bool by_lane = links.fabric != nullptr;
  EXPECT_EQ(d.transport().fabric.bytes_received, by_lane ? bytes : 0);
  EXPECT_EQ(d.transport().tcp.bytes_received, by_lane ? 0 : bytes);
}

// Waits until a node has so many bytes of KV. False: not in 20 s. Thread: an engine's.
bool has_received(const handoff::HandoffStats& node, std::uint64_t bytes) {
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (node.bytes_received < bytes) {
    if (std::chrono::steady_clock::now() > give_up) {
      return false;
    }
    std::this_thread::yield();
  }
  return true;
}

// Each step of the prefill node begins only when the blocks of all steps before it are on the
// decode node: a node that sent everything at the end would wait for ever here.
void expect_streamed(const Links& links) {
  const NodeSetup both = setup(32);
  std::atomic<const handoff::HandoffStats*> received{nullptr};
  std::atomic<int> late{0};
  std::atomic<int> steps{0};
  const std::uint64_t tile_bytes =
      FakeBackend(both.backend).info().layout.handoff_bytes(kv::kTileTokens);
  const auto wait_for_blocks = [&](const backend::StepPlan& plan) {
    const auto tiles = static_cast<std::uint64_t>(plan.sequences[0].start / kv::kTileTokens);
    ++steps;
    late += has_received(*received.load(), tiles * tile_bytes) ? 0 : 1;
  };
  TcpNode d("d", NodeRole::kDecode, &both, {}, {}, links);
  received = &d.handoffs();
  TcpNode p("p", NodeRole::kPrefill, &both, {d.address()}, wait_for_blocks, links);
  TcpNode router("router", NodeRole::kRouter, nullptr, {p.address(), d.address()});
  const message::Submit submit = make_submit(950, 1500, 16, 0.9F);
  auto asked = asio::co_spawn(router.executor(), ask(router, {submit}), asio::use_future);
  ASSERT_EQ(asked.wait_for(std::chrono::seconds(60)), std::future_status::ready);
  const Answers answers = asked.get();
  ASSERT_TRUE(answers.at(submit.key).finished);
  EXPECT_EQ(canonical(answers.at(submit.key)), single_node_answer(both, submit));
  EXPECT_EQ(late, 0);
  EXPECT_GE(steps, 12);
  EXPECT_EQ(d.handoffs().bytes_received, 47 * tile_bytes);
  EXPECT_EQ(d.transport().fabric.bytes_received, links.fabric ? 47 * tile_bytes : 0);
}

// The engine goes on with the next layer of the last chunk only when what was told of before is on
// the decode node.
void expect_layers(const Links& links) {
  const NodeSetup both = setup(32);
  std::atomic<int> waits{0};
  std::atomic<bool> late{false};
  const std::uint64_t tile_bytes =
      FakeBackend(both.backend).info().layout.handoff_bytes(kv::kTileTokens);
  TcpNode d("d", NodeRole::kDecode, &both, {}, {}, links);
  TcpNode p("p", NodeRole::kPrefill, &both, {d.address()}, {}, links);
  p.backend().set_on_layer([&](const backend::SequencePlan& plan, const backend::LayerDone& done) {
    const auto whole = static_cast<std::uint64_t>(plan.start / kv::kTileTokens);
    const std::uint64_t rest = 47 - whole;
    const std::uint64_t expected =
        whole * tile_bytes + rest * tile_bytes / 6 * (std::uint64_t{done.layer} + 1);
    if (has_received(d.handoffs(), expected)) {
      ++waits;
    } else {
      late = true;
    }
  });
  TcpNode router("router", NodeRole::kRouter, nullptr, {p.address(), d.address()});
  const message::Submit submit = make_submit(951, 1500, 16, 0.9F);
  auto asked = asio::co_spawn(router.executor(), ask(router, {submit}), asio::use_future);
  ASSERT_EQ(asked.wait_for(std::chrono::seconds(60)), std::future_status::ready);
  const Answers answers = asked.get();
  ASSERT_TRUE(answers.at(submit.key).finished);
  EXPECT_EQ(canonical(answers.at(submit.key)), single_node_answer(both, submit));
  EXPECT_FALSE(late);
  EXPECT_EQ(waits, 6);
  EXPECT_EQ(d.handoffs().bytes_received, 47 * tile_bytes);
}

TEST(tcp, layers_arrive_while_the_last_chunk_is_computed) {
  Links links;
  links.slow_way_us = 0;
  expect_layers(links);
}

TEST(tcp, serving_role_loop_parity_by_tiles_and_layers) {
  Links links;
  links.slow_way_us = 0;
  expect_parity(128, 128, links);
  expect_parity(32, 256, links);
  expect_parity(128, 64, links);
}

TEST(tcp, blocks_arrive_while_the_next_chunk_is_computed) { expect_streamed({}); }

TEST(tcp, serving_role_loop_parity_matches_single_node) { expect_parity(128, 128); }

TEST(tcp, serving_role_loop_parity_matches_single_node_with_unlike_blocks) {
  expect_parity(32, 256);
  expect_parity(128, 64);
}

TEST(tcp, serving_role_loop_parity_over_tls_with_a_token) {
  TestAuthority authority;
  Links links;
  links.authority = &authority;
  expect_parity(32, 256, links);
}

// None where this build has no UCX.
class ByUcx : public ::testing::TestWithParam<std::string> {
 protected:
  Links links_{nullptr, fabric_of(GetParam())};
};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(ByUcx);
INSTANTIATE_TEST_SUITE_P(ways, ByUcx, ::testing::ValuesIn(fabric_kinds()),
                         [](const auto& param) { return param.param; });

TEST_P(ByUcx, serving_role_loop_parity_matches_single_node) { expect_parity(128, 128, links_); }

TEST_P(ByUcx, serving_role_loop_parity_matches_single_node_with_unlike_blocks) {
  expect_parity(32, 256, links_);
  expect_parity(128, 64, links_);
}

TEST_P(ByUcx, layers_arrive_while_the_last_chunk_is_computed) {
  links_.slow_way_us = 0;
  expect_layers(links_);
}

TEST_P(ByUcx, blocks_arrive_while_the_next_chunk_is_computed) { expect_streamed(links_); }

}  // namespace
}  // namespace baton::testing
