// How other threads wake a coroutine: AsyncEvent (a flag with one waiter) and AsyncQueue (a bounded
// queue with one consumer that co_awaits). Both may be set or filled from any thread; the waiter
// always resumes on its own executor.
#pragma once

#include "baton/base/clock.h"
#include "baton/net/asio.h"

#include <atomic>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

namespace baton::net {

class AsyncEvent {
 public:
  // The waiter runs on `executor`, which must be serial (one thread or a strand).
  explicit AsyncEvent(asio::any_io_executor executor);

  // Sets the flag and wakes the waiter; setting it twice is setting it once. Thread: any.
  void set();
  // Waits until the flag is set and clears it. Cancellable. One waiter at a time.
  asio::awaitable<void> wait();
  // The same, but cancelling the coroutine takes effect only afterwards: for waits on memory that
  // somebody else still uses.
  asio::awaitable<void> wait_uncancellable();
  // False when `time` passed first (real time).
  asio::awaitable<bool> wait_for(Duration time);

 private:
  struct State {
    explicit State(const asio::any_io_executor& executor) : timer(executor) {}
    asio::steady_timer timer;  // expires never; cancelled by set()
    std::atomic<bool> flag{false};
  };
  std::shared_ptr<State> state_;
};

template <class T>
class AsyncQueue {
 public:
  AsyncQueue(asio::any_io_executor executor, std::size_t capacity)
      : capacity_(capacity), ready_(std::move(executor)) {}

  // False when full or closed; the value is then untouched. Thread: any.
  [[nodiscard]] bool try_push(T&& value) { return push(std::move(value), capacity_); }
  // For values that must not be lost and whose number is bounded elsewhere. False when closed.
  bool push_unbounded(T&& value) { return push(std::move(value), static_cast<std::size_t>(-1)); }

  // The oldest value; nothing once the queue is closed and empty. Thread: the consumer's executor.
  asio::awaitable<std::optional<T>> pop() {
    while (true) {
      {
        std::lock_guard lock(mutex_);
        if (!values_.empty()) {
          std::optional<T> value(std::move(values_.front()));
          values_.pop_front();
          co_return value;
        }
        if (closed_) {
          co_return std::nullopt;
        }
      }
      co_await ready_.wait();
    }
  }
  // Without waiting. Thread: any.
  std::optional<T> try_pop() {
    std::lock_guard lock(mutex_);
    if (values_.empty()) {
      return std::nullopt;
    }
    std::optional<T> value(std::move(values_.front()));
    values_.pop_front();
    return value;
  }

  // No more values; those that are there can still be taken. Thread: any.
  void close() {
    {
      std::lock_guard lock(mutex_);
      closed_ = true;
    }
    ready_.set();
  }
  // Closes and throws away what is there.
  void close_and_clear() {
    std::deque<T> dropped;
    {
      std::lock_guard lock(mutex_);
      closed_ = true;
      dropped.swap(values_);
    }
    ready_.set();
  }
  [[nodiscard]] bool closed() const {
    std::lock_guard lock(mutex_);
    return closed_;
  }
  [[nodiscard]] std::size_t depth() const {
    std::lock_guard lock(mutex_);
    return values_.size();
  }

 private:
  bool push(T&& value, std::size_t limit) {
    {
      std::lock_guard lock(mutex_);
      if (closed_ || values_.size() >= limit) {
        return false;
      }
      values_.push_back(std::move(value));
    }
    ready_.set();
    return true;
  }

  const std::size_t capacity_;
  mutable std::mutex mutex_;
  std::deque<T> values_;
  bool closed_ = false;
  AsyncEvent ready_;
};

}  // namespace baton::net
