// The owner's state machine: order, duplicates, dead epochs, retries, replays, and that no event in
// any state does harm.
#include "baton/router/router.h"

#include "baton/base/check.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace baton::router {
namespace {

using message::FinishReason;
using message::NodeRole;

constexpr auto kSecond = std::chrono::seconds(1);

template <class T>
std::vector<T> all(const Commands& commands) {
  std::vector<T> out;
  for (const Command& command : commands) {
    if (const T* found = std::get_if<T>(&command)) {
      out.push_back(*found);
    }
  }
  return out;
}
template <class T>
T only(const Commands& commands) {
  const auto found = all<T>(commands);
  EXPECT_EQ(found.size(), 1U);
  return found.empty() ? T{} : found.front();
}

class RouterTest : public ::testing::Test {
 protected:
  void make(RouterOptions options = {}) { router_ = std::make_unique<Router>(options); }
  void SetUp() override { make(); }
  // The books must balance at the end of every test.
  void TearDown() override {
    const Stats& stats = router_->stats();
    EXPECT_EQ(stats.completed + stats.failed + stats.aborted + stats.active, stats.accepted);
    EXPECT_EQ(stats.active, router_->active());
    if (router_->active() == 0) {
      for (const auto& [id, record] : router_->nodes().nodes()) {
        EXPECT_EQ(record.assigned, 0U) << id.value;
      }
    }
  }

  Commands up(const std::string& id, NodeRole role, const std::string& tag = "t") {
    Commands out;
    router_->on_node_up({message::NodeInfo{NodeId{id}, role, id + ":1", tag, 1000, 1000}}, now_,
                        out);
    return out;
  }
  Commands down(const std::string& id) {
    Commands out;
    router_->on_node_down({NodeId{id}, "reset"}, now_, out);
    return out;
  }
  Commands start(std::uint64_t id, std::uint32_t choices = 1, std::int32_t max_tokens = 10,
                 const std::string& tag = {}) {
    std::vector<message::Submit> submits(choices);
    for (auto& submit : submits) {
      submit.key.request = {0, id};
      submit.prompt = {1, 2, 3};
      submit.max_tokens = max_tokens;
    }
    Commands out;
    status_ = router_->start(std::move(submits), now_, out, tag);
    return out;
  }
  Commands token(const std::string& from, SequenceKey key, std::int32_t index,
                 FinishReason finish = FinishReason::kNone, TokenId id = -1) {
    message::Token event;
    event.key = key;
    event.index = index;
    event.token = id >= 0 ? id : 100 + index;
    event.finish = finish;
    Commands out;
    router_->on_tokens(NodeId{from}, {event}, now_, out);
    return out;
  }
  Commands refused(const std::string& from, SequenceKey key, bool later,
                   ErrorCode code = ErrorCode::kUnavailable) {
    Commands out;
    router_->on_refused(NodeId{from}, {key, later, {code, "no", {}, 0}}, now_, out);
    return out;
  }
  Commands tick(Duration later) {
    now_ += later;
    Commands out;
    router_->tick(now_, out);
    return out;
  }
  static SequenceKey key(std::uint64_t id, std::uint32_t epoch, std::uint32_t choice = 0) {
    return {{0, id}, Choice{choice}, Epoch{epoch}};
  }
  void pair() {
    up("p", NodeRole::kPrefill);
    up("d", NodeRole::kDecode);
  }

  std::unique_ptr<Router> router_;
  TimePoint now_{};
  Status status_;
};

TEST_F(RouterTest, SplitSendsDecodeFirst) {
  pair();
  const Commands out = start(1);
  ASSERT_TRUE(status_.has_value());
  ASSERT_EQ(out.size(), 2U);
  const auto* decode = std::get_if<SendDecode>(&out[0]);
  const auto* prefill = std::get_if<SendPrefill>(&out[1]);
  ASSERT_TRUE(decode != nullptr && prefill != nullptr);
  EXPECT_EQ(decode->node.value, "d");
  EXPECT_EQ(decode->prefill_node.value, "p");
  EXPECT_EQ(prefill->node.value, "p");
  EXPECT_EQ(prefill->decode_node.value, "d");
  EXPECT_EQ(decode->submit.key, key(1, 1));
  EXPECT_EQ(prefill->submit.key, key(1, 1));

  auto delivered = only<Deliver>(token("p", key(1, 1), 0));
  EXPECT_EQ(delivered.token.token, 100);
  EXPECT_TRUE(delivered.route.split);
  EXPECT_EQ(delivered.route.prefill_node.value, "p");
  EXPECT_EQ(delivered.route.decode_node.value, "d");
  EXPECT_TRUE(token("d", key(1, 1), 0).empty()) << "the decode node repeats index 0";
  EXPECT_EQ(router_->stats().duplicates_dropped, 1U);
  EXPECT_EQ(only<Deliver>(token("d", key(1, 1), 1)).token.index, 1);
  const Commands last = token("d", key(1, 1), 2, FinishReason::kLength);
  EXPECT_EQ(only<Deliver>(last).token.finish, FinishReason::kLength);
  EXPECT_EQ(only<Done>(last).request, (RequestId{0, 1}));
  EXPECT_TRUE(all<SendAbort>(last).empty());
  EXPECT_EQ(router_->stats().completed, 1U);
  EXPECT_TRUE(token("d", key(1, 1), 3).empty());
}

TEST_F(RouterTest, KvBytesComeWithTheRepeatedToken) {
  pair();
  start(1);
  token("p", key(1, 1), 0);
  message::Token repeated;
  repeated.key = key(1, 1);
  repeated.token = 100;
  repeated.kv_bytes = 4096;
  Commands out;
  router_->on_tokens(NodeId{"d"}, {repeated}, now_, out);
  EXPECT_EQ(only<Deliver>(token("d", key(1, 1), 1)).route.kv_bytes, 4096U);
  router_->client_gone({0, 1}, now_, out);
}

TEST_F(RouterTest, ReleasesInIndexOrder) {
  pair();
  start(1);
  EXPECT_TRUE(token("d", key(1, 1), 2).empty());
  EXPECT_TRUE(token("d", key(1, 1), 1).empty());
  EXPECT_TRUE(token("d", key(1, 1), 1).empty()) << "a duplicate of a waiting one";
  const auto out = all<Deliver>(token("d", key(1, 1), 0));
  ASSERT_EQ(out.size(), 3U);
  for (std::int32_t index = 0; index < 3; ++index) {
    EXPECT_EQ(out[static_cast<std::size_t>(index)].token.index, index);
  }
  Commands gone;
  router_->client_gone({0, 1}, now_, gone);
}

TEST_F(RouterTest, DuplicateWithAnotherTokenIsABug) {
  pair();
  start(1);
  token("p", key(1, 1), 0);
  const std::uint64_t bugs = bug_count();
  const Commands out = token("d", key(1, 1), 0, FinishReason::kNone, 7);
  EXPECT_EQ(only<Fail>(out).error.code, ErrorCode::kInternal);
  EXPECT_FALSE(all<SendAbort>(out).empty());
  EXPECT_EQ(router_->stats().mismatches, 1U);
  EXPECT_EQ(bug_count(), bugs + 1);
}

TEST_F(RouterTest, TokensOutsideOfTheLimitFail) {
  for (const std::int32_t index : {-1, 10, 1 << 30}) {
    make();
    pair();
    start(1);
    EXPECT_EQ(only<Fail>(token("p", key(1, 1), index)).error.code, ErrorCode::kProtocol);
    EXPECT_EQ(router_->active(), 0U);
  }
}

TEST_F(RouterTest, DeadEpochsAndStrangersAreDropped) {
  pair();
  up("p2", NodeRole::kPrefill);
  start(1);
  for (const Commands& out :
       {token("p", key(1, 0), 0), token("p", key(1, 2), 0), token("p2", key(1, 1), 0),
        token("", key(1, 1), 0), token("p", key(2, 1), 0), token("p", key(1, 1, 5), 0)}) {
    EXPECT_TRUE(out.empty());
  }
  EXPECT_EQ(router_->stats().dead_epochs_dropped, 6U);
  Commands gone;
  router_->client_gone({0, 1}, now_, gone);
}

TEST_F(RouterTest, EndsOnIndexZero) {
  pair();
  start(1);
  const Commands out = token("p", key(1, 1), 0, FinishReason::kStop);
  only<Done>(out);
  EXPECT_TRUE(token("d", key(1, 1), 0, FinishReason::kStop).empty());
}

TEST_F(RouterTest, PrefillDeathBeforeIndexZeroGoesElsewhere) {
  pair();
  up("p2", NodeRole::kPrefill);
  const std::string first = only<SendPrefill>(start(1)).node.value;
  const Commands out = down(first);
  EXPECT_NE(only<SendPrefill>(out).node.value, first);
  EXPECT_EQ(only<SendPrefill>(out).submit.key, key(1, 2));
  EXPECT_EQ(only<SendAbort>(out).node.value, "d") << "the dead node is not told";
  EXPECT_EQ(only<SendAbort>(out).key, key(1, 1));
  EXPECT_TRUE(only<SendPrefill>(out).submit.emitted.empty());
  EXPECT_EQ(router_->stats().retries, 1U);
  EXPECT_TRUE(token("d", key(1, 1), 0).empty()) << "the dead epoch";
  only<Deliver>(token("d", key(1, 2), 0, FinishReason::kStop));
}

// Connected, but every attempt fails there.
// A decode node that finds something wrong speaks of what it was sent.
TEST_F(RouterTest, ANodeThatKeepsFailingIsAskedLast) {
  up("p", NodeRole::kPrefill);
  up("p2", NodeRole::kPrefill);
  up("d", NodeRole::kDecode);
  const auto corrupt = [&](std::uint64_t id) {
    return refused("d", key(id, 1), true, ErrorCode::kCorruptFrame);
  };
  std::uint64_t id = 0;
  for (int fault = 0; fault < 3; ++fault) {
    while (only<SendPrefill>(start(++id)).node.value != "p") {
    }
    const Commands again = corrupt(id);
    EXPECT_EQ(only<SendPrefill>(again).node.value, "p2");
    EXPECT_EQ(only<SendDecode>(again).node.value, "d");
  }
  EXPECT_EQ(router_->stats().nodes_shunned, 1U);
  for (int n = 0; n < 5; ++n) {
    EXPECT_EQ(only<SendPrefill>(start(++id)).node.value, "p2") << "though it has the longer queue";
  }
  tick(kSecond);
  EXPECT_EQ(only<SendPrefill>(start(++id)).node.value, "p") << "one more trial";
  corrupt(id);
  EXPECT_EQ(only<SendPrefill>(start(++id)).node.value, "p2");
  tick(kSecond);
  EXPECT_EQ(only<SendPrefill>(start(++id)).node.value, "p2") << "for longer now";
  down("p2");
  EXPECT_EQ(only<SendPrefill>(start(++id)).node.value, "p") << "nobody else is left";
  token("p", key(id, 1), 0);
  EXPECT_EQ(router_->nodes().find(NodeId{"p"})->faults, 0U) << "it works again";
  up("p2", NodeRole::kPrefill);
  EXPECT_EQ(router_->stats().nodes_shunned, 2U);
}

// The news of a death may come from the other node first: the one that lives keeps what it has.
TEST_F(RouterTest, WhoReportsADeathIsNotBlamedForIt) {
  pair();
  up("d2", NodeRole::kDecode);
  up("p2", NodeRole::kPrefill);
  const Commands first = start(1);
  const std::string decode = only<SendDecode>(first).node.value;
  const std::string prefill = only<SendPrefill>(first).node.value;
  const Commands again = refused(decode, key(1, 1), true, ErrorCode::kPeerLost);
  EXPECT_NE(only<SendPrefill>(again).node.value, prefill);
  const Commands other =
      refused(only<SendPrefill>(again).node.value, key(1, 2), true, ErrorCode::kPeerLost);
  EXPECT_NE(only<SendDecode>(other).node.value, only<SendDecode>(again).node.value);
  Commands out;
  router_->client_gone({0, 1}, now_, out);
}

TEST_F(RouterTest, DecodeDeathReplaysWithEmitted) {
  pair();
  up("d2", NodeRole::kDecode);
  const std::string first = only<SendDecode>(start(1)).node.value;
  token("p", key(1, 1), 0);
  token(first, key(1, 1), 1);
  const Commands out = down(first);
  const auto decode = only<SendDecode>(out);
  EXPECT_NE(decode.node.value, first);
  EXPECT_EQ(decode.submit.emitted, (std::vector<TokenId>{100, 101}));
  EXPECT_EQ(only<SendPrefill>(out).submit.emitted, decode.submit.emitted);
  EXPECT_EQ(router_->stats().replays, 1U);
  EXPECT_EQ(only<Deliver>(token("p", key(1, 2), 2)).token.index, 2);
  only<Done>(token(decode.node.value, key(1, 2), 3, FinishReason::kStop));
}

TEST_F(RouterTest, PrefillDeathAfterDecodeBeganChangesNothing) {
  pair();
  start(1);
  token("p", key(1, 1), 0);
  token("d", key(1, 1), 0);
  EXPECT_TRUE(down("p").empty());
  only<Done>(token("d", key(1, 1), 1, FinishReason::kStop));
}

TEST_F(RouterTest, PrefillDeathBetweenIndexZeroAndDecode) {
  pair();
  start(1);
  token("p", key(1, 1), 0);
  const Commands out = down("p");
  const auto decode = only<SendDecode>(out);
  EXPECT_TRUE(decode.prefill_node.value.empty()) << "nobody left to prefill: the decode node does";
  EXPECT_EQ(decode.submit.emitted, (std::vector<TokenId>{100}));
  const auto delivered = only<Deliver>(token("d", key(1, 2), 1, FinishReason::kStop));
  EXPECT_FALSE(delivered.route.split);
  EXPECT_EQ(delivered.route.prefill_node.value, "d");
}

TEST_F(RouterTest, WithoutDecodeNodesThePrefillNodeDecodes) {
  pair();
  down("d");
  const Commands out = start(1);
  ASSERT_TRUE(status_.has_value());
  EXPECT_TRUE(only<SendPrefill>(out).decode_node.value.empty());
  EXPECT_EQ(router_->stats().local_fallbacks, 1U);
  only<Done>(token("p", key(1, 1), 0, FinishReason::kStop));
}

TEST_F(RouterTest, WaitsForANodeAndGivesUpInTime) {
  pair();
  start(1);
  start(2);
  down("p");
  down("d");
  EXPECT_TRUE(tick(kSecond).empty());
  EXPECT_EQ(start(3).size(), 0U);
  EXPECT_EQ(status_.error().code, ErrorCode::kUnavailable);
  const Commands back = up("d", NodeRole::kDecode);
  EXPECT_EQ(all<SendDecode>(back).size(), 2U) << "the waiting ones go on at once";
  down("d");
  Commands gone;
  router_->client_gone({0, 2}, now_, gone);
  EXPECT_TRUE(gone.empty()) << "it is nowhere";
  EXPECT_EQ(only<Fail>(tick(31 * kSecond)).error.code, ErrorCode::kPeerLost);
}

TEST_F(RouterTest, AnAnswerUnderWayWaitsLongForRoomAndNotForNodes) {
  pair();
  start(1);
  token("p", key(1, 1), 0);
  down("p");
  down("d");
  EXPECT_TRUE(all<Fail>(tick(29 * kSecond)).empty());
  EXPECT_EQ(all<SendDecode>(up("d", NodeRole::kDecode)).size(), 1U);
  // Its node is full for minutes, and then gone: from there on nobody is waited for.
  for (std::uint32_t epoch = 3; epoch < 100; ++epoch) {
    const Commands once_more = refused("d", key(1, epoch), true, ErrorCode::kOverloaded);
    if (all<SendDecode>(once_more).empty()) {
      ASSERT_EQ(all<SendDecode>(tick(2 * kSecond)).size(), 1U) << epoch;
    }
  }
  down("d");
  EXPECT_TRUE(all<Fail>(tick(kSecond)).empty());
  EXPECT_TRUE(all<Fail>(tick(29 * kSecond)).empty());
  EXPECT_EQ(only<Fail>(tick(2 * kSecond)).error.code, ErrorCode::kPeerLost);
}

TEST_F(RouterTest, RefusedLaterTriesAnotherThenBacksOff) {
  pair();
  up("d2", NodeRole::kDecode);
  std::string node = only<SendDecode>(start(1)).node.value;
  const Commands other = refused(node, key(1, 1), true);
  EXPECT_NE(only<SendDecode>(other).node.value, node);
  EXPECT_EQ(all<SendAbort>(other).size(), 2U);
  std::uint32_t epoch = 2;
  Commands out = refused(only<SendDecode>(other).node.value, key(1, 2), true);
  std::size_t waits = 0;
  for (int turn = 0; turn < 50 && all<Fail>(out).empty(); ++turn) {
    if (all<SendDecode>(out).empty()) {
      ++waits;
      ASSERT_TRUE(router_->next_deadline().has_value());
      EXPECT_GT(*router_->next_deadline(), now_);
      out = tick(*router_->next_deadline() - now_);
      continue;
    }
    EXPECT_EQ(only<SendDecode>(out).submit.key, key(1, ++epoch));
    out = refused(only<SendDecode>(out).node.value, key(1, epoch), true);
  }
  EXPECT_EQ(only<Fail>(out).error.code, ErrorCode::kUnavailable);
  EXPECT_EQ(epoch, RouterOptions{}.max_attempts);
  EXPECT_GE(waits, 4U);
}

TEST_F(RouterTest, FullEverywhereIs429AtOnce) {
  pair();
  start(1);
  const Commands out = refused("d", key(1, 1), true, ErrorCode::kOverloaded);
  EXPECT_EQ(only<SendDecode>(out).submit.key, key(1, 2));
  EXPECT_EQ(only<Fail>(refused("d", key(1, 2), true, ErrorCode::kOverloaded)).error.code,
            ErrorCode::kOverloaded);
}

TEST_F(RouterTest, RefusedNeverFailsWithItsReason) {
  pair();
  start(1);
  const Commands out = refused("p", key(1, 1), false, ErrorCode::kContextTooLong);
  EXPECT_EQ(only<Fail>(out).error.code, ErrorCode::kContextTooLong);
  EXPECT_EQ(all<SendAbort>(out).size(), 2U);
}

TEST_F(RouterTest, FinishedWithErrorRetriesOnlyFaultsOfNodes) {
  for (const auto& [code, retried] :
       {std::pair{ErrorCode::kCorruptFrame, true}, std::pair{ErrorCode::kPeerLost, true},
        std::pair{ErrorCode::kInternal, false}, std::pair{ErrorCode::kUnsupported, false}}) {
    make();
    pair();
    start(1);
    Commands out;
    router_->on_finished(NodeId{"d"}, {key(1, 1), FinishReason::kError, {code, "x", {}, 0}}, now_,
                         out);
    EXPECT_EQ(all<SendDecode>(out).size(), retried ? 1U : 0U) << error_code_name(code);
    EXPECT_EQ(all<Fail>(out).size(), retried ? 0U : 1U);
    Commands gone;
    router_->client_gone({0, 1}, now_, gone);
  }
}

TEST_F(RouterTest, ClientGoneAbortsBothSides) {
  pair();
  start(1);
  Commands out;
  router_->client_gone({0, 1}, now_, out);
  EXPECT_EQ(all<SendAbort>(out).size(), 2U);
  EXPECT_EQ(out.size(), 2U) << "neither Fail nor Done";
  EXPECT_EQ(router_->stats().aborted, 1U);
  out.clear();
  router_->client_gone({0, 1}, now_, out);
  EXPECT_TRUE(out.empty());
}

TEST_F(RouterTest, StopChoiceEndsOneChoice) {
  pair();
  start(1, 2);
  token("p", key(1, 1, 0), 0);
  Commands out;
  router_->stop_choice({0, 1}, Choice{0}, now_, out);
  EXPECT_EQ(all<SendAbort>(out).size(), 2U);
  EXPECT_EQ(all<SendAbort>(out)[0].key, key(1, 1, 0));
  EXPECT_TRUE(all<Done>(out).empty());
  EXPECT_EQ(only<SendPrefill>(out).submit.key, key(1, 1, 1)) << "nobody else lets it go";
  token("p", key(1, 1, 1), 0);
  EXPECT_TRUE(token("d", key(1, 1, 0), 1).empty()) << "overrun";
  out.clear();
  router_->stop_choice({0, 1}, Choice{0}, now_, out);
  router_->stop_choice({0, 1}, Choice{9}, now_, out);
  EXPECT_TRUE(out.empty());
  only<Done>(token("d", key(1, 1, 1), 1, FinishReason::kStop));
  EXPECT_EQ(router_->stats().completed, 1U);
}

TEST_F(RouterTest, OneChoiceFailingEndsTheOthers) {
  pair();
  start(1, 3);
  token("p", key(1, 1, 0), 0);
  token("d", key(1, 1, 0), 1);
  const Commands out = refused("p", key(1, 1, 1), false);
  EXPECT_EQ(all<SendAbort>(out).size(), 5U) << "the first one's prefill node is done with it";
  only<Fail>(out);
  EXPECT_EQ(router_->active(), 0U);
}

TEST_F(RouterTest, SilenceIsABackstop) {
  pair();
  up("p2", NodeRole::kPrefill);
  start(1);
  const Duration silence = RouterOptions{}.silence_deadline;
  EXPECT_TRUE(tick(silence - kSecond).empty());
  const Commands out = tick(2 * kSecond);
  EXPECT_EQ(only<SendDecode>(out).submit.key, key(1, 2));
  EXPECT_EQ(all<SendAbort>(out).size(), 2U);
  Commands gone;
  router_->client_gone({0, 1}, now_, gone);
}

TEST_F(RouterTest, PairsOnlyWithinOneTag) {
  up("p", NodeRole::kPrefill, "a");
  up("d", NodeRole::kDecode, "b");
  EXPECT_FALSE(router_->readiness().ready);
  start(1);
  EXPECT_EQ(status_.error().code, ErrorCode::kUnavailable);
  up("d2", NodeRole::kDecode, "a");
  EXPECT_TRUE(router_->readiness().ready);
  EXPECT_EQ(only<SendDecode>(start(1)).node.value, "d2");
  token("p", key(1, 1), 0);
  EXPECT_EQ(only<SendPrefill>(down("d2")).decode_node.value, "") << "d is of another tag";
  Commands gone;
  router_->client_gone({0, 1}, now_, gone);
}

// An answer that another router began on nodes of tag "b".
TEST_F(RouterTest, ResumedAnswersStayWithinTheirTag) {
  for (const char* tag : {"a", "b"}) {
    up(std::string("p-") + tag, NodeRole::kPrefill, tag);
    up(std::string("d-") + tag, NodeRole::kDecode, tag);
  }
  EXPECT_EQ(router_->exactness_tags(), (std::vector<std::string>{"a", "b"}));
  for (std::uint64_t id = 1; id <= 4; ++id) {
    const Commands out = start(id, 1, 10, "b");
    EXPECT_EQ(only<SendDecode>(out).node.value, "d-b");
    EXPECT_EQ(only<SendPrefill>(out).node.value, "p-b");
  }
  EXPECT_EQ(router_->stats().resumed, 4U);
  EXPECT_EQ(only<Deliver>(token("p-b", key(1, 1), 0)).route.exactness_tag, "b");
  // Also before the first token of the attempt: nobody of another tag takes its place.
  EXPECT_EQ(all<SendDecode>(down("d-b")).size(), 0U);
  Commands alone = down("p-b");
  EXPECT_EQ(all<SendPrefill>(alone).size() + all<SendDecode>(alone).size(), 0U);
  start(5, 1, 10, "b");
  EXPECT_EQ(status_.error().code, ErrorCode::kUnavailable);
  EXPECT_EQ(router_->exactness_tags(), (std::vector<std::string>{"a"}));
  EXPECT_EQ(all<SendDecode>(up("d-b", NodeRole::kDecode, "b")).size(), 4U);
  for (std::uint64_t id = 1; id <= 4; ++id) {
    Commands gone;
    router_->client_gone({0, id}, now_, gone);
  }
}

TEST_F(RouterTest, ReadyRuleAndReasons) {
  router_->nodes().expect(NodeRole::kPrefill, "p:1");
  router_->nodes().expect(NodeRole::kDecode, "d:1");
  EXPECT_FALSE(router_->readiness().ready);
  EXPECT_EQ(router_->readiness().missing.size(), 2U);
  up("d", NodeRole::kDecode);
  EXPECT_FALSE(router_->readiness().ready) << "never had a prefill node";
  start(1);
  ASSERT_FALSE(status_.has_value());
  EXPECT_EQ(status_.error().code, ErrorCode::kUnavailable);
  EXPECT_GT(status_.error().retry_after_ms, 0);
  EXPECT_EQ(router_->stats().rejected, 1U);
  up("p", NodeRole::kPrefill);
  EXPECT_TRUE(router_->readiness().ready);
  down("p");
  EXPECT_TRUE(router_->readiness().ready) << "the decode node serves alone";
  EXPECT_EQ(router_->readiness().missing.size(), 1U);
  down("d");
  EXPECT_FALSE(router_->readiness().ready);
  up("d", NodeRole::kDecode);
  up("p", NodeRole::kPrefill);
  router_->set_draining();
  EXPECT_FALSE(router_->readiness().ready);
  start(2);
  EXPECT_EQ(status_.error().code, ErrorCode::kUnavailable);
}

TEST_F(RouterTest, DrainingNodesGetNothingNew) {
  pair();
  up("d2", NodeRole::kDecode);
  router_->on_node_load(NodeId{"d"}, {}, true, now_);
  for (std::uint64_t id = 1; id <= 4; ++id) {
    EXPECT_EQ(only<SendDecode>(start(id)).node.value, "d2");
  }
}

TEST_F(RouterTest, WhoLeftTheClusterFinishesWhatItHas) {
  pair();
  router_->nodes().expect(NodeRole::kDecode, "d:1");
  start(1);
  token("p", key(1, 1), 0);
  router_->nodes().retire("d:1");
  up("d2", NodeRole::kDecode);
  for (std::uint64_t id = 2; id <= 4; ++id) {
    EXPECT_EQ(only<SendDecode>(start(id)).node.value, "d2");
    Commands gone;
    router_->client_gone({0, id}, now_, gone);
  }
  EXPECT_EQ(all<Deliver>(token("d", key(1, 1), 1)).size(), 1U);
  EXPECT_EQ(all<Done>(token("d", key(1, 1), 2, FinishReason::kStop)).size(), 1U);
  down("d");
  router_->nodes().forget("d:1");
  EXPECT_EQ(router_->nodes().find(NodeId{"d"}), nullptr);
  EXPECT_TRUE(token("d", key(1, 1), 3).empty()) << "a late word of one that is forgotten";
}

TEST_F(RouterTest, ManyRequestsAreSharedOut) {
  pair();
  up("d2", NodeRole::kDecode);
  std::multiset<std::string> nodes;
  for (std::uint64_t id = 1; id <= 10; ++id) {
    nodes.insert(only<SendDecode>(start(id)).node.value);
  }
  EXPECT_EQ(nodes.count("d"), 5U);
  EXPECT_EQ(nodes.count("d2"), 5U);
  router_->on_node_load(NodeId{"d"}, {.running = 50}, false, now_);
  EXPECT_EQ(only<SendDecode>(start(11)).node.value, "d2") << "others load it, too";
}

TEST_F(RouterTest, BoundedQueue) {
  make({.max_active = 2});
  pair();
  start(1);
  start(2);
  EXPECT_TRUE(start(3).empty());
  EXPECT_EQ(status_.error().code, ErrorCode::kOverloaded);
  EXPECT_GT(status_.error().retry_after_ms, 0);
  token("p", key(1, 1), 0, FinishReason::kStop);
  start(3);
  EXPECT_TRUE(status_.has_value());
}

TEST_F(RouterTest, NeverFittingIsRefusedAtOnce) {
  pair();
  start(1, 1, 998);
  ASSERT_FALSE(status_.has_value());
  EXPECT_EQ(status_.error().code, ErrorCode::kContextTooLong);
  EXPECT_NE(status_.error().message.find("1001"), std::string::npos) << status_.error().message;
  EXPECT_NE(status_.error().message.find("1000"), std::string::npos);
  start(1, 1, 997);
  EXPECT_TRUE(status_.has_value());
}

TEST_F(RouterTest, LocalEngine) {
  make({.local_engine = true, .self = NodeId{"me"}, .exactness_tag = "mine"});
  start(1);
  EXPECT_EQ(status_.error().code, ErrorCode::kUnavailable);
  router_->set_local_ready(true);
  EXPECT_TRUE(router_->readiness().ready);
  EXPECT_EQ(only<RunLocal>(start(1)).submit.key, key(1, 1));
  const Route route = only<Deliver>(token("", key(1, 1), 0)).route;
  EXPECT_EQ(route.decode_node.value, "me");
  EXPECT_EQ(route.exactness_tag, "mine");
  EXPECT_EQ(router_->exactness_tags(), (std::vector<std::string>{"mine"}));
  only<Done>(token("", key(1, 1), 1, FinishReason::kLength));
  start(2);
  EXPECT_EQ(only<Fail>(refused("", key(2, 1), true, ErrorCode::kOverloaded)).error.code,
            ErrorCode::kOverloaded);
  start(3, 2);
  EXPECT_EQ(only<RunLocal>(token("", key(3, 1), 0)).submit.key, key(3, 1, 1));
  Commands out;
  router_->client_gone({0, 3}, now_, out);
  EXPECT_EQ(all<SendAbort>(out).size(), 2U);
  EXPECT_TRUE(all<SendAbort>(out)[0].node.value.empty());
}

// The prompt is computed and sent once: the other choices find it in the caches of those nodes.
TEST_F(RouterTest, FurtherChoicesWaitForThePrompt) {
  pair();
  up("p2", NodeRole::kPrefill);
  up("d2", NodeRole::kDecode);
  EXPECT_EQ(only<SendDecode>(start(1, 3)).submit.key, key(1, 1));
  EXPECT_TRUE(all<SendDecode>(token("p", key(1, 1), 0)).empty()) << "its KV is still on the way";
  EXPECT_TRUE(all<SendDecode>(tick(kSecond)).empty());
  const Commands out = token("d", key(1, 1), 1);
  const auto sent = all<SendDecode>(out);
  ASSERT_EQ(sent.size(), 2U);
  for (std::uint32_t choice = 1; choice < 3; ++choice) {
    EXPECT_EQ(sent[choice - 1].submit.key, key(1, 1, choice));
    EXPECT_EQ(sent[choice - 1].node.value, "d") << "though d2 has nothing to do";
    EXPECT_EQ(sent[choice - 1].prefill_node.value, "p");
  }
  EXPECT_TRUE(all<SendDecode>(token("d", key(1, 1), 2)).empty()) << "once";
  EXPECT_EQ(only<SendDecode>(refused("d", key(1, 1, 2), true)).node.value, "d2")
      << "a full node is not insisted on";
}

TEST_F(RouterTest, ChoicesOfAnAnswerAreOfOneTag) {
  up("p", NodeRole::kPrefill, "a");
  up("d", NodeRole::kDecode, "a");
  start(1, 2);
  token("p", key(1, 1), 0);
  up("p2", NodeRole::kPrefill, "b");
  up("d2", NodeRole::kDecode, "b");
  EXPECT_EQ(only<SendDecode>(token("d", key(1, 1), 1)).node.value, "d");
  const Commands again = refused("d", key(1, 1, 1), true);
  EXPECT_EQ(only<SendDecode>(again).node.value, "d") << "d2 has it not, and computes otherwise";
  Commands out;
  router_->client_gone({0, 1}, now_, out);
}

TEST_F(RouterTest, FurtherChoicesOutliveTheFirst) {
  pair();
  up("d2", NodeRole::kDecode);
  start(1, 2, 1);
  const Commands ended = token("p", key(1, 1), 0, FinishReason::kLength);
  EXPECT_TRUE(all<Done>(ended).empty());
  EXPECT_EQ(only<SendPrefill>(ended).submit.key, key(1, 1, 1));
  only<Done>(token("p", key(1, 1, 1), 0, FinishReason::kLength));

  // The first one's decode node dies before its KV is there: the next attempt lets the others go.
  start(2, 2);
  token("p", key(2, 1), 0);
  const std::string first = router_->nodes().find(NodeId{"d"})->assigned > 0 ? "d" : "d2";
  const std::string other = first == "d" ? "d2" : "d";
  EXPECT_EQ(only<SendDecode>(down(first)).node.value, other);
  EXPECT_EQ(only<SendDecode>(token(other, key(2, 2), 1)).submit.key, key(2, 1, 1));
  Commands out;
  router_->client_gone({0, 2}, now_, out);

  // Gone before: nothing is started for them.
  start(3, 4);
  out.clear();
  router_->client_gone({0, 3}, now_, out);
  EXPECT_EQ(out.size(), 2U) << "two aborts of the first choice";
}

// "Full" may be an answer only before the first token of any of them.
TEST_F(RouterTest, AFullNodeDoesNotEndTheChoicesThatRun) {
  pair();
  start(1, 2);
  token("p", key(1, 1), 0);
  EXPECT_EQ(only<SendDecode>(token("d", key(1, 1), 1)).submit.key, key(1, 1, 1));
  EXPECT_EQ(only<SendDecode>(refused("d", key(1, 1, 1), true, ErrorCode::kOverloaded)).submit.key,
            key(1, 2, 1));
  EXPECT_TRUE(all<Fail>(refused("d", key(1, 2, 1), true, ErrorCode::kOverloaded)).empty());
  EXPECT_EQ(only<SendDecode>(tick(kSecond)).submit.key, key(1, 3, 1)) << "it is tried again";
  // And again, for longer than a request that nobody has seen a part of would be kept.
  std::uint32_t epoch = 3;
  for (int turn = 0; turn < 40; ++turn) {
    now_ += 10 * kSecond;
    EXPECT_TRUE(all<Fail>(refused("d", key(1, epoch, 1), true, ErrorCode::kOverloaded)).empty());
    EXPECT_EQ(only<SendDecode>(tick(kSecond)).submit.key, key(1, ++epoch, 1));
  }
  Commands out;
  router_->client_gone({0, 1}, now_, out);
}

// The same where one engine does all.
TEST_F(RouterTest, AFullEngineDoesNotEndTheChoicesThatRun) {
  make({.local_engine = true, .self = NodeId{"me"}, .exactness_tag = "mine"});
  router_->set_local_ready(true);
  start(1, 2);
  only<RunLocal>(token("", key(1, 1), 0));
  now_ += 60 * kSecond;
  EXPECT_TRUE(refused("", key(1, 1, 1), true, ErrorCode::kOverloaded).size() <= 1) << "an abort";
  EXPECT_EQ(only<RunLocal>(tick(kSecond)).submit.key, key(1, 2, 1));
  token("", key(1, 2, 1), 0);
  EXPECT_TRUE(all<Done>(token("", key(1, 1), 1, FinishReason::kStop)).empty());
  only<Done>(token("", key(1, 2, 1), 1, FinishReason::kStop));
}

// Time at work is no time of waiting: a prefill that was lost after a minute is made again.
TEST_F(RouterTest, WorkIsNoWaiting) {
  pair();
  start(1);
  tick(100 * kSecond);
  down("p");
  down("d");
  EXPECT_TRUE(all<Fail>(tick(29 * kSecond)).empty());
  only<SendDecode>(up("d", NodeRole::kDecode));
  tick(100 * kSecond);
  down("d");
  EXPECT_TRUE(all<Fail>(tick(Duration{})).empty());
  EXPECT_EQ(only<Fail>(tick(2 * kSecond)).error.code, ErrorCode::kPeerLost);
}

// Every event in every state, at random: indices out, per choice, are always 0, 1, 2, ... with the
// right tokens; every request ends in exactly one way; no leg is counted for ever.
TEST_F(RouterTest, RandomEventsNeverBreakTheStream) {
  for (std::uint32_t seed = 1; seed <= 200; ++seed) {
    std::mt19937 random(seed);
    const auto pick = [&](std::uint32_t n) { return static_cast<std::uint32_t>(random() % n); };
    make({.max_active = 6});
    const std::vector<std::string> nodes{"p", "p2", "d", "d2"};
    const auto bring_up = [&](const std::string& id) {
      return up(id, id[0] == 'p' ? NodeRole::kPrefill : NodeRole::kDecode);
    };
    for (const auto& id : nodes) {
      bring_up(id);
    }
    std::map<std::pair<std::uint64_t, std::uint32_t>, std::int32_t> next;
    std::map<std::uint64_t, int> ends;
    std::set<std::uint64_t> accepted;
    std::vector<SequenceKey> known;
    std::uint64_t last_id = 0;
    for (int turn = 0; turn < 400; ++turn) {
      Commands out;
      const std::string& node = nodes[pick(4)];
      const SequenceKey some =
          known.empty() ? key(1, 1) : known[pick(static_cast<std::uint32_t>(known.size()))];
      switch (pick(10)) {
        case 0: {
          const std::uint32_t n = 1 + pick(2);
          out = start(++last_id, n, 6);
          if (status_) {
            accepted.insert(last_id);
          }
          break;
        }
        case 1:
          out = refused(node, some, pick(4) > 0);
          break;
        case 2:
          out = pick(3) == 0 ? down(node) : bring_up(node);
          break;
        case 3:
          out = tick(std::chrono::milliseconds(pick(3000)));
          break;
        case 4:
          if (pick(4) == 0) {
            router_->client_gone(some.request, now_, out);
            ends[some.request.low] +=
                accepted.count(some.request.low) > 0 && ends[some.request.low] == 0 ? 1 : 0;
          } else if (pick(4) == 0) {
            router_->stop_choice(some.request, some.choice, now_, out);
          }
          break;
        case 5:
          router_->on_finished(NodeId{node},
                               {some,
                                pick(2) == 0 ? FinishReason::kAborted : FinishReason::kError,
                                {ErrorCode::kPeerLost, "x", {}, 0}},
                               now_, out);
          break;
        case 6:
          router_->on_node_load(NodeId{node}, {.running = pick(9)}, pick(4) == 0, now_);
          break;
        default: {
          const auto index = static_cast<std::int32_t>(pick(6));
          out = token(node, some, index, index == 5 ? FinishReason::kLength : FinishReason::kNone);
        }
      }
      for (const Command& command : out) {
        if (const auto* deliver = std::get_if<Deliver>(&command)) {
          const auto& delivered = deliver->token;
          EXPECT_EQ(delivered.index,
                    (next[{delivered.key.request.low, delivered.key.choice.value}]++));
          EXPECT_EQ(delivered.token, 100 + delivered.index);
          EXPECT_EQ(ends[delivered.key.request.low], 0) << "delivered after the end";
        } else if (const auto* decode = std::get_if<SendDecode>(&command)) {
          EXPECT_EQ(static_cast<std::int32_t>(decode->submit.emitted.size()),
                    (next[{decode->submit.key.request.low, decode->submit.key.choice.value}]));
          known.push_back(decode->submit.key);
        } else if (const auto* prefill = std::get_if<SendPrefill>(&command)) {
          known.push_back(prefill->submit.key);
        } else if (const auto* failed = std::get_if<Fail>(&command)) {
          ++ends[failed->request.low];
        } else if (const auto* done = std::get_if<Done>(&command)) {
          ++ends[done->request.low];
        }
      }
    }
    Commands out;
    for (const std::uint64_t id : accepted) {
      const bool open = ends[id] == 0;
      const std::size_t before = router_->active();
      router_->client_gone({0, id}, now_, out);
      EXPECT_EQ(router_->active(), before - (open ? 1U : 0U)) << "seed " << seed;
      EXPECT_LE(ends[id], 1) << "seed " << seed;
    }
    EXPECT_EQ(router_->active(), 0U);
    EXPECT_EQ(router_->stats().mismatches, 0U);
    TearDown();
  }
}

}  // namespace
}  // namespace baton::router
