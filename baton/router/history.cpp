#include "baton/router/history.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace baton::router {

std::string_view event_name(EventKind kind) {
  switch (kind) {
    case EventKind::kWaiting:
      return "waiting";
    case EventKind::kSent:
      return "sent";
    case EventKind::kFirstToken:
      return "first_token";
    case EventKind::kCommitted:
      return "committed";
    case EventKind::kLost:
      return "lost";
  }
  return "unknown";
}

std::string_view request_state_name(RequestState state) {
  switch (state) {
    case RequestState::kActive:
      return "active";
    case RequestState::kCompleted:
      return "completed";
    case RequestState::kFailed:
      return "failed";
    case RequestState::kAborted:
      return "aborted";
  }
  return "unknown";
}

RequestHistory* History::find(const RequestId& id) {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : &*found->second;
}

void History::begin(const RequestId& id, std::uint32_t choices, std::int32_t prompt_tokens,
                    std::int32_t max_tokens) {
  if (requests_.size() >= kKeptRequests) {
    auto oldest = std::find_if(requests_.begin(), requests_.end(), [](const auto& request) {
      return request.state != RequestState::kActive;
    });
    oldest = oldest == requests_.end() ? requests_.begin() : oldest;
    by_id_.erase(oldest->id);
    requests_.erase(oldest);
  }
  RequestHistory& request = requests_.emplace_back();
  request.id = id;
  request.received = now_;
  request.choices = choices;
  request.prompt_tokens = prompt_tokens;
  request.max_tokens = max_tokens;
  by_id_[id] = std::prev(requests_.end());
}

void History::add(const RequestId& id, HistoryEvent event) {
  RequestHistory* request = find(id);
  if (request == nullptr) {
    return;
  }
  if (event.kind == EventKind::kWaiting && !request->events.empty() &&
      request->events.back().kind == EventKind::kWaiting &&
      request->events.back().choice == event.choice) {
    return;
  }
  if (request->events.size() >= kKeptEvents) {
    ++request->events_left_out;
    return;
  }
  event.at = now_;
  event.reason.resize(std::min(event.reason.size(), kMaxReasonBytes));
  request->events.push_back(std::move(event));
}

void History::count_token(const RequestId& id, std::int32_t cached_tokens, std::uint64_t kv_bytes) {
  if (RequestHistory* request = find(id)) {
    ++request->tokens;
    request->cached_tokens = std::max(request->cached_tokens, cached_tokens);
    request->kv_bytes = std::max(request->kv_bytes, kv_bytes);
  }
}

void History::end(const RequestId& id, RequestState state, std::string_view error) {
  if (RequestHistory* request = find(id)) {
    request->state = state;
    request->ended = now_;
    request->error = error.substr(0, kMaxReasonBytes);
  }
}

}  // namespace baton::router
