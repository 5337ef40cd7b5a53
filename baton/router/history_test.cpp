// Time lines of requests: what the router tells, and the bounds.
#include "baton/router/history.h"

#include "baton/router/router.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace baton::router {
namespace {

using message::FinishReason;
using message::NodeRole;

constexpr auto kStep = std::chrono::milliseconds(10);

class HistoryOfRouter : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* id : {"p0", "p1"}) {
      up(id, NodeRole::kPrefill);
    }
    for (const char* id : {"d0", "d1"}) {
      up(id, NodeRole::kDecode);
    }
  }
  void up(const std::string& id, NodeRole role) {
    router_.on_node_up({message::NodeInfo{NodeId{id}, role, id + ":1", "t", 1000, 1000}}, now_,
                       out_);
  }
  void start(std::uint64_t id) {
    message::Submit submit;
    submit.key.request = {0, id};
    submit.prompt = {1, 2, 3};
    submit.max_tokens = 10;
    ASSERT_TRUE(router_.start({submit}, now_, out_).has_value());
  }
  void token(const std::string& from, std::uint64_t id, std::uint32_t epoch, std::int32_t index,
             FinishReason finish = FinishReason::kNone) {
    now_ += kStep;
    message::Token event;
    event.key = {{0, id}, {0}, {epoch}};
    event.index = index;
    event.token = 100 + index;
    event.finish = finish;
    event.kv_bytes = from[0] == 'd' ? 640 : 0;
    router_.on_tokens(NodeId{from}, {event}, now_, out_);
  }
  // The nodes of the newest attempt of the last request.
  const HistoryEvent& last_sent() {
    const auto& events = router_.history().requests().back().events;
    return *std::find_if(events.rbegin(), events.rend(),
                         [](const auto& event) { return event.kind == EventKind::kSent; });
  }
  std::vector<EventKind> kinds() {
    std::vector<EventKind> out;
    for (const HistoryEvent& event : router_.history().requests().back().events) {
      out.push_back(event.kind);
    }
    return out;
  }

  Router router_{RouterOptions{}};
  TimePoint now_{std::chrono::seconds(5)};
  Commands out_;
};

TEST_F(HistoryOfRouter, OneSplitRequest) {
  start(1);
  const HistoryEvent sent = last_sent();
  const TimePoint began = now_;
  token(sent.node.value, 1, 1, 0);
  token(sent.decode_node.value, 1, 1, 0);  // repeats index 0: the KV is there
  token(sent.decode_node.value, 1, 1, 1);
  token(sent.decode_node.value, 1, 1, 2, FinishReason::kLength);

  const RequestHistory& request = router_.history().requests().back();
  EXPECT_EQ(kinds(),
            (std::vector{EventKind::kSent, EventKind::kFirstToken, EventKind::kCommitted}));
  EXPECT_EQ(request.events[0].at, began);
  EXPECT_EQ(request.events[1].at, began + kStep);
  EXPECT_EQ(request.events[1].node, sent.node);
  EXPECT_EQ(request.events[2].at, began + 2 * kStep);
  EXPECT_EQ(request.events[2].node, sent.decode_node);
  EXPECT_EQ(request.state, RequestState::kCompleted);
  EXPECT_EQ(request.received, began);
  EXPECT_EQ(request.ended, began + 4 * kStep);
  EXPECT_EQ(request.tokens, 3);
  EXPECT_EQ(request.prompt_tokens, 3);
  EXPECT_EQ(request.kv_bytes, 640U);
}

TEST_F(HistoryOfRouter, ADeadNodeLeavesItsNameAndTheReason) {
  start(1);
  const HistoryEvent first = last_sent();
  token(first.node.value, 1, 1, 0);
  token(first.decode_node.value, 1, 1, 1);
  now_ += kStep;
  router_.on_node_down({first.decode_node, "reset"}, now_, out_);
  const HistoryEvent second = last_sent();
  EXPECT_NE(second.decode_node, first.decode_node);
  EXPECT_EQ(second.tokens, 2) << "the replay carries what the client has";
  token(second.node.value, 1, 2, 2);
  EXPECT_EQ(kinds(), (std::vector{EventKind::kSent, EventKind::kFirstToken, EventKind::kCommitted,
                                  EventKind::kLost, EventKind::kSent, EventKind::kFirstToken}));
  const HistoryEvent& lost = router_.history().requests().back().events[3];
  EXPECT_EQ(lost.node, first.decode_node);
  EXPECT_NE(lost.reason.find("connection to a node broke"), std::string::npos) << lost.reason;
  router_.client_gone({0, 1}, now_, out_);
  EXPECT_EQ(router_.history().requests().back().state, RequestState::kAborted);
}

TEST_F(HistoryOfRouter, AFailureKeepsItsError) {
  start(1);
  router_.on_refused(last_sent().node,
                     {{{0, 1}, {0}, {1}}, false, {ErrorCode::kContextTooLong, "too long", {}, 0}},
                     now_, out_);
  EXPECT_EQ(router_.history().requests().back().state, RequestState::kFailed);
  EXPECT_EQ(router_.history().requests().back().error, "too long");
}

TEST_F(HistoryOfRouter, WaitingForANodeIsOneEvent) {
  start(1);
  for (const char* id : {"p0", "p1", "d0", "d1"}) {
    router_.on_node_down({NodeId{id}, "reset"}, now_, out_);
  }
  const std::size_t before = kinds().size();
  EXPECT_EQ(kinds().back(), EventKind::kWaiting);
  for (int i = 0; i < 20; ++i) {
    now_ += std::chrono::seconds(1);
    router_.tick(now_, out_);
  }
  EXPECT_EQ(kinds().size(), before);
  up("d0", NodeRole::kDecode);
  EXPECT_EQ(last_sent().node, NodeId{"d0"});
  EXPECT_EQ(last_sent().decode_node, NodeId{"d0"});
}

TEST(History, RequestsAreBoundedAndEndedOnesGoFirst) {
  History history;
  history.begin({0, 1}, 1, 3, 10);  // never ends
  for (std::uint64_t id = 2; id < 1000; ++id) {
    history.begin({0, id}, 1, 3, 10);
    history.end({0, id}, RequestState::kCompleted, {});
    EXPECT_LE(history.requests().size(), kKeptRequests);
  }
  EXPECT_EQ(history.requests().front().id.low, 1U);
  EXPECT_EQ(history.requests().back().id.low, 999U);
  for (std::uint64_t id = 1000; id < 1200; ++id) {
    history.begin({0, id}, 1, 3, 10);
  }
  EXPECT_EQ(history.requests().size(), kKeptRequests);
  EXPECT_EQ(history.requests().front().id.low, 1200U - kKeptRequests);
  history.add({0, 1}, {.kind = EventKind::kSent});  // forgotten meanwhile
  history.count_token({0, 1}, 0, 0);
  history.end({0, 1}, RequestState::kFailed, "x");
}

TEST(History, EventsAndTextsAreBounded) {
  History history;
  history.begin({0, 1}, 1, 3, 10);
  for (std::size_t i = 0; i < kKeptEvents + 7; ++i) {
    history.add({0, 1}, {.kind = EventKind::kLost, .reason = std::string(10'000, 'x')});
  }
  const RequestHistory& request = history.requests().front();
  EXPECT_EQ(request.events.size(), kKeptEvents);
  EXPECT_EQ(request.events_left_out, 7U);
  EXPECT_EQ(request.events.front().reason.size(), kMaxReasonBytes);
  history.end({0, 1}, RequestState::kFailed, std::string(10'000, 'y'));
  EXPECT_EQ(request.error.size(), kMaxReasonBytes);
}

}  // namespace
}  // namespace baton::router
