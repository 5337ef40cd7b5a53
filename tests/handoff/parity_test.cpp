// The promise over MockTransport: whatever the split, batch, block size and step budget, an answer
// has the bits of a cold single node. The fake backend's tokens depend on every KV row they read.
#include <gtest/gtest.h>

#include "tests/handoff/cluster.h"

namespace baton::testing {
namespace {

using message::NodeRole;
using std::chrono::seconds;

NodeSetup setup(std::int32_t block_tokens = 32, std::int32_t max_step_tokens = 512) {
  NodeSetup result;
  result.backend.block_tokens = block_tokens;
  result.backend.max_step_tokens = max_step_tokens;
  for (FakeGroup& group : result.backend.groups) {
    group.blocks = static_cast<std::uint32_t>(8192 / block_tokens);
  }
  return result;
}

void expect_idle(Cluster& cluster) {
  EXPECT_TRUE(cluster.run_until([&] { return cluster.all_idle(); }, seconds(5)))
      << cluster.leftovers();
}

void expect_same(Cluster& cluster, const SequenceKey& key, const NodeSetup& reference,
                 const message::Submit& submit) {
  const Answer& answer = cluster.answer(key);
  ASSERT_TRUE(answer.finished) << to_string(key) << ": "
                               << (answer.error ? answer.error->message : "no end");
  EXPECT_EQ(answer.conflicts, 0);
  EXPECT_EQ(canonical(answer), single_node_answer(reference, submit));
}

class PromptLengths : public ::testing::TestWithParam<std::int32_t> {};

TEST_P(PromptLengths, split_is_identical_to_single_node) {
  for (const float temperature : {0.0F, 0.8F}) {
    Cluster cluster;
    cluster.options.slow_way_us = temperature > 0 ? 0 : 3'000;  // also by tiles and layers
    Node& p = cluster.add_engine("p", NodeRole::kPrefill, setup());
    Node& d = cluster.add_engine("d", NodeRole::kDecode, setup());
    Node& router = cluster.add_router();
    cluster.connect_all();
    message::Submit submit =
        make_submit(static_cast<std::uint64_t>(GetParam()), GetParam(), 24, temperature);
    submit.ignore_eos = true;
    const SequenceKey key = cluster.start(router, submit, "p", "d");
    ASSERT_TRUE(cluster.run_until([&] { return cluster.all_ended(); }, seconds(60)));
    expect_same(cluster, key, setup(), submit);
    expect_idle(cluster);
    // P made one token, D the rest without computing a prompt row; the bytes are as expected.
    EXPECT_EQ(p.engine->stats().tokens_generated, 1U);
    EXPECT_EQ(d.engine->stats().tokens_generated, 23U);
    EXPECT_EQ(d.engine->stats().prompt_tokens_computed, 0U);
    const std::uint64_t bytes = d.backend->info().layout.handoff_bytes(GetParam());
    EXPECT_EQ(cluster.answer(key).kv_bytes, bytes);
    EXPECT_EQ(p.coordinator->stats().bytes_sent, bytes);
    EXPECT_EQ(d.coordinator->stats().bytes_received, bytes);
    EXPECT_EQ(p.coordinator->stats().ok, 1U);
    EXPECT_EQ(d.coordinator->stats().ok, 1U);
    EXPECT_EQ(cluster.answer(key).nodes, (std::set<std::string>{"p", "d"}));
  }
}

INSTANTIATE_TEST_SUITE_P(handoff, PromptLengths,
                         ::testing::Values(1, 31, 32, 33, 64, 127, 128, 129, 1500));

TEST(parity, block_sizes_and_step_budgets_may_differ) {
  const std::int32_t sizes[] = {32, 64, 128, 256};
  std::uint64_t seed = 100;
  for (const std::int32_t p_block : sizes) {
    for (const std::int32_t d_block : sizes) {
      Cluster cluster;
      cluster.add_engine("p", NodeRole::kPrefill, setup(p_block, 48));
      cluster.add_engine("d", NodeRole::kDecode, setup(d_block, 512));
      Node& router = cluster.add_router();
      cluster.connect_all();
      const message::Submit submit = make_submit(++seed, 333, 12, 0.7F);
      const SequenceKey key = cluster.start(router, submit, "p", "d");
      ASSERT_TRUE(cluster.run_until([&] { return cluster.all_ended(); }, seconds(60)));
      expect_same(cluster, key, setup(), submit);
      expect_idle(cluster);
    }
  }
}

TEST(parity, two_prefill_and_two_decode_nodes_with_many_at_once) {
  Cluster cluster;
  cluster.add_engine("p1", NodeRole::kPrefill, setup(32, 64));
  cluster.add_engine("p2", NodeRole::kPrefill, setup(128, 256));
  cluster.add_engine("d1", NodeRole::kDecode, setup(64));
  cluster.add_engine("d2", NodeRole::kDecode, setup(256));
  Node& router = cluster.add_router();
  cluster.connect_all();
  std::vector<message::Submit> submits;
  for (std::uint64_t i = 0; i < 24; ++i) {
    submits.push_back(
        make_submit(1000 + i, static_cast<std::int32_t>(1 + i * 17), 20, i % 2 == 0 ? 0.0F : 0.9F));
    cluster.start(router, submits.back(), i % 2 == 0 ? "p1" : "p2", i % 4 < 2 ? "d1" : "d2");
  }
  ASSERT_TRUE(cluster.run_until([&] { return cluster.all_ended(); }, seconds(120)));
  for (const message::Submit& submit : submits) {
    expect_same(cluster, submit.key, setup(), submit);
  }
  expect_idle(cluster);
}

TEST(parity, roles_are_policy_and_either_node_may_do_both) {
  Cluster cluster;
  Node& p = cluster.add_engine("p", NodeRole::kPrefill, setup());
  Node& d = cluster.add_engine("d", NodeRole::kDecode, setup());
  Node& router = cluster.add_router();
  cluster.connect_all();
  const message::Submit on_p = make_submit(1, 40, 8);
  const message::Submit on_d = make_submit(2, 50, 8, 1.0F);
  const message::Submit reversed = make_submit(3, 60, 8, 1.0F);
  cluster.start(router, on_p, "p", "");
  cluster.start(router, on_d, "", "d");
  cluster.start(router, reversed, "d", "p");
  ASSERT_TRUE(cluster.run_until([&] { return cluster.all_ended(); }, seconds(60)));
  for (const message::Submit& submit : {on_p, on_d, reversed}) {
    expect_same(cluster, submit.key, setup(), submit);
  }
  EXPECT_EQ(p.coordinator->stats().local, 1U);
  EXPECT_EQ(d.coordinator->stats().local, 1U);
  expect_idle(cluster);
}

TEST(parity, a_node_may_own_clients_itself) {
  Cluster cluster;
  cluster.add_engine("p", NodeRole::kPrefill, setup());
  Node& d = cluster.add_engine("d", NodeRole::kDecode, setup());
  cluster.connect_all();
  const message::Submit submit = make_submit(4, 70, 8);
  ASSERT_TRUE(d.owner().send_decode(d.id, submit, NodeId{"p"}, cluster.clock.now()));
  ASSERT_TRUE(d.owner().send_prefill(NodeId{"p"}, submit, d.id, cluster.clock.now()));
  std::vector<message::Token> tokens;
  ASSERT_TRUE(cluster.run_until(
      [&] {
        for (handoff::OwnerEvent& event : d.owner().drain()) {
          if (auto* some = std::get_if<handoff::NodeTokens>(&event)) {
            tokens.insert(tokens.end(), some->tokens.begin(), some->tokens.end());
          }
        }
        return !tokens.empty() && tokens.back().finish != message::FinishReason::kNone;
      },
      seconds(30)));
  Answer answer;
  for (const message::Token& token : tokens) {
    if (token.index == static_cast<std::int32_t>(answer.tokens.size())) {
      answer.tokens.push_back(token);
    }
  }
  EXPECT_EQ(canonical(answer), single_node_answer(setup(), submit));
  expect_idle(cluster);
}

// B01: the first token is the end token; D runs no step, both gauges return.
TEST(parity, B01_ending_on_index_0) {
  Cluster cluster;
  cluster.add_engine("p", NodeRole::kPrefill, setup());
  Node& d = cluster.add_engine("d", NodeRole::kDecode, setup());
  Node& router = cluster.add_router();
  cluster.connect_all();
  message::Submit submit = make_submit(5, 45, 16);
  submit.sampling.logit_bias = {{2, 1e9F}};  // the end token
  const SequenceKey key = cluster.start(router, submit, "p", "d");
  ASSERT_TRUE(cluster.run_until([&] { return cluster.all_ended(); }, seconds(60)));
  expect_same(cluster, key, setup(), submit);
  ASSERT_EQ(cluster.answer(key).tokens.size(), 1U);
  EXPECT_EQ(cluster.answer(key).tokens[0].finish, message::FinishReason::kStop);
  expect_idle(cluster);
  EXPECT_EQ(d.engine->stats().step_count, 0U);
  EXPECT_EQ(d.coordinator->stats().bytes_received, 0U);
}

// The Commit with finish set may come before D has heard of the request.
TEST(parity, ending_on_index_0_before_the_decode_request_arrives) {
  Cluster cluster;
  cluster.add_engine("p", NodeRole::kPrefill, setup());
  Node& d = cluster.add_engine("d", NodeRole::kDecode, setup());
  Node& router = cluster.add_router();
  cluster.connect_all();
  cluster.network.set_delay(router.id, d.id, std::chrono::milliseconds(300));
  const message::Submit submit = make_submit(6, 45, 1);
  const SequenceKey key = cluster.start(router, submit, "p", "d");
  ASSERT_TRUE(cluster.run_until([&] { return cluster.all_ended(); }, seconds(60)));
  expect_same(cluster, key, setup(), submit);
  EXPECT_EQ(cluster.answer(key).tokens[0].finish, message::FinishReason::kLength);
  cluster.run_for(seconds(1));
  expect_idle(cluster);
  EXPECT_EQ(d.engine->stats().step_count, 0U);
}

// B02: P's counter rises by exactly one whatever the limits are.
TEST(parity, B02_the_prefill_leg_makes_one_token) {
  for (const std::int32_t max_tokens : {1, 2, 8, 64}) {
    Cluster cluster;
    Node& p = cluster.add_engine("p", NodeRole::kPrefill, setup());
    cluster.add_engine("d", NodeRole::kDecode, setup());
    Node& router = cluster.add_router();
    cluster.connect_all();
    message::Submit submit = make_submit(7, 30, max_tokens, 0.5F);
    submit.min_tokens = std::min(5, max_tokens);
    const SequenceKey key = cluster.start(router, submit, "p", "d");
    ASSERT_TRUE(cluster.run_until([&] { return cluster.all_ended(); }, seconds(60)));
    expect_same(cluster, key, setup(), submit);
    EXPECT_EQ(p.engine->stats().tokens_generated, 1U);
    expect_idle(cluster);
  }
}

// A replay carries what the client has; the answer goes on at index emitted.size().
TEST(parity, a_higher_epoch_replaces_the_lower_and_goes_on) {
  Cluster cluster;
  cluster.add_engine("p", NodeRole::kPrefill, setup());
  Node& d = cluster.add_engine("d", NodeRole::kDecode, setup());
  Node& router = cluster.add_router();
  cluster.connect_all();
  message::Submit submit = make_submit(8, 90, 30, 0.8F);
  submit.ignore_eos = true;
  const SequenceKey key = cluster.start(router, submit, "p", "d");
  ASSERT_TRUE(
      cluster.run_until([&] { return cluster.answer(key).tokens.size() >= 10; }, seconds(9)));
  message::Submit replay = submit;
  replay.key.epoch.value = 1;
  for (const message::Token& token : cluster.answer(key).tokens) {
    replay.emitted.push_back(token.token);
  }
  const std::size_t emitted = replay.emitted.size();
  Answer& second = cluster.answer(replay.key);
  second.tokens = cluster.answer(key).tokens;
  cluster.start(router, replay, "p", "d");
  ASSERT_TRUE(cluster.run_until([&] { return second.ended(); }, seconds(60)));
  ASSERT_TRUE(second.finished) << second.error->message;
  EXPECT_EQ(second.tokens.size(), 30U);
  EXPECT_GT(30U, emitted);
  EXPECT_EQ(canonical(second), single_node_answer(setup(), submit));
  router.owner().abort(key, Error{ErrorCode::kCancelled, "replaced"});
  expect_idle(cluster);
  EXPECT_EQ(d.engine->stats().ended_as(engine::EndReason::kAborted), 1U);
}

}  // namespace
}  // namespace baton::testing
