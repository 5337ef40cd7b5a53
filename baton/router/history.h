// The latest requests of an owner as time lines, for the cluster view: what happened to each of
// them, when, and on which nodes. No prompt, no text and no key is kept. Bounded in requests,
// events and text. Fed by Router, which tells it the time; thread: control (copies may go
// anywhere).
#pragma once

#include "baton/base/clock.h"
#include "baton/base/ids.h"

#include <cstddef>
#include <cstdint>
#include <list>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace baton::router {

// What the page shows at once, and 100 kB of JSON when every one is full.
inline constexpr std::size_t kKeptRequests = 64;
// An ordinary request has three; each lost node adds about four. The latest are left out, and
// counted.
inline constexpr std::size_t kKeptEvents = 48;
inline constexpr std::size_t kMaxReasonBytes = 200;

enum class EventKind : std::uint8_t {
  kWaiting,     // no node can take it now
  kSent,        // an attempt left: `node` prefills, `decode_node` decodes (the same: no handoff)
  kFirstToken,  // `node` made the attempt's first token
  kCommitted,   // `node` has verified the KV and decodes: its first message came
  kLost,        // the attempt is over; `node` had it, `reason` says why
};
std::string_view event_name(EventKind kind);

struct HistoryEvent {
  EventKind kind = EventKind::kWaiting;
  TimePoint at{};
  Choice choice{};
  NodeId node{};
  NodeId decode_node{};
  std::int32_t tokens = 0;  // delivered to the client by then, of this choice
  std::string reason{};
};

enum class RequestState : std::uint8_t { kActive, kCompleted, kFailed, kAborted };
std::string_view request_state_name(RequestState state);

struct RequestHistory {
  RequestId id;
  RequestState state = RequestState::kActive;
  TimePoint received{};
  TimePoint ended{};  // unless active
  std::uint32_t choices = 1;
  std::int32_t prompt_tokens = 0;
  std::int32_t max_tokens = 0;
  std::int32_t cached_tokens = 0;
  std::int64_t tokens = 0;     // delivered, of all choices
  std::uint64_t kv_bytes = 0;  // moved by handoff for it, as the decode nodes counted
  std::string error;           // when failed
  std::vector<HistoryEvent> events;
  std::uint32_t events_left_out = 0;
};

class History {
 public:
  // The time of all that is told from here on.
  void set_time(TimePoint now) { now_ = now; }

  // Forgets the oldest request when there are kKeptRequests: an ended one if there is any.
  void begin(const RequestId& id, std::uint32_t choices, std::int32_t prompt_tokens,
             std::int32_t max_tokens);
  // These ignore requests that are not kept. A kWaiting that follows a kWaiting is dropped.
  void add(const RequestId& id, HistoryEvent event);
  void count_token(const RequestId& id, std::int32_t cached_tokens, std::uint64_t kv_bytes);
  void end(const RequestId& id, RequestState state, std::string_view error);

  // Oldest first.
  [[nodiscard]] const std::list<RequestHistory>& requests() const { return requests_; }

 private:
  RequestHistory* find(const RequestId& id);

  TimePoint now_{};
  std::list<RequestHistory> requests_;
  std::unordered_map<RequestId, std::list<RequestHistory>::iterator> by_id_;
};

}  // namespace baton::router
