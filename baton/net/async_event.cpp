#include "baton/net/async_event.h"

namespace baton::net {

AsyncEvent::AsyncEvent(asio::any_io_executor executor)
    : state_(std::make_shared<State>(executor)) {}

// The flag first, then the wake-up on the waiter's executor: the waiter looks at the flag before it
// suspends, so either it sees the flag, or the posted cancel finds it suspended.
void AsyncEvent::set() {
  if (!state_->flag.exchange(true)) {
    asio::post(state_->timer.get_executor(), [state = state_] { state->timer.cancel(); });
  }
}

asio::awaitable<void> AsyncEvent::wait() {
  auto state = state_;
  while (!state->flag.exchange(false)) {
    state->timer.expires_at(asio::steady_timer::time_point::max());
    co_await state->timer.async_wait(kTuple);  // a cancelled coroutine throws at the next round
  }
}

asio::awaitable<void> AsyncEvent::wait_uncancellable() {
  auto state = state_;
  const bool throws = co_await asio::this_coro::throw_if_cancelled();
  co_await asio::this_coro::throw_if_cancelled(false);
  while (!state->flag.exchange(false)) {
    state->timer.expires_at(asio::steady_timer::time_point::max());
    co_await state->timer.async_wait(
        asio::bind_cancellation_slot(asio::cancellation_slot(), kTuple));
  }
  co_await asio::this_coro::throw_if_cancelled(throws);
}

asio::awaitable<bool> AsyncEvent::wait_for(Duration time) {
  auto state = state_;
  const auto deadline = asio::steady_timer::clock_type::now() + time;
  while (!state->flag.exchange(false)) {
    if (asio::steady_timer::clock_type::now() >= deadline) {
      co_return false;
    }
    state->timer.expires_at(deadline);
    co_await state->timer.async_wait(kTuple);
  }
  co_return true;
}

}  // namespace baton::net
