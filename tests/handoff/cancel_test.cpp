// Cancel, death and overload in every state: both sides free within a step, and serve on.
#include "baton/base/failpoints.h"

#include <gtest/gtest.h>

#include "tests/handoff/cluster.h"

namespace baton::testing {
namespace {

using message::NodeRole;
using std::chrono::milliseconds;
using std::chrono::seconds;
using Lane = handoff::MockNetwork::Lane;

const Error kGone{ErrorCode::kCancelled, "the client left"};

NodeSetup setup(std::uint32_t blocks = 64) {
  NodeSetup result;
  result.backend.groups[0] = {4, 4, 64, blocks};
  return result;
}

struct Trio {
  Cluster cluster;
  Node* p = nullptr;
  Node* d = nullptr;
  Node* router = nullptr;
  explicit Trio(const NodeSetup& p_setup = setup(), const NodeSetup& d_setup = setup(),
                const handoff::CoordinatorOptions& options = Cluster().options) {
    cluster.options = options;
    p = &cluster.add_engine("p", NodeRole::kPrefill, p_setup);
    d = &cluster.add_engine("d", NodeRole::kDecode, d_setup);
    router = &cluster.add_router();
    cluster.connect_all();
  }
  void expect_next_is_served(std::uint64_t seed = 77) {
    const message::Submit submit = make_submit(seed, 100, 5);
    const SequenceKey key = cluster.start(*router, submit, "p", "d");
    ASSERT_TRUE(cluster.run_until([&] { return cluster.answer(key).ended(); }, seconds(60)));
    ASSERT_TRUE(cluster.answer(key).finished) << cluster.answer(key).error->message;
    EXPECT_EQ(canonical(cluster.answer(key)), single_node_answer(setup(), submit));
    EXPECT_TRUE(cluster.run_until([&] { return cluster.all_idle(); }, seconds(5)))
        << cluster.leftovers();
  }
};

// The client leaves after each number of turns of a healthy request: every state is met.
TEST(cancel, at_every_moment_frees_both_sides_at_once) {
  message::Submit submit = make_submit(1, 150, 40);
  submit.ignore_eos = true;
  NodeSetup chunked = setup();
  chunked.backend.max_step_tokens = 64;
  for (int turns = 0; turns < 240; ++turns) {
    SCOPED_TRACE(turns);
    Trio trio(turns % 2 == 0 ? setup() : chunked);
    const SequenceKey key = trio.cluster.start(*trio.router, submit, "p", "d");
    int left = turns / 2;
    trio.cluster.run_until([&] { return left-- == 0; }, seconds(5));
    trio.router->owner().abort(key, kGone);
    EXPECT_TRUE(trio.cluster.run_until([&] { return trio.cluster.all_idle(); }, milliseconds(100)))
        << trio.cluster.leftovers();
    EXPECT_FALSE(trio.cluster.answer(key).error.has_value());  // no event for what we ended
  }
}

// A router that has seen the prefill node's part end tells only the decode node. (The simulation's
// seed 3: the attempt stayed for ever, listed in every Beat, and 2,048 of them stopped the router.)
TEST(cancel, of_a_decode_leg_alone_ends_the_attempt) {
  message::Submit submit = make_submit(5, 100, 40);
  submit.ignore_eos = true;
  Trio trio;
  const SequenceKey key = trio.cluster.start(*trio.router, submit, "p", "d");
  ASSERT_TRUE(trio.cluster.run_until([&] { return trio.cluster.answer(key).tokens.size() > 3; },
                                     seconds(5)));
  trio.router->owner().abort(trio.d->id, key, kGone);
  EXPECT_TRUE(trio.cluster.run_until([&] { return trio.cluster.all_idle(); }, milliseconds(100)))
      << trio.cluster.leftovers();
  EXPECT_EQ(trio.router->coordinator->remembered().watches, 0U);
}

// Once D answers, P's part is over for the owner, whatever becomes of P, and although P's own index
// 0 is still on its way. (The simulation's seed 36: the owner ended the attempt for P's sake, the
// router took P's part as over, and the client waited for ever.)
TEST(cancel, a_prefill_node_that_goes_after_D_has_answered_is_not_missed) {
  for (const bool politely : {false, true}) {
    SCOPED_TRACE(politely);
    message::Submit submit = make_submit(6, 100, 40);
    submit.ignore_eos = true;
    Trio trio;
    Cluster& cluster = trio.cluster;
    if (politely) {
      cluster.network.hold(trio.d->id, trio.p->id);  // no Ack: P has something to give up
      cluster.network.hold(trio.p->id, trio.d->id);
    } else {
      cluster.network.set_delay(trio.p->id, trio.router->id, milliseconds(400));
    }
    const SequenceKey key = cluster.start(*trio.router, submit, "p", "d");
    const auto d_answers = [&] { return cluster.answer(key).nodes.contains("d"); };
    if (politely) {
      cluster.run_until(
          [&] { return cluster.network.waiting(trio.d->id, trio.p->id, Lane::kControl) > 0; },
          seconds(1));
      cluster.network.deliver(trio.d->id, trio.p->id, Lane::kControl);  // the Grant
      cluster.network.release(trio.p->id, trio.d->id);
    }
    ASSERT_TRUE(cluster.run_until(d_answers, seconds(3)));
    cluster.kill("p", politely);
    ASSERT_TRUE(cluster.run_until([&] { return cluster.answer(key).ended(); }, seconds(9)));
    EXPECT_TRUE(cluster.answer(key).finished) << cluster.answer(key).error->message;
    EXPECT_EQ(canonical(cluster.answer(key)), single_node_answer(setup(), submit));
    EXPECT_TRUE(cluster.run_until([&] { return cluster.all_idle(); }, seconds(5)))
        << cluster.leftovers();
  }
}

// B03: D stands still once P has finished; the client goes. 50 times. P's pool is at its start
// value soon after each, and D runs none of them when it wakes.
TEST(cancel, B03_the_client_leaves_between_the_legs) {
  Trio trio;
  for (std::uint64_t i = 0; i < 50; ++i) {
    const message::Submit submit = make_submit(100 + i, 150, 40);
    trio.d->frozen = true;
    const SequenceKey key = trio.cluster.start(*trio.router, submit, "p", "d");
    ASSERT_TRUE(trio.cluster.run_until([&] { return !trio.cluster.answer(key).tokens.empty(); },
                                       seconds(5)));
    trio.router->owner().abort(key, kGone);
    EXPECT_TRUE(trio.cluster.run_until([&] { return trio.p->engine->idle(); }, milliseconds(100)));
    EXPECT_EQ(trio.p->engine->stats().groups[0].used_blocks, 0U);
    trio.d->frozen = false;
    EXPECT_TRUE(trio.cluster.run_until([&] { return trio.cluster.all_idle(); }, milliseconds(500)))
        << trio.cluster.leftovers();
  }
  EXPECT_EQ(trio.d->engine->stats().step_count, 0U);
  trio.expect_next_is_served();
}

// B44: 20 streams closed at one moment, then no traffic: gauges are idle, ends add up.
TEST(cancel, B44_gauges_after_everyone_left) {
  Trio trio(setup(256), setup(256));
  for (std::uint64_t i = 0; i < 20; ++i) {
    message::Submit submit = make_submit(200 + i, 40, 60);
    submit.ignore_eos = true;
    trio.cluster.start(*trio.router, submit, "p", "d");
  }
  ASSERT_TRUE(trio.cluster.run_until([&] { return trio.d->engine->stats().running.load() >= 20; },
                                     seconds(20)));
  for (const auto& [key, answer] : trio.cluster.answers()) {
    trio.router->owner().abort(key, kGone);
  }
  EXPECT_TRUE(trio.cluster.run_until([&] { return trio.cluster.all_idle(); }, seconds(2)))
      << trio.cluster.leftovers();
  for (const Node* node : {trio.p, trio.d}) {
    const engine::EngineStats& stats = node->engine->stats();
    EXPECT_EQ(stats.running, 0U);
    EXPECT_EQ(stats.waiting, 0U);
    EXPECT_EQ(stats.reserved, 0U);
    EXPECT_EQ(stats.leases, 0U);
    EXPECT_EQ(stats.groups[0].used_blocks, 0U);
    std::uint64_t ends = 0;
    for (const auto& count : stats.ended) {
      ends += count;
    }
    EXPECT_EQ(ends, stats.accepted);
    EXPECT_EQ(node->coordinator->stats().active, 0);
    EXPECT_EQ(node->coordinator->stats().held, 0);
  }
  EXPECT_EQ(trio.d->engine->stats().ended_as(engine::EndReason::kAborted), 20U);
  trio.expect_next_is_served();
}

TEST(death, of_the_prefill_node_is_told_at_once) {
  Trio trio;
  message::Submit submit = make_submit(2, 900, 40);
  const SequenceKey key = trio.cluster.start(*trio.router, submit, "p", "d");
  trio.cluster.run_until([&] { return trio.p->engine->stats().step_count > 0; }, seconds(5));
  trio.p->frozen = true;
  trio.cluster.network.kill(trio.p->id);
  EXPECT_TRUE(trio.cluster.run_until([&] { return trio.cluster.answer(key).error.has_value(); },
                                     milliseconds(100)));
  EXPECT_TRUE(trio.cluster.run_until([&] { return trio.d->engine->idle(); }, milliseconds(100)));
  // The decode node serves alone.
  const message::Submit local = make_submit(3, 50, 5);
  const SequenceKey next = trio.cluster.start(*trio.router, local, "", "d");
  EXPECT_TRUE(
      trio.cluster.run_until([&] { return trio.cluster.answer(next).ended(); }, seconds(9)));
  EXPECT_EQ(canonical(trio.cluster.answer(next)), single_node_answer(setup(), local));
}

TEST(death, of_the_decode_node_in_mid_stream_is_told_at_once) {
  Trio trio;
  message::Submit submit = make_submit(4, 90, 400);
  submit.ignore_eos = true;
  const SequenceKey key = trio.cluster.start(*trio.router, submit, "p", "d");
  ASSERT_TRUE(trio.cluster.run_until([&] { return trio.cluster.answer(key).tokens.size() > 5; },
                                     seconds(9)));
  trio.d->frozen = true;
  trio.cluster.network.kill(trio.d->id);
  EXPECT_TRUE(trio.cluster.run_until([&] { return trio.cluster.answer(key).error.has_value(); },
                                     milliseconds(100)));
  EXPECT_TRUE(trio.cluster.run_until([&] { return trio.p->engine->idle(); }, milliseconds(100)));
}

TEST(death, of_the_owner_frees_both_nodes) {
  for (const int turns : {1, 4, 8, 12, 16, 24, 32, 64}) {
    Trio trio;
    message::Submit submit = make_submit(5, 150, 400);
    submit.ignore_eos = true;
    trio.cluster.start(*trio.router, submit, "p", "d");
    int left = turns;
    trio.cluster.run_until([&] { return left-- == 0; }, seconds(5));
    trio.cluster.network.kill(trio.router->id);
    EXPECT_TRUE(trio.cluster.run_until(
        [&] { return trio.p->engine->idle() && trio.d->engine->idle(); }, milliseconds(100)))
        << turns;
  }
}

// A silent owner (its connection stands) is dead after the lease.
TEST(death, of_a_silent_owner_is_seen_by_missing_beats) {
  Trio trio;
  message::Submit submit = make_submit(6, 150, 900);
  submit.ignore_eos = true;
  trio.d->backend->set_on_launch(
      [&](const backend::StepPlan&) { trio.cluster.clock.advance(milliseconds(40)); });
  trio.cluster.start(*trio.router, submit, "p", "d");
  trio.cluster.run_until([&] { return trio.d->engine->stats().running > 0; }, seconds(5));
  trio.cluster.network.partition(trio.router->id, trio.d->id);
  EXPECT_TRUE(trio.cluster.run_until([&] { return trio.d->engine->idle(); }, seconds(4)));
  EXPECT_TRUE(trio.cluster.run_until([&] { return trio.cluster.all_ended(); }, seconds(4)));
}

// A lease that is shorter than two ticks of the timer is short, not switched off.
TEST(death, is_seen_within_the_shortest_lease) {
  handoff::CoordinatorOptions options = Cluster().options;
  options.tick_ms = 50;
  options.beat_interval_ms = 40;
  options.lease_ms = 90;
  Trio trio(setup(), setup(), options);
  message::Submit submit = make_submit(6, 150, 900);
  submit.ignore_eos = true;
  trio.cluster.start(*trio.router, submit, "p", "d");
  trio.cluster.run_until([&] { return trio.d->engine->stats().running > 0; }, seconds(5));
  trio.cluster.network.partition(trio.router->id, trio.d->id);
  EXPECT_TRUE(trio.cluster.run_until([&] { return trio.cluster.all_ended(); }, seconds(1)));
}

// The node lives and beats, but its engine stands still.
TEST(death, of_an_engine_is_seen_by_its_turn_count) {
  Trio trio;
  message::Submit submit = make_submit(7, 60, 400);
  submit.ignore_eos = true;
  const SequenceKey key = trio.cluster.start(*trio.router, submit, "p", "d");
  ASSERT_TRUE(trio.cluster.run_until([&] { return trio.cluster.answer(key).tokens.size() > 5; },
                                     seconds(9)));
  trio.d->frozen = true;
  EXPECT_FALSE(trio.cluster.run_until([&] { return trio.cluster.all_ended(); }, seconds(4)));
  EXPECT_TRUE(trio.cluster.run_until([&] { return trio.cluster.all_ended(); }, seconds(3)));
  trio.d->frozen = false;
  EXPECT_TRUE(trio.cluster.run_until([&] { return trio.cluster.all_idle(); }, seconds(1)))
      << trio.cluster.leftovers();
  trio.expect_next_is_served();
}

// The same before D's first token: it has the KV and has said so, and P is done with it.
TEST(death, of_an_engine_that_was_handed_a_sequence_and_never_looked) {
  Trio trio;
  message::Submit submit = make_submit(8, 60, 40);
  submit.ignore_eos = true;
  const SequenceKey key = trio.cluster.start(*trio.router, submit, "p", "d");
  ASSERT_TRUE(
      trio.cluster.run_until([&] { return trio.d->engine->stats().reserved > 0; }, seconds(5)));
  trio.d->frozen = true;
  ASSERT_TRUE(
      trio.cluster.run_until([&] { return trio.p->coordinator->stats().ok > 0; }, seconds(5)));
  EXPECT_EQ(trio.cluster.answer(key).tokens.size(), 1U);
  EXPECT_TRUE(trio.cluster.run_until([&] { return trio.cluster.all_ended(); }, seconds(8)));
  trio.d->frozen = false;
  EXPECT_TRUE(trio.cluster.run_until([&] { return trio.cluster.all_idle(); }, seconds(1)))
      << trio.cluster.leftovers();
  trio.expect_next_is_served();
}

// Two handoffs at once over small pools, in both directions: nobody waits for ever.
TEST(overload, more_requests_than_the_pools_hold_all_end) {
  Trio trio(setup(12), setup(12));
  for (std::uint64_t i = 0; i < 16; ++i) {
    trio.cluster.start(*trio.router, make_submit(300 + i, 90, 20), i % 2 == 0 ? "p" : "d",
                       i % 2 == 0 ? "d" : "p");
  }
  ASSERT_TRUE(trio.cluster.run_until([&] { return trio.cluster.all_ended(); }, seconds(120)));
  int finished = 0;
  for (const auto& [key, answer] : trio.cluster.answers()) {
    finished += answer.finished ? 1 : 0;
    EXPECT_TRUE(answer.finished || answer.later) << answer.error->message;
  }
  EXPECT_GT(finished, 0);
  EXPECT_TRUE(trio.cluster.run_until([&] { return trio.cluster.all_idle(); }, seconds(5)))
      << trio.cluster.leftovers();
  trio.expect_next_is_served();
}

TEST(refusal, leaves_both_pools_as_they_were) {
  Trio trio;
  std::vector<message::Submit> bad(4, make_submit(8, 20, 5));
  bad[0].prompt.assign(20, 100'000);   // bad ids
  bad[1] = make_submit(9, 4000, 200);  // over the context
  bad[2] = make_submit(10, 3000, 50);  // fits the context, never the pool
  bad[3].max_tokens = 3;
  bad[3].emitted = {5, 5, 5};  // nothing left to make
  std::uint64_t id = 500;
  for (message::Submit& submit : bad) {
    submit.key.request = {id, id};
    ++id;
    const SequenceKey key = trio.cluster.start(*trio.router, submit, "p", "d");
    ASSERT_TRUE(
        trio.cluster.run_until([&] { return trio.cluster.answer(key).ended(); }, seconds(9)));
    ASSERT_TRUE(trio.cluster.answer(key).error.has_value());
    EXPECT_FALSE(trio.cluster.answer(key).later) << trio.cluster.answer(key).error->message;
    EXPECT_TRUE(trio.cluster.run_until([&] { return trio.cluster.all_idle(); }, seconds(1)))
        << trio.cluster.leftovers();
    EXPECT_EQ(trio.p->engine->stats().groups[0].used_blocks, 0U);
    EXPECT_EQ(trio.d->engine->stats().groups[0].used_blocks, 0U);
  }
  trio.expect_next_is_served();
}

TEST(drain, finishes_what_is_there_and_refuses_the_rest) {
  Trio trio;
  const message::Submit submit = make_submit(11, 90, 20);
  const SequenceKey key = trio.cluster.start(*trio.router, submit, "p", "d");
  trio.cluster.run_until([&] { return !trio.cluster.answer(key).tokens.empty(); }, seconds(5));
  trio.d->coordinator->begin_drain();
  ASSERT_TRUE(trio.cluster.run_until([&] { return trio.cluster.all_ended(); }, seconds(9)));
  EXPECT_EQ(canonical(trio.cluster.answer(key)), single_node_answer(setup(), submit));
  const SequenceKey next = trio.cluster.start(*trio.router, make_submit(12, 90, 20), "p", "d");
  ASSERT_TRUE(trio.cluster.run_until([&] { return trio.cluster.all_ended(); }, seconds(9)));
  EXPECT_TRUE(trio.cluster.answer(next).later);
  EXPECT_TRUE(trio.cluster.run_until([&] { return trio.cluster.all_idle(); }, seconds(1)))
      << trio.cluster.leftovers();
}

// A node that lies about who is to be answered, or hands off to itself.
TEST(refusal, reply_to_must_be_the_sender) {
  Trio trio;
  const message::Submit submit = make_submit(13, 20, 5);
  ASSERT_TRUE(
      trio.router->owner().send_prefill(trio.p->id, submit, trio.p->id, trio.cluster.clock.now()));
  ASSERT_TRUE(trio.cluster.run_until(
      [&] { return trio.cluster.answer(submit.key).error.has_value(); }, seconds(1)));
  EXPECT_FALSE(trio.cluster.answer(submit.key).later);
  EXPECT_EQ(trio.p->coordinator->stats().protocol_errors, 1U);
  trio.expect_next_is_served();
}

// Blocks and Commit may come over different connections: the Commit waits for its tiles, and tiles
// for the Commit.
TEST(handoff, a_bulk_lane_that_is_late_changes_nothing) {
  Trio trio;
  const message::Submit submit = make_submit(14, 200, 10, 0.6F);
  trio.cluster.network.hold(trio.p->id, trio.d->id);
  const SequenceKey key = trio.cluster.start(*trio.router, submit, "p", "d");
  trio.cluster.run_for(milliseconds(200));
  EXPECT_GT(trio.cluster.network.waiting(trio.p->id, trio.d->id, Lane::kBulk), 1U);
  EXPECT_FALSE(trio.cluster.answer(key).ended());
  while (trio.cluster.network.deliver(trio.p->id, trio.d->id, Lane::kBulk)) {
    trio.cluster.run_for(milliseconds(5));
  }
  trio.cluster.network.release(trio.p->id, trio.d->id);
  ASSERT_TRUE(trio.cluster.run_until([&] { return trio.cluster.all_ended(); }, seconds(9)));
  EXPECT_EQ(canonical(trio.cluster.answer(key)), single_node_answer(setup(), submit));
}

#ifdef BATON_FAILPOINTS
// A silent local recompute on D could not be told from a handoff otherwise.
TEST(poison, zeroed_values_change_the_answer) {
  ASSERT_TRUE(failpoints::arm("handoff.poison=on@1"));
  Trio trio;
  trio.cluster.bad_rows_expected = true;
  const message::Submit submit = make_submit(15, 100, 10);
  const SequenceKey key = trio.cluster.start(*trio.router, submit, "p", "d");
  const bool ended = trio.cluster.run_until([&] { return trio.cluster.all_ended(); }, seconds(9));
  ASSERT_TRUE(ended);
  EXPECT_TRUE(trio.cluster.answer(key).finished);
  EXPECT_NE(canonical(trio.cluster.answer(key)), single_node_answer(setup(), submit));
}
#endif

}  // namespace
}  // namespace baton::testing
