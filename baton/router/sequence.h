// What the router keeps of a request and of each of its sequences. Inside of router/ only; control
// thread.
#pragma once

#include "baton/router/router.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace baton::router {

// One more of an event. Any thread.
inline void count(std::atomic<std::uint64_t>& counter) {
  counter.fetch_add(1, std::memory_order_relaxed);
}

inline constexpr std::int64_t kRetryAfterMs = 1000;  // a typical answer frees a slot in that time

struct Router::Sequence {
  // kHeld: a further choice, until the prompt's KV is there (see Router::release_siblings).
  enum class State : std::uint8_t { kHeld, kWaiting, kRunning, kEnded };

  message::Submit submit;  // key.epoch is the current attempt's; emitted grows with each delivery
  State state = State::kWaiting;
  bool on_local_engine = false;
  NodeId prefill;  // legs of the current attempt that may still hold something; empty = none
  NodeId decode;
  Route route;
  std::string required_tag;   // of an answer begun elsewhere, or its first choice; empty: any
  std::string exactness_tag;  // of the first attempt that delivered: replays stay within it
  std::map<std::int32_t, message::Token> ahead;  // came before their turn

  std::uint32_t attempts = 0;       // since the last token
  std::vector<NodeId> avoid;        // at most max_attempts entries
  std::vector<NodeId> prefer;       // they have the prompt's KV
  std::vector<PrefixName> names;    // of the prompt's prefixes; kKvAware only
  std::int64_t prefill_tokens = 0;  // counted at the node of the prefill leg
  Error last_error{ErrorCode::kUnavailable, "no node could take the request", {}, kRetryAfterMs};
  Duration backoff{};
  TimePoint retry_at{};                   // kWaiting
  TimePoint wait_deadline{};              // kWaiting: give up; time at work is added to it
  std::optional<TimePoint> nobody_since;  // kWaiting: there was no node to ask, ever since
  TimePoint sent_at{};                    // kRunning
  TimePoint silent_until{};               // kRunning: give the attempt up
  bool progressed = false;                // a token since the last attempt began

  [[nodiscard]] std::int32_t next_index() const {
    return static_cast<std::int32_t>(submit.emitted.size());
  }
};

struct Router::Request {
  RequestId id;
  std::vector<std::unique_ptr<Sequence>> choices;  // by choice number
  std::size_t open = 0;

  // A client has a part of its answer, which should not end for want of room.
  [[nodiscard]] bool promised() const {
    return std::any_of(choices.begin(), choices.end(),
                       [](const auto& choice) { return !choice->submit.emitted.empty(); });
  }
};

}  // namespace baton::router
