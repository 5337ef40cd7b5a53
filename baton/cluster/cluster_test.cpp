// The node table.
#include "baton/cluster/records.h"

#include <gtest/gtest.h>

namespace baton::cluster {
namespace {

using message::NodeRole;

message::NodeUp node(const std::string& id, NodeRole role, const std::string& address,
                     std::int32_t context = 100, std::int64_t pool = 1000) {
  return {message::NodeInfo{NodeId{id}, role, address, "tag", context, pool}};
}

TEST(NodeTable, StatesFollowEvents) {
  NodeTable table;
  const TimePoint now{};
  table.up(node("d", NodeRole::kDecode, "h:1"), now);
  table.up(node("p", NodeRole::kPrefill, "h:2"), now);
  table.up(node("r", NodeRole::kRouter, "h:3", 0, 0), now);
  EXPECT_EQ(table.usable(NodeRole::kDecode).size(), 1U);
  EXPECT_EQ(table.usable(NodeRole::kPrefill).size(), 1U);
  EXPECT_EQ(table.min_context_tokens(), 100);

  table.load(NodeId{"d"}, {.running = 3, .waiting = 1}, true, now);
  EXPECT_EQ(table.find(NodeId{"d"})->state, NodeState::kDraining);
  EXPECT_TRUE(table.usable(NodeRole::kDecode).empty());
  table.load(NodeId{"d"}, {.running = 3, .waiting = 1}, false, now);
  EXPECT_EQ(table.find(NodeId{"d"})->load.running, 3U);
  EXPECT_EQ(table.usable(NodeRole::kDecode).size(), 1U);

  table.down({NodeId{"d"}, "no Beat for 3 s"});
  EXPECT_EQ(table.find(NodeId{"d"})->state, NodeState::kDown);
  EXPECT_EQ(table.find(NodeId{"d"})->down_reason, "no Beat for 3 s");
  table.load(NodeId{"d"}, {}, false, now);
  EXPECT_EQ(table.find(NodeId{"d"})->state, NodeState::kDown) << "a late Beat must not revive it";
  table.up(node("d", NodeRole::kDecode, "h:1"), now);
  EXPECT_EQ(table.find(NodeId{"d"})->state, NodeState::kUp);
  EXPECT_TRUE(table.find(NodeId{"d"})->down_reason.empty());
  table.down({NodeId{"unknown"}, "x"});
  table.load(NodeId{"unknown"}, {}, false, now);
  EXPECT_EQ(table.nodes().size(), 3U);
}

TEST(NodeTable, SaysWhoIsMissingAndWhy) {
  NodeTable table;
  table.expect(NodeRole::kPrefill, "h:1");
  table.expect(NodeRole::kDecode, "h:2");
  EXPECT_TRUE(table.expects(NodeRole::kDecode));
  EXPECT_FALSE(table.expects(NodeRole::kSingle));
  auto missing = table.missing();
  ASSERT_EQ(missing.size(), 2U);
  EXPECT_EQ(missing[0], "prefill node h:1: not reached yet");

  table.unusable("h:1", "kv_dtype is bf16 here and f32 there");
  table.up(node("d", NodeRole::kDecode, "h:2"), TimePoint{});
  missing = table.missing();
  ASSERT_EQ(missing.size(), 1U);
  EXPECT_EQ(missing[0], "prefill node h:1: kv_dtype is bf16 here and f32 there");

  table.up(node("x", NodeRole::kDecode, "h:1"), TimePoint{});
  ASSERT_EQ(table.missing().size(), 1U);
  EXPECT_EQ(table.missing()[0], "prefill node h:1: is a decode node");

  table.down({NodeId{"d"}, "connection reset"});
  EXPECT_EQ(table.missing()[1], "decode node h:2: connection reset");
}

TEST(NodeTable, ARestartedNodeReplacesTheDeadOneAtItsAddress) {
  NodeTable table;
  table.up(node("other", NodeRole::kDecode, "h:2"), TimePoint{});
  for (int start = 0; start < 5; ++start) {
    const std::string id = "d-" + std::to_string(start);
    table.up(node(id, NodeRole::kDecode, "h:1"), TimePoint{});
    EXPECT_EQ(table.nodes().size(), 2U);
    EXPECT_EQ(table.usable(NodeRole::kDecode).size(), 2U);
    table.down({NodeId{id}, "connection reset"});
    EXPECT_EQ(table.find(NodeId{id})->down_reason, "connection reset");
  }
  table.up(node("same", NodeRole::kDecode, "h:1"), TimePoint{});
  table.up(node("same", NodeRole::kDecode, "h:1"), TimePoint{});
  EXPECT_EQ(table.nodes().size(), 2U);
}

TEST(NodeTable, SmallestLimitCounts) {
  NodeTable table;
  EXPECT_EQ(table.min_context_tokens(), 0);
  table.up(node("a", NodeRole::kDecode, "h:1", 8192, 4096), TimePoint{});
  EXPECT_EQ(table.min_context_tokens(), 4096);
  table.up(node("b", NodeRole::kPrefill, "h:2", 2048, 9000), TimePoint{});
  EXPECT_EQ(table.min_context_tokens(), 2048);
  table.down({NodeId{"b"}, "gone"});
  EXPECT_EQ(table.min_context_tokens(), 4096);
}

TEST(NodeTable, AwaitedRolesAreMissingUntilANodeIsKnown) {
  NodeTable table;
  table.await_role(NodeRole::kDecode, "dns:d.svc:7");
  EXPECT_TRUE(table.expects(NodeRole::kDecode));
  EXPECT_FALSE(table.expects(NodeRole::kPrefill));
  EXPECT_EQ(table.missing(),
            std::vector<std::string>{"decode nodes: none known yet (dns:d.svc:7)"});
  table.expect(NodeRole::kDecode, "h:1");
  EXPECT_EQ(table.missing(), std::vector<std::string>{"decode node h:1: not reached yet"});
}

TEST(NodeTable, WhoLeftGetsNothingNewAndIsForgottenOnceGone) {
  NodeTable table;
  table.expect(NodeRole::kDecode, "h:1");
  table.expect(NodeRole::kDecode, "h:2");
  table.up(node("d1", NodeRole::kDecode, "h:1"), TimePoint{});
  table.up(node("d2", NodeRole::kDecode, "h:2"), TimePoint{});
  table.retire("h:1");
  EXPECT_EQ(table.find(NodeId{"d1"})->state, NodeState::kDraining);
  table.load(NodeId{"d1"}, {}, false, TimePoint{});
  EXPECT_EQ(table.find(NodeId{"d1"})->state, NodeState::kDraining) << "a Beat does not change it";
  table.up(node("d1-again", NodeRole::kDecode, "h:1"), TimePoint{});
  EXPECT_EQ(table.find(NodeId{"d1-again"})->state, NodeState::kDraining) << "nor a new start there";
  EXPECT_EQ(table.usable(NodeRole::kDecode).size(), 1U);
  EXPECT_TRUE(table.missing().empty()) << "nobody misses it";

  table.down({NodeId{"d1"}, "left"});
  table.down({NodeId{"d1-again"}, "left"});
  table.forget("h:1");
  EXPECT_EQ(table.find(NodeId{"d1"}), nullptr);
  EXPECT_EQ(table.nodes().size(), 1U);
  table.forget("h:2");  // a late word about a node that is wanted
  EXPECT_NE(table.find(NodeId{"d2"}), nullptr);
  table.forget("unknown:1");
}

TEST(NodeTable, WhoComesBackIsUsedAgain) {
  NodeTable table;
  table.expect(NodeRole::kDecode, "h:1");
  table.up(node("d1", NodeRole::kDecode, "h:1"), TimePoint{});
  table.retire("h:1");
  table.expect(NodeRole::kDecode, "h:1");
  table.load(NodeId{"d1"}, {}, false, TimePoint{});
  EXPECT_EQ(table.usable(NodeRole::kDecode).size(), 1U);

  table.retire("h:1");
  table.down({NodeId{"d1"}, "left"});
  table.expect(NodeRole::kDecode, "h:1");
  table.forget("h:1");  // of the time before it came back
  table.up(node("d1", NodeRole::kDecode, "h:1"), TimePoint{});
  EXPECT_EQ(table.usable(NodeRole::kDecode).size(), 1U);
  EXPECT_TRUE(table.missing().empty());
  table.down({NodeId{"d1"}, "reset"});
  EXPECT_EQ(table.missing(), std::vector<std::string>{"decode node h:1: reset"});
}

}  // namespace
}  // namespace baton::cluster
