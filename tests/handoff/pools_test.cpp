// Two full pools: each node holds what the other one waits for (decision 013).
#include <gtest/gtest.h>

#include "tests/handoff/cluster.h"

namespace baton::testing {
namespace {

using message::NodeRole;
using std::chrono::seconds;

// Room for one prompt of 150 tokens, on each node.
NodeSetup one_prompt() {
  NodeSetup result;
  result.backend.block_tokens = 32;
  result.backend.groups = {FakeGroup{2, 1, 8, 8}};
  result.backend.end_tokens = {};
  result.engine.queue_deadline_ms = 60'000;
  return result;
}

TEST(pools, neither_waits_for_the_other) {
  Cluster cluster;
  cluster.options.queue_deadline_ms = 60'000;
  cluster.add_engine("p", NodeRole::kPrefill, one_prompt());
  cluster.add_engine("d", NodeRole::kDecode, one_prompt());
  Node& router = cluster.add_router("r1");
  cluster.connect_all();
  message::Submit x = make_submit(1, 150, 8);
  message::Submit y = make_submit(2, 150, 8);

  // d has room for x alone, p for y alone.
  const auto decode = [&](const message::Submit& submit) {
    ASSERT_TRUE(router.owner().send_decode(NodeId{"d"}, submit, NodeId{"p"}, cluster.clock.now()));
    cluster.run_for(seconds(1));
  };
  const auto prefill = [&](const message::Submit& submit) {
    ASSERT_TRUE(router.owner().send_prefill(NodeId{"p"}, submit, NodeId{"d"}, cluster.clock.now()));
    cluster.run_for(seconds(1));
  };
  decode(x);
  decode(y);
  prefill(y);
  EXPECT_EQ(cluster.answer(y.key).tokens.size(), 1U);
  EXPECT_FALSE(cluster.answer(y.key).ended());
  prefill(x);
  EXPECT_TRUE(cluster.run_until([&] { return cluster.answer(x.key).ended(); }, seconds(5)));
  EXPECT_TRUE(cluster.answer(x.key).finished);
  EXPECT_EQ(canonical(cluster.answer(x.key)), single_node_answer(one_prompt(), x));

  // y was told to ask again, and does, with the token that it has.
  EXPECT_TRUE(cluster.run_until([&] { return cluster.answer(y.key).ended(); }, seconds(5)));
  ASSERT_TRUE(cluster.answer(y.key).error.has_value());
  message::Submit again = y;
  again.key.epoch.value = 1;
  again.emitted = {cluster.answer(y.key).tokens[0].token};
  cluster.answer(again.key).tokens = cluster.answer(y.key).tokens;
  decode(again);
  prefill(again);
  EXPECT_TRUE(cluster.answer(again.key).finished);
  EXPECT_EQ(canonical(cluster.answer(again.key)), single_node_answer(one_prompt(), y));
  EXPECT_TRUE(cluster.run_until([&] { return cluster.all_idle(); }, seconds(5)))
      << cluster.leftovers();
}

// Where nobody has room no step is made: that is no engine that stands still.
TEST(pools, who_waits_for_room_is_not_lost) {
  Cluster cluster;
  cluster.options.queue_deadline_ms = 60'000;
  cluster.options.prefill_deadline_ms = 60'000;
  cluster.add_engine("p", NodeRole::kPrefill, one_prompt());
  cluster.add_engine("d", NodeRole::kDecode, one_prompt());
  Node& router = cluster.add_router("r1");
  cluster.connect_all();
  const message::Submit holder = make_submit(1, 150, 8);
  const message::Submit second = make_submit(2, 150, 8);
  const message::Submit third = make_submit(3, 150, 8);
  // The first has d's room and no prefill; the second has p's, and the third waits behind it.
  ASSERT_TRUE(router.owner().send_decode(NodeId{"d"}, holder, NodeId{"p"}, cluster.clock.now()));
  cluster.run_for(seconds(1));
  cluster.start(router, second, "p", "d");
  cluster.run_for(seconds(1));
  cluster.start(router, third, "p", "d");
  cluster.run_for(seconds(15));
  for (const message::Submit* waits : {&second, &third}) {
    EXPECT_FALSE(cluster.answer(waits->key).error) << cluster.answer(waits->key).error->message;
  }
  router.owner().abort(holder.key, Error{ErrorCode::kCancelled, "the client left"});
  for (const message::Submit* waits : {&second, &third}) {
    EXPECT_TRUE(cluster.run_until([&] { return cluster.answer(waits->key).ended(); }, seconds(5)));
    EXPECT_EQ(canonical(cluster.answer(waits->key)), single_node_answer(one_prompt(), *waits));
  }
  EXPECT_TRUE(cluster.run_until([&] { return cluster.all_idle(); }, seconds(5)))
      << cluster.leftovers();
}

}  // namespace
}  // namespace baton::testing
