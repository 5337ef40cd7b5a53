// The only way threads meet: a bounded queue of values, many producers, one consumer. The consumer
// either waits (engine thread) or is woken through `on_ready` (an event loop): on_ready runs on the
// producer's thread, after the lock is released, each time the queue goes from empty to non-empty.
#pragma once

#include "baton/base/clock.h"

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

namespace baton {

template <class T>
class BoundedQueue {
 public:
  explicit BoundedQueue(std::size_t capacity) : capacity_(capacity) {}
  BoundedQueue(const BoundedQueue&) = delete;
  BoundedQueue& operator=(const BoundedQueue&) = delete;

  // Must be set before the first producer starts.
  void set_on_ready(std::function<void()> on_ready) { on_ready_ = std::move(on_ready); }

  // False when full or closed; the value is then untouched. Thread: any.
  [[nodiscard]] bool try_push(T&& value) { return push(std::move(value), capacity_); }

  // For messages that must not be lost and whose number is bounded elsewhere (aborts, releases,
  // events of admitted sequences): ignores the capacity. False only when closed. Thread: any.
  bool push_unbounded(T&& value) { return push(std::move(value), static_cast<std::size_t>(-1)); }

  // Takes everything that is there; does not wait. Thread: the consumer.
  std::vector<T> drain() {
    std::lock_guard lock(mutex_);
    return take_locked();
  }

  // Waits until something is there, the queue is closed, or the time is over. Thread: the consumer.
  std::vector<T> wait_and_drain(Duration at_most) {
    std::unique_lock lock(mutex_);
    ready_.wait_for(lock, at_most, [this] { return closed_ || !values_.empty(); });
    return take_locked();
  }

  void close() {
    {
      std::lock_guard lock(mutex_);
      closed_ = true;
    }
    ready_.notify_all();
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
    bool was_empty = false;
    {
      std::lock_guard lock(mutex_);
      if (closed_ || values_.size() >= limit) {
        return false;
      }
      was_empty = values_.empty();
      values_.push_back(std::move(value));
    }
    ready_.notify_one();
    if (was_empty && on_ready_) {
      on_ready_();
    }
    return true;
  }
  std::vector<T> take_locked() {
    std::vector<T> taken(std::make_move_iterator(values_.begin()),
                         std::make_move_iterator(values_.end()));
    values_.clear();
    return taken;
  }

  const std::size_t capacity_;
  std::function<void()> on_ready_;
  mutable std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<T> values_;
  bool closed_ = false;
};

}  // namespace baton
