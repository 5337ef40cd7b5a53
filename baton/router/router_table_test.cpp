// Every event in every state of a router's sequence: a request ends at most once, nothing comes for
// it afterwards, no node is left with work on its account, and the table counts what was met.
#include "baton/router/cells.h"
#include "baton/router/router.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace baton::router {
namespace {

using cells::Event;
using cells::State;
using message::FinishReason;
using message::NodeRole;

#ifdef BATON_FAILPOINTS
constexpr bool kCounted = true;
#else
constexpr bool kCounted = false;  // the table is not filled
#endif

const NodeId kPrefill{"p"};
const NodeId kDecode{"d"};
const NodeId kSecond{"d2"};
constexpr std::int32_t kMaxTokens = 10;
constexpr Duration kAMoment = std::chrono::milliseconds(100);  // more than the first backoff
const RequestId kRequest{0, 1};

SequenceKey key(std::uint32_t epoch, std::uint32_t choice = 0) {
  return {kRequest, Choice{choice}, Epoch{epoch}};
}

// A router with one request of which a sequence is in the wanted state, and what an event of a node
// about it names.
struct Situation {
  explicit Situation(State state) {
    up(kPrefill, NodeRole::kPrefill);
    up(kDecode, NodeRole::kDecode);
    switch (state) {
      case State::kNone:
        break;
      case State::kHeld:
        start(2);
        about = key(0, 1);
        break;
      case State::kWaiting:
        start(1);
        down(kPrefill);
        down(kDecode);
        about = key(2);
        break;
      case State::kAsked:
        start(1);
        break;
      case State::kAnswering:
        answer();
        break;
      case State::kElsewhere:
        up(kSecond, NodeRole::kDecode);
        answer();
        router.on_refused(from, {about, true, error(ErrorCode::kUnavailable)}, now, out);
        break;
      case State::kEnded:
        start(2);
        token(kPrefill, 0, FinishReason::kLength);
        break;
    }
    EXPECT_EQ(ends(), 0);
  }

  void up(const NodeId& id, NodeRole role) {
    router.on_node_up({message::NodeInfo{id, role, id.value + ":1", "t", 1000, 1000}}, now, out);
  }
  void down(const NodeId& id) { router.on_node_down({id, "reset"}, now, out); }
  void start(std::uint32_t choices) {
    std::vector<message::Submit> submits(choices);
    for (message::Submit& submit : submits) {
      submit.key.request = kRequest;
      submit.prompt = {1, 2, 3};
      submit.max_tokens = kMaxTokens;
    }
    EXPECT_TRUE(router.start(std::move(submits), now, out));
  }
  // The node that was asked to decode, of two perhaps, has made tokens 0 and 1.
  void answer() {
    start(1);
    for (const Command& command : out) {
      if (const auto* sent = std::get_if<SendDecode>(&command)) {
        from = sent->node;
      }
    }
    token(kPrefill, 0);
    for (std::int32_t index = 0; index < 2; ++index) {
      token(from, index);
    }
  }
  void token(const NodeId& node, std::int32_t index, FinishReason finish = FinishReason::kNone,
             TokenId id = -1) {
    message::Token event;
    event.key = about;
    event.index = index;
    event.token = id >= 0 ? id : 100 + index;
    event.finish = finish;
    router.on_tokens(node, {event}, now, out);
  }
  void tick(Duration later) {
    now += later;
    router.tick(now, out);
  }
  static Error error(ErrorCode code) { return {code, "why", {}, 0}; }
  // How often the request ended, by the commands so far.
  [[nodiscard]] int ends() const {
    int found = 0;
    for (const Command& command : out) {
      const bool ended =
          std::holds_alternative<Fail>(command) || std::holds_alternative<Done>(command);
      found += ended ? 1 : 0;
    }
    return found;
  }

  void meet(Event event, State state);

  Router router{RouterOptions{}};
  Commands out;
  TimePoint now{};
  SequenceKey about = key(1);
  NodeId from = kDecode;
};

void Situation::meet(Event event, State state) {
  const std::int32_t next = state == State::kAnswering ? 2 : 0;
  switch (event) {
    case Event::kNextToken:
      token(from, next);
      break;
    case Event::kTokenAhead:
      token(from, next + 1);
      break;
    case Event::kTokenAgain:  // one that was delivered, or one that waits for those before it
      token(from, next == 0 ? 1 : 0);
      token(from, next == 0 ? 1 : 0);
      break;
    case Event::kLastToken:
      token(from, next, FinishReason::kLength);
      break;
    case Event::kOtherToken:
      token(from, kMaxTokens);
      break;
    case Event::kRefusedLater:
    case Event::kRefusedNever:
      router.on_refused(
          from, {about, event == Event::kRefusedLater, error(ErrorCode::kUnavailable)}, now, out);
      break;
    case Event::kGivenUp:
    case Event::kFailed: {
      const ErrorCode code = event == Event::kGivenUp ? ErrorCode::kPeerLost : ErrorCode::kInternal;
      router.on_finished(from, {about, FinishReason::kError, error(code)}, now, out);
      break;
    }
    case Event::kNodeDown:
      down(from);
      break;
    case Event::kNodeUp:
      up(NodeId{"another"}, NodeRole::kDecode);
      break;
    case Event::kClientGone:
      router.client_gone(kRequest, now, out);
      break;
    case Event::kStopped:
      router.stop_choice(kRequest, about.choice, now, out);
      break;
    case Event::kWaitOver:
      tick(RouterOptions{}.queue_deadline);
      break;
    case Event::kRetryDue:
      tick(kAMoment);
      break;
    case Event::kSilent:
      tick(RouterOptions{}.silence_deadline);
      break;
  }
}

// Whether the table has the event as that one in that state.
bool counts_there(Event event, State state) {
  const bool runs = state == State::kAsked || state == State::kAnswering;
  switch (event) {
    case Event::kTokenAhead:
    case Event::kTokenAgain:
    case Event::kLastToken:
    case Event::kOtherToken:
    case Event::kSilent:
      return runs;
    case Event::kNodeDown:
      return state != State::kNone;
    case Event::kNodeUp:
      return state != State::kNone && state != State::kElsewhere;
    case Event::kClientGone:
    case Event::kStopped:
      return state != State::kElsewhere;
    case Event::kWaitOver:
    case Event::kRetryDue:
      return state == State::kWaiting;
    default:
      return true;
  }
}

TEST(RouterTable, EveryEventInEveryState) {
  for (std::size_t at = 0; at < cells::table().states().size(); ++at) {
    for (std::size_t number = 0; number < cells::table().events().size(); ++number) {
      SCOPED_TRACE(
          fmt::format("{} in {}", cells::table().events()[number], cells::table().states()[at]));
      const auto state = static_cast<State>(at);
      const auto event = static_cast<Event>(number);
      Situation it(state);
      const std::uint64_t before = cells::table().count(at, number);
      it.meet(event, state);
      if (kCounted && counts_there(event, state)) {
        EXPECT_GT(cells::table().count(at, number), before);
      }
      EXPECT_LE(it.ends(), 1);
      EXPECT_EQ(it.router.active(),
                state == State::kNone || it.ends() == 1 || event == Event::kClientGone ? 0U : 1U);
      // However it went on: the client leaves, and nothing comes any more.
      it.router.client_gone(kRequest, it.now, it.out);
      it.out.clear();
      for (std::uint32_t epoch = 1; epoch < 4; ++epoch) {
        it.about = key(epoch);
        it.token(kDecode, 0, FinishReason::kLength);
        it.token(kSecond, 0);
      }
      it.tick(RouterOptions{}.silence_deadline);
      EXPECT_TRUE(it.out.empty());
      EXPECT_EQ(it.router.active(), 0U);
      for (const auto& [id, record] : it.router.nodes().nodes()) {
        EXPECT_EQ(record.assigned, 0U) << id.value;
      }
    }
  }
}

}  // namespace
}  // namespace baton::router
