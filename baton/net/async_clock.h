// Time that a coroutine can wait for. Code above net/ gets an AsyncClock and never a timer, so that
// the same role loops run on a VirtualClock in tests and in a simulation of the whole cluster.
#pragma once

#include "baton/base/clock.h"
#include "baton/base/result.h"
#include "baton/net/asio.h"
#include "baton/net/async_event.h"

#include <map>
#include <memory>
#include <optional>

namespace baton::net {

class AsyncClock : public Clock {
 public:
  // Returns at `when` or soon after; at once when it is past. Cancelling the coroutine ends the
  // wait (the coroutine's next co_await then throws operation_aborted). Thread: the caller's
  // executor.
  virtual asio::awaitable<void> sleep_until(TimePoint when) = 0;
  // The same, from now on; Duration::max() is for ever.
  asio::awaitable<void> sleep_for(Duration time);
};

// Real time. Usable from any executor.
class SystemAsyncClock final : public AsyncClock {
 public:
  [[nodiscard]] TimePoint now() const override;
  asio::awaitable<void> sleep_until(TimePoint when) override;
};

// Stands still until told; then wakes the sleepers in order of their time, equal ones in the order
// in which they went to sleep. Everything on one executor. Thread: that executor's.
class VirtualClock final : public AsyncClock {
 public:
  [[nodiscard]] TimePoint now() const override { return now_; }
  asio::awaitable<void> sleep_until(TimePoint when) override;

  // The earliest time somebody sleeps for.
  [[nodiscard]] std::optional<TimePoint> next_wake() const;
  // Moves time forward and wakes those whose time has come. They run when the executor next does:
  // a test alternates context.poll() and advance.
  void advance_to(TimePoint when);
  void advance(Duration by) { advance_to(now_ + by); }
  // Polls the context until it is idle, jumps to the next wake time, and so on until `until`; then
  // now() == until. The usual way to run a test.
  void run_until(asio::io_context& context, TimePoint until);
  void run_for(asio::io_context& context, Duration time) { run_until(context, now_ + time); }

 private:
  TimePoint now_{};
  std::multimap<TimePoint, std::shared_ptr<AsyncEvent>> sleepers_;
};

// Waits for `operation` at most `time` on that clock. Past it the operation is cancelled
// (terminal), awaited, and kDeadlineExceeded with the text `what` is returned. Thread: the caller's
// executor.
template <class T>
asio::awaitable<Result<T>> with_deadline(AsyncClock& clock, Duration time, std::string what,
                                         asio::awaitable<Result<T>> operation) {
  using namespace asio::experimental::awaitable_operators;  // NOLINT: operator|| only
  auto sleep = clock.sleep_for(time);
  auto first = co_await (std::move(operation) || std::move(sleep));
  if (first.index() == 0) {
    co_return std::move(std::get<0>(first));
  }
  co_return fail(ErrorCode::kDeadlineExceeded, what + ": no answer in time");
}

}  // namespace baton::net
