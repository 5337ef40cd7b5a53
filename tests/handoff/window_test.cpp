// Handoffs of a model with window layers: the same bits as on a single node, only the tiles that
// can still be seen go over, and neither node ever holds more of a window group than a window and a
// chunk.
#include <gtest/gtest.h>

#include "tests/handoff/cluster.h"

namespace baton::testing {
namespace {

using message::NodeRole;
using std::chrono::seconds;

constexpr std::int32_t kWindow = 70;
constexpr std::int32_t kStepTokens = 128;

// 2,048 tokens of a full group; of the window group what one sequence holds at once, and a block.
NodeSetup setup(std::int32_t block_tokens = 32) {
  NodeSetup result;
  result.backend.block_tokens = block_tokens;
  result.backend.max_step_tokens = kStepTokens;
  result.backend.groups = {FakeGroup{1, 2, 8, static_cast<std::uint32_t>(2048 / block_tokens), 0},
                           FakeGroup{3, 1, 16, 0, kWindow}};
  result.backend.groups[1].blocks =
      static_cast<std::uint32_t>((kWindow + kStepTokens) / block_tokens + 3);
  return result;
}

// A tile is a frame of its own, so that each chunk has some to send.
NodeSetup large() {
  NodeSetup result = setup();
  result.backend.groups[0].layers = 8;
  result.backend.groups[0].head_dim = 128;
  result.backend.groups[1].kv_heads = 3;
  result.backend.groups[1].head_dim = 128;
  return result;
}

// A cold run on a pool where nothing needs to be freed.
NodeSetup roomy() {
  NodeSetup result = setup();
  result.backend.groups[1].blocks = 64;
  return result;
}

void expect_same(Cluster& cluster, const SequenceKey& key, const message::Submit& submit,
                 const NodeSetup& reference = roomy()) {
  const Answer& answer = cluster.answer(key);
  ASSERT_TRUE(answer.finished) << (answer.error ? answer.error->message : "no end");
  EXPECT_EQ(answer.conflicts, 0);
  EXPECT_EQ(canonical(answer), single_node_answer(reference, submit));
}

struct Expected {
  std::int32_t prompt_tokens;
  std::uint64_t full_tiles;
  std::uint64_t window_tiles;  // covering [n - 69, n)
};
class WindowPrompts : public ::testing::TestWithParam<std::tuple<Expected, int>> {};

TEST_P(WindowPrompts, only_what_can_be_seen_goes_over) {
  const auto& [expected, slow_way_us] = GetParam();
  Cluster cluster;
  cluster.options.slow_way_us = slow_way_us;
  Node& p = cluster.add_engine("p", NodeRole::kPrefill, setup());
  Node& d = cluster.add_engine("d", NodeRole::kDecode, setup(64));
  Node& router = cluster.add_router();
  cluster.connect_all();
  message::Submit submit = make_submit(static_cast<std::uint64_t>(expected.prompt_tokens),
                                       expected.prompt_tokens, 150, 0.8F);
  submit.ignore_eos = true;
  const SequenceKey key = cluster.start(router, submit, "p", "d");
  ASSERT_TRUE(cluster.run_until([&] { return cluster.all_ended(); }, seconds(60)));
  expect_same(cluster, key, submit);
  EXPECT_EQ(d.engine->stats().prompt_tokens_computed, 0U);
  // f32, K and V: heads x head_dim x 32 tokens of each layer.
  const std::uint64_t bytes = expected.full_tiles * 1 * (2 * 2 * 8 * 32 * 4) +
                              expected.window_tiles * 3 * (2 * 1 * 16 * 32 * 4);
  EXPECT_EQ(p.backend->info().layout.handoff_bytes(expected.prompt_tokens), bytes);
  EXPECT_EQ(cluster.answer(key).kv_bytes, bytes);
  EXPECT_EQ(p.coordinator->stats().bytes_sent, bytes);
  EXPECT_EQ(d.coordinator->stats().bytes_received, bytes);
  EXPECT_TRUE(cluster.run_until([&] { return cluster.all_idle(); }, seconds(5)))
      << cluster.leftovers();
}

INSTANTIATE_TEST_SUITE_P(
    handoff, WindowPrompts,
    ::testing::Combine(::testing::Values(Expected{1, 1, 1}, Expected{32, 1, 1}, Expected{69, 3, 3},
                                         Expected{70, 3, 3}, Expected{71, 3, 3},
                                         Expected{101, 4, 3}, Expected{128, 4, 3},
                                         Expected{129, 5, 4}, Expected{500, 16, 3},
                                         Expected{1500, 47, 3}),
                       ::testing::Values(3'000, 0)));  // 0: also by tiles and layers

TEST(window, block_sizes_may_differ) {
  std::uint64_t seed = 300;
  for (const std::int32_t p_block : {32, 128, 256}) {
    for (const std::int32_t d_block : {32, 64, 256}) {
      Cluster cluster;
      cluster.add_engine("p", NodeRole::kPrefill, setup(p_block));
      cluster.add_engine("d", NodeRole::kDecode, setup(d_block));
      Node& router = cluster.add_router();
      cluster.connect_all();
      const message::Submit submit = make_submit(++seed, 777, 100, 0.7F);
      const SequenceKey key = cluster.start(router, submit, "p", "d");
      ASSERT_TRUE(cluster.run_until([&] { return cluster.all_ended(); }, seconds(60)));
      expect_same(cluster, key, submit);
    }
  }
}

// Blocks of the last window come while it is computed, into a lease that is being sent from already
// (or, with a late Grant, into one that is not).
TEST(window, tiles_leave_while_the_next_chunk_is_computed) {
  for (const bool late : {false, true}) {
    NodeSetup reference = large();
    reference.backend.groups[1].blocks = 64;
    Cluster cluster;
    Node& p = cluster.add_engine("p", NodeRole::kPrefill, large());
    Node& d = cluster.add_engine("d", NodeRole::kDecode, large());
    Node& router = cluster.add_router();
    cluster.connect_all();
    std::vector<std::uint64_t> received;
    p.backend->set_on_launch([&](const backend::StepPlan& plan) {
      received.push_back(d.coordinator->stats().bytes_received);
      EXPECT_EQ(received.back() > 0, !late && plan.sequences[0].start > 0);
    });
    if (late) {
      cluster.network.hold(d.id, p.id);
    }
    message::Submit submit = make_submit(21, 600, 40, 0.8F);
    submit.ignore_eos = true;
    const SequenceKey key = cluster.start(router, submit, "p", "d");
    ASSERT_TRUE(cluster.run_until([&] { return !cluster.answer(key).tokens.empty(); }, seconds(3)));
    cluster.network.release(d.id, p.id);
    ASSERT_TRUE(cluster.run_until([&] { return cluster.all_ended(); }, seconds(60)));
    expect_same(cluster, key, submit, reference);
    EXPECT_GE(received.size(), 5U);
    EXPECT_EQ(cluster.answer(key).kv_bytes, p.backend->info().layout.handoff_bytes(600));
    EXPECT_TRUE(cluster.run_until([&] { return cluster.all_idle(); }, seconds(5)))
        << cluster.leftovers();
  }
}

// The next turn of a conversation: the decode node has all but its end, in both groups.
TEST(window, only_what_the_decode_node_lacks_is_sent) {
  for (const std::int32_t d_block : {32, 128}) {
    Cluster cluster;
    cluster.add_engine("p", NodeRole::kPrefill, setup());
    Node& d = cluster.add_engine("d", NodeRole::kDecode, setup(d_block));
    Node& router = cluster.add_router();
    cluster.connect_all();
    message::Submit submit = make_submit(31, 500, 150, 0.8F);
    submit.ignore_eos = true;
    const SequenceKey key = cluster.start(router, submit, "p", "d");
    ASSERT_TRUE(cluster.run_until([&] { return cluster.all_ended(); }, seconds(60)));
    expect_same(cluster, key, submit);
    message::Submit next = make_submit(32, 40, 20, 0.8F);
    next.prompt = submit.prompt;
    for (const message::Token& token : cluster.answer(key).tokens) {
      next.prompt.push_back(token.token);
    }
    next.prompt.push_back(3);  // 651: 21 tiles, of which 649 rows make 20 whole ones
    const SequenceKey second = cluster.start(router, next, "p", "d");
    ASSERT_TRUE(cluster.run_until([&] { return cluster.all_ended(); }, seconds(60)));
    expect_same(cluster, second, next);
    EXPECT_EQ(cluster.answer(second).kv_bytes, d.backend->info().layout.handoff_bytes(32))
        << d_block;
    EXPECT_EQ(d.engine->stats().prompt_tokens_computed, 0U);
    EXPECT_TRUE(cluster.run_until([&] { return cluster.all_idle(); }, seconds(5)))
        << cluster.leftovers();
  }
}

// Several at once on pools that hold few: they wait, are preempted, and say the same.
TEST(window, many_at_once) {
  Cluster cluster;
  NodeSetup tight = setup();
  tight.backend.groups[1].blocks *= 2;
  cluster.add_engine("p", NodeRole::kPrefill, tight);
  cluster.add_engine("d", NodeRole::kDecode, tight);
  Node& router = cluster.add_router();
  cluster.connect_all();
  std::vector<message::Submit> submits;
  for (std::uint64_t i = 0; i < 10; ++i) {
    submits.push_back(make_submit(400 + i, static_cast<std::int32_t>(20 + i * 37), 60, 0.9F));
    cluster.start(router, submits.back(), "p", "d");
  }
  ASSERT_TRUE(cluster.run_until([&] { return cluster.all_ended(); }, seconds(120)))
      << cluster.leftovers();
  for (const message::Submit& submit : submits) {
    expect_same(cluster, submit.key, submit);
  }
  EXPECT_TRUE(cluster.run_until([&] { return cluster.all_idle(); }, seconds(5)))
      << cluster.leftovers();
}

}  // namespace
}  // namespace baton::testing
