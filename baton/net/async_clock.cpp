#include "baton/net/async_clock.h"

#include <algorithm>

namespace baton::net {

asio::awaitable<void> AsyncClock::sleep_for(Duration time) {
  const TimePoint start = now();
  const bool never = time > TimePoint::max() - start;
  co_await sleep_until(never ? TimePoint::max() : start + time);
}

TimePoint SystemAsyncClock::now() const { return std::chrono::steady_clock::now(); }

asio::awaitable<void> SystemAsyncClock::sleep_until(TimePoint when) {
  asio::steady_timer timer(co_await asio::this_coro::executor, when);
  co_await timer.async_wait(kTuple);
}

asio::awaitable<void> VirtualClock::sleep_until(TimePoint when) {
  if (when <= now_) {
    co_return;
  }
  auto event = std::make_shared<AsyncEvent>(co_await asio::this_coro::executor);
  // Also when the coroutine is cancelled or destroyed, nobody sleeps here any more.
  struct Entry {
    ~Entry() {
      const auto found =
          std::find_if(sleepers->begin(), sleepers->end(),
                       [this](const auto& sleeper) { return sleeper.second == event; });
      if (found != sleepers->end()) {
        sleepers->erase(found);
      }
    }
    std::multimap<TimePoint, std::shared_ptr<AsyncEvent>>* sleepers;
    std::shared_ptr<AsyncEvent> event;
  };
  sleepers_.emplace(when, event);
  const Entry entry{&sleepers_, event};
  co_await event->wait();
}

std::optional<TimePoint> VirtualClock::next_wake() const {
  if (sleepers_.empty()) {
    return std::nullopt;
  }
  return sleepers_.begin()->first;
}

void VirtualClock::advance_to(TimePoint when) {
  now_ = std::max(now_, when);
  while (!sleepers_.empty() && sleepers_.begin()->first <= now_) {
    auto event = sleepers_.begin()->second;
    sleepers_.erase(sleepers_.begin());
    event->set();
  }
}

void VirtualClock::run_until(asio::io_context& context, TimePoint until) {
  while (true) {
    context.restart();
    context.poll();
    const auto next = next_wake();
    if (!next || *next > until) {
      break;
    }
    advance_to(*next);
  }
  advance_to(until);
  context.restart();
  context.poll();
}

}  // namespace baton::net
