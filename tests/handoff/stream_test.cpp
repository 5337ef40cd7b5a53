// KV moves while the prompt is computed, only what is lacking moves, and what arrived is not sent
// again. Order is told by events: what has arrived when a step begins.
#include <gtest/gtest.h>

#include "tests/handoff/cluster.h"

namespace baton::testing {
namespace {

using handoff::FaultAction;
using message::NodeRole;
using std::chrono::milliseconds;
using std::chrono::seconds;
using wire::FrameType;

constexpr std::int32_t kPrompt = 330;  // 11 tiles, the last of 10 tokens
constexpr std::int32_t kTile = kv::kTileTokens;

// A tile of all layers is 256 KiB: with blocks of 32 tokens a frame each.
NodeSetup setup(std::int32_t block_tokens = 32, std::int32_t max_step_tokens = 64) {
  NodeSetup result;
  result.backend.block_tokens = block_tokens;
  result.backend.max_step_tokens = max_step_tokens;
  result.backend.groups[0] = {4, 4, 64, static_cast<std::uint32_t>(2048 / block_tokens)};
  return result;
}

message::Submit request(std::uint64_t seed, std::int32_t prompt = kPrompt) {
  message::Submit submit = make_submit(seed, prompt, 8, 0.8F);
  submit.ignore_eos = true;
  return submit;
}

struct Nodes {
  Cluster cluster;
  Node* p = nullptr;
  Node* p2 = nullptr;
  Node* d = nullptr;
  Node* router = nullptr;
  std::uint64_t tile_bytes = 0;  // of all layers and heads

  explicit Nodes(const NodeSetup& p_setup = setup(), const NodeSetup& d_setup = setup()) {
    cluster.options.ack_bytes = 1;
    p = &cluster.add_engine("p", NodeRole::kPrefill, p_setup);
    p2 = &cluster.add_engine("p2", NodeRole::kPrefill, p_setup);
    d = &cluster.add_engine("d", NodeRole::kDecode, d_setup);
    router = &cluster.add_router();
    cluster.connect_all();
    tile_bytes = d->backend->info().layout.handoff_bytes(kTile);
  }
  [[nodiscard]] std::uint64_t tiles_received() const {
    return d->coordinator->stats().bytes_received / tile_bytes;
  }
  // The first row that the step computes.
  [[nodiscard]] static std::uint64_t first_row(const backend::StepPlan& plan) {
    return static_cast<std::uint64_t>(plan.sequences[0].start);
  }
  [[nodiscard]] std::uint64_t tiles_sent(const Node& by) const {
    return by.coordinator->stats().bytes_sent / tile_bytes;
  }
  void finish(const SequenceKey& key) {
    ASSERT_TRUE(cluster.run_until([&] { return cluster.answer(key).ended(); }, seconds(60)));
    ASSERT_TRUE(cluster.answer(key).finished)
        << (cluster.answer(key).error ? cluster.answer(key).error->message : "no end");
  }
  void finish_same(const SequenceKey& key, const message::Submit& submit) {
    finish(key);
    EXPECT_EQ(canonical(cluster.answer(key)), single_node_answer(setup(), submit));
    EXPECT_EQ(cluster.answer(key).conflicts, 0);
    EXPECT_TRUE(cluster.run_until([&] { return cluster.all_idle(); }, seconds(5)))
        << cluster.leftovers();
  }
};

TEST(stream, a_chunk_arrives_before_the_next_is_computed) {
  Nodes nodes;
  int chunks = 0;
  nodes.p->backend->set_on_launch([&](const backend::StepPlan& plan) {
    // At the start of each step: all rows of the steps before it are on the decode node.
    EXPECT_EQ(nodes.tiles_received(), Nodes::first_row(plan) / kTile);
    EXPECT_EQ(nodes.d->engine->stats().tokens_generated, 0U);
    ++chunks;
  });
  const message::Submit submit = request(1);
  const SequenceKey key = nodes.cluster.start(*nodes.router, submit, "p", "d");
  nodes.finish_same(key, submit);
  EXPECT_GE(chunks, 5);
  EXPECT_EQ(nodes.tiles_received(), 11U);
  EXPECT_EQ(nodes.cluster.answer(key).kv_bytes, 11 * nodes.tile_bytes);
  EXPECT_EQ(nodes.d->engine->stats().prompt_tokens_computed, 0U);
  EXPECT_EQ(nodes.p->coordinator->stats().whole.counts[0] +
                nodes.p->coordinator->stats().whole.counts[1] +
                nodes.p->coordinator->stats().whole.counts[2] +
                nodes.p->coordinator->stats().whole.counts[3],
            1U);
}

// Larger blocks leave when they are whole.
TEST(stream, whole_blocks_leave) {
  Nodes nodes(setup(128), setup(64));
  nodes.p->backend->set_on_launch([&](const backend::StepPlan& plan) {
    EXPECT_EQ(nodes.tiles_received(), Nodes::first_row(plan) / 128 * 4);
  });
  const message::Submit submit = request(2);
  nodes.finish_same(nodes.cluster.start(*nodes.router, submit, "p", "d"), submit);
  EXPECT_EQ(nodes.cluster.network.frames_sent(nodes.p->id, nodes.d->id, FrameType::kBlocks), 3U);
}

// The prefill node runs ahead of its Grant, to the end if need be: index 0 waits for nobody, and
// nothing is lost.
TEST(stream, a_late_grant_finds_everything) {
  for (const std::int32_t at : {0, 64, 192, kPrompt}) {
    Nodes nodes;
    nodes.cluster.network.hold(nodes.d->id, nodes.p->id);
    nodes.p->backend->set_on_launch([&](const backend::StepPlan& plan) {
      if (plan.sequences[0].start >= at) {
        nodes.cluster.network.release(nodes.d->id, nodes.p->id);
      } else {
        EXPECT_EQ(nodes.tiles_received(), 0U);
      }
    });
    const message::Submit submit = request(3);
    const SequenceKey key = nodes.cluster.start(*nodes.router, submit, "p", "d");
    if (at == kPrompt) {
      ASSERT_TRUE(nodes.cluster.run_until([&] { return !nodes.cluster.answer(key).tokens.empty(); },
                                          seconds(1)));
      EXPECT_EQ(nodes.tiles_received(), 0U);
      nodes.cluster.network.release(nodes.d->id, nodes.p->id);
    }
    nodes.finish_same(key, submit);
    EXPECT_EQ(nodes.tiles_received(), 11U);
  }
}

// Most of the KV is there already when the first token ends the sequence: it serves the next one.
TEST(stream, ending_on_index_0_after_most_was_sent) {
  Nodes nodes;
  message::Submit submit = request(4);
  submit.ignore_eos = false;
  submit.sampling.logit_bias = {{2, 1e9F}};  // the end token
  const SequenceKey key = nodes.cluster.start(*nodes.router, submit, "p", "d");
  nodes.finish_same(key, submit);
  EXPECT_EQ(nodes.cluster.answer(key).tokens.size(), 1U);
  EXPECT_EQ(nodes.d->engine->stats().step_count, 0U);
  const std::uint64_t sent = nodes.tiles_sent(*nodes.p);
  EXPECT_GE(sent, 5U);
  EXPECT_LT(sent, 11U);
  message::Submit next = request(5);
  next.prompt = submit.prompt;
  nodes.finish_same(nodes.cluster.start(*nodes.router, next, "p", "d"), next);
  EXPECT_EQ(nodes.tiles_sent(*nodes.p), 11U);  // in all
}

// Blocks are the prefill node's own again as they are acked, not only at the end.
TEST(stream, acked_blocks_are_given_back_before_the_last_ack) {
  Nodes nodes;
  nodes.cluster.network.add_fault(
      {nodes.p->id, nodes.d->id, FrameType::kCommit, 1, FaultAction::kDrop});
  const SequenceKey key = nodes.cluster.start(*nodes.router, request(6), "p", "d");
  ASSERT_TRUE(nodes.cluster.run_until(
      [&] {
        return !nodes.cluster.answer(key).tokens.empty() &&
               nodes.p->engine->stats().groups[0].used_blocks == 0;
      },
      seconds(1)));
  EXPECT_EQ(nodes.p->engine->stats().leases, 1U);
  EXPECT_EQ(nodes.p->engine->stats().handing_off, 1U);
  EXPECT_GE(nodes.cluster.network.frames_sent(nodes.d->id, nodes.p->id, FrameType::kAck), 11U);
  ASSERT_TRUE(nodes.cluster.run_until([&] { return nodes.cluster.all_idle(); }, seconds(30)));
}

TEST(partial, only_what_the_decode_node_lacks_is_sent) {
  for (const std::int32_t p_block : {32, 128}) {
    for (const std::int32_t d_block : {32, 64, 256}) {
      Nodes nodes(setup(p_block), setup(d_block));
      const message::Submit first = request(7);
      nodes.finish_same(nodes.cluster.start(*nodes.router, first, "p", "d"), first);
      ASSERT_EQ(nodes.tiles_received(), 11U);
      // Again, by another prefill node: the last token's tile comes over, no more.
      message::Submit second = request(8);
      second.prompt = first.prompt;
      const SequenceKey again = nodes.cluster.start(*nodes.router, second, "p2", "d");
      nodes.finish_same(again, second);
      EXPECT_EQ(nodes.tiles_sent(*nodes.p2), 1U) << p_block << ' ' << d_block;
      EXPECT_EQ(nodes.cluster.answer(again).kv_bytes, nodes.tile_bytes);
      EXPECT_EQ(nodes.p2->engine->stats().prompt_tokens_computed, 330U);
      // A prompt that goes on differently after 200 tokens.
      message::Submit third = request(9);
      std::copy_n(first.prompt.begin(), 200, third.prompt.begin());
      const SequenceKey branch = nodes.cluster.start(*nodes.router, third, "p2", "d");
      nodes.finish_same(branch, third);
      EXPECT_EQ(nodes.cluster.answer(branch).kv_bytes, (11 - 6) * nodes.tile_bytes);
    }
  }
}

// What the prefill node has cached leaves before it computes anything: it is there when the first
// step ends.
TEST(partial, a_cached_prefix_leaves_at_admission) {
  Nodes nodes;
  const message::Submit known = request(10, 200);
  nodes.finish(nodes.cluster.start(*nodes.router, known, "p", ""));
  message::Submit submit = request(11);
  std::copy(known.prompt.begin(), known.prompt.end(), submit.prompt.begin());
  int steps = 0;
  nodes.p->backend->set_on_launch([&](const backend::StepPlan& plan) {
    if (++steps == 1) {
      EXPECT_EQ(plan.sequences[0].start, 192);
      for (int i = 0; i < 10; ++i) {  // the others go on meanwhile
        nodes.cluster.context.restart();
        nodes.cluster.context.poll();
        nodes.d->engine->run_once();
      }
      EXPECT_EQ(nodes.tiles_received(), 6U);
    }
  });
  nodes.finish_same(nodes.cluster.start(*nodes.router, submit, "p", "d"), submit);
  EXPECT_GE(steps, 2);
}

// Tiles that arrived whole survive their sender: the next epoch, by another prefill node, sends the
// rest only.
TEST(partial, a_retry_after_a_death_sends_only_the_rest) {
  for (const std::uint64_t dies_after : {1U, 3U, 6U, 10U}) {
    Nodes nodes;
    nodes.p->backend->set_on_launch([&](const backend::StepPlan&) {
      if (nodes.tiles_received() >= dies_after) {
        nodes.p->frozen = true;
        nodes.cluster.network.kill(nodes.p->id);
      }
    });
    const message::Submit submit = request(12);
    const SequenceKey key = nodes.cluster.start(*nodes.router, submit, "p", "d");
    ASSERT_TRUE(
        nodes.cluster.run_until([&] { return nodes.cluster.answer(key).ended(); }, seconds(9)));
    ASSERT_FALSE(nodes.cluster.answer(key).finished);
    const std::uint64_t arrived = nodes.tiles_received();
    ASSERT_GE(arrived, dies_after);
    ASSERT_LT(arrived, 11U);

    message::Submit retry = submit;
    retry.key.epoch.value = 1;
    const SequenceKey again = nodes.cluster.start(*nodes.router, retry, "p2", "d");
    nodes.cluster.run_until([&] { return nodes.cluster.answer(again).ended(); }, seconds(60));
    ASSERT_TRUE(nodes.cluster.answer(again).finished);
    EXPECT_EQ(canonical(nodes.cluster.answer(again)), single_node_answer(setup(), submit));
    EXPECT_EQ(nodes.tiles_sent(*nodes.p2), 11 - arrived);
    EXPECT_EQ(nodes.cluster.answer(again).kv_bytes, (11 - arrived) * nodes.tile_bytes);
    EXPECT_EQ(nodes.d->engine->stats().prompt_tokens_computed, 0U);
    nodes.p->frozen = false;
    EXPECT_TRUE(nodes.cluster.run_until(
        [&] { return nodes.d->engine->idle() && nodes.p2->engine->idle(); }, seconds(5)))
        << nodes.cluster.leftovers();
  }
}

// The same when index 0 was given out already: the replay carries it.
TEST(partial, a_replay_with_index_0_sends_only_the_rest) {
  Nodes nodes;
  nodes.cluster.network.add_fault(
      {nodes.p->id, nodes.d->id, FrameType::kCommit, 1, FaultAction::kReset});
  const message::Submit submit = request(13);
  const SequenceKey key = nodes.cluster.start(*nodes.router, submit, "p", "d");
  ASSERT_TRUE(
      nodes.cluster.run_until([&] { return nodes.cluster.answer(key).ended(); }, seconds(9)));
  ASSERT_FALSE(nodes.cluster.answer(key).finished);
  ASSERT_EQ(nodes.cluster.answer(key).tokens.size(), 1U);
  message::Submit replay = submit;
  replay.key.epoch.value = 1;
  replay.emitted = {nodes.cluster.answer(key).tokens[0].token};
  nodes.cluster.answer(replay.key).tokens = nodes.cluster.answer(key).tokens;
  const SequenceKey again = nodes.cluster.start(*nodes.router, replay, "p2", "d");
  nodes.finish_same(again, submit);
  EXPECT_EQ(nodes.tiles_sent(*nodes.p2), 1U);
}

// A frame that was damaged costs its own tiles, not those before it.
TEST(partial, tiles_before_a_damaged_one_are_kept) {
  Nodes nodes;
  nodes.cluster.network.add_fault(
      {nodes.p->id, nodes.d->id, FrameType::kBlocks, 5, FaultAction::kCorrupt});
  const message::Submit submit = request(14);
  const SequenceKey key = nodes.cluster.start(*nodes.router, submit, "p", "d");
  ASSERT_TRUE(
      nodes.cluster.run_until([&] { return nodes.cluster.answer(key).ended(); }, seconds(9)));
  ASSERT_FALSE(nodes.cluster.answer(key).finished);
  message::Submit retry = submit;
  retry.key.epoch.value = 1;
  const SequenceKey again = nodes.cluster.start(*nodes.router, retry, "p2", "d");
  nodes.finish_same(again, submit);
  EXPECT_EQ(nodes.tiles_sent(*nodes.p2), 11U - 4U);
}

// Without a prefix cache nothing is kept, and everything is sent.
TEST(partial, a_node_without_a_prefix_cache_gets_everything) {
  NodeSetup d_setup = setup();
  d_setup.engine.prefix_cache = false;
  Nodes nodes(setup(), d_setup);
  for (std::uint64_t seed = 15; seed <= 16; ++seed) {
    message::Submit submit = request(seed);
    submit.prompt = request(15).prompt;
    const SequenceKey key = nodes.cluster.start(*nodes.router, submit, "p", "d");
    nodes.finish_same(key, submit);
    EXPECT_EQ(nodes.cluster.answer(key).kv_bytes, 11 * nodes.tile_bytes);
  }
}

// Namespaces keep prefixes apart on the decode node too.
TEST(partial, another_namespace_shares_nothing) {
  Nodes nodes;
  for (std::uint8_t space = 1; space <= 2; ++space) {
    message::Submit submit = request(17);
    submit.key.request.low += space;
    submit.cache_namespace[0] = space;
    const SequenceKey key = nodes.cluster.start(*nodes.router, submit, "p", "d");
    nodes.finish(key);
    EXPECT_EQ(nodes.cluster.answer(key).kv_bytes, 11 * nodes.tile_bytes);
  }
}

// Many at once over few blocks, prompts that share and prompts that do not, both ways: all answers
// are right and every block comes back.
TEST(partial, shared_prefixes_under_pressure) {
  NodeSetup small = setup(32, 64);
  small.backend.groups[0].blocks = 40;
  Nodes nodes(small, small);
  std::vector<message::Submit> submits;
  for (std::uint64_t i = 0; i < 24; ++i) {
    message::Submit submit = request(100 + i, static_cast<std::int32_t>(40 + 29 * (i % 8)));
    const auto shared = std::min<std::size_t>(submit.prompt.size(), 33 * (i % 4));
    const message::Submit base = request(99, 300);
    std::copy_n(base.prompt.begin(), shared, submit.prompt.begin());
    submits.push_back(submit);
    const char* from = i % 3 == 0 ? "d" : i % 3 == 1 ? "p" : "p2";
    nodes.cluster.start(*nodes.router, submit, from, i % 3 == 0 ? "p" : "d");
  }
  ASSERT_TRUE(nodes.cluster.run_until([&] { return nodes.cluster.all_ended(); }, seconds(240)));
  int finished = 0;
  for (const message::Submit& submit : submits) {
    const Answer& answer = nodes.cluster.answer(submit.key);
    ASSERT_TRUE(answer.finished || answer.later) << answer.error->message;
    if (answer.finished) {
      ++finished;
      EXPECT_EQ(canonical(answer), single_node_answer(setup(), submit));
    }
  }
  EXPECT_GE(finished, 12);
  EXPECT_TRUE(nodes.cluster.run_until([&] { return nodes.cluster.all_idle(); }, seconds(5)))
      << nodes.cluster.leftovers();
}

}  // namespace
}  // namespace baton::testing
