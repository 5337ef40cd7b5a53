// The node table and the static peer lists.
#include "baton/cluster/membership.h"
#include "baton/cluster/records.h"

#include <gtest/gtest.h>

namespace baton::cluster {
namespace {

using message::NodeRole;

message::NodeUp node(const std::string& id, NodeRole role, const std::string& address,
                     std::int32_t context = 100, std::int64_t pool = 1000) {
  return {message::NodeInfo{NodeId{id}, role, address, "tag", context, pool}};
}

TEST(Membership, ReadsLists) {
  const auto peers = parse_peers(" a:1, node-7.local:65535 ,[::1]:9", "--decode-peers");
  ASSERT_TRUE(peers.has_value()) << peers.error().message;
  ASSERT_EQ(peers->size(), 3U);
  EXPECT_EQ((*peers)[0], (net::HostPort{"a", 1}));
  EXPECT_EQ((*peers)[1], (net::HostPort{"node-7.local", 65535}));
  EXPECT_EQ((*peers)[2], (net::HostPort{"::1", 9}));
  EXPECT_TRUE(parse_peers("", "--decode-peers")->empty());
  EXPECT_TRUE(parse_peers("  ", "--decode-peers")->empty());
}

TEST(Membership, ErrorsNameFlagAndEntry) {
  struct Row {
    const char* text;
    const char* named;
  };
  for (const Row& row : {Row{"a:1,", "entry 2"}, Row{",a:1", "entry 1"}, Row{"a:1,b", "b"},
                         Row{"a:0", "a:0"}, Row{"a:65536", "a:65536"}, Row{"a:1,c:x", "c:x"},
                         Row{"a:1,b:2,a:1", "a:1"}, Row{"a:-1", "a:-1"}}) {
    const auto peers = parse_peers(row.text, "--prefill-peers");
    ASSERT_FALSE(peers.has_value()) << row.text;
    EXPECT_EQ(peers.error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(peers.error().param, "--prefill-peers");
    EXPECT_NE(peers.error().message.find(row.named), std::string::npos) << peers.error().message;
    EXPECT_NE(peers.error().message.find("--prefill-peers"), std::string::npos);
  }
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

}  // namespace
}  // namespace baton::cluster
