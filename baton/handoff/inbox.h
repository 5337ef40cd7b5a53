// A queue of values on one thread: a coroutine waits for the next one without a timer or a lock.
// Control thread only; what is pushed is bounded by its producers (transport events are handled one
// at a time, engine events belong to admitted sequences).
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <deque>
#include <memory>
#include <optional>
#include <utility>

namespace baton::handoff {

namespace asio = boost::asio;

template <class T>
class Inbox {
 public:
  explicit Inbox(asio::any_io_executor executor) : executor_(std::move(executor)) {}
  Inbox(const Inbox&) = delete;
  Inbox& operator=(const Inbox&) = delete;

  // Dropped when closed.
  void push(T value) {
    if (!closed_) {
      values_.push_back(std::move(value));
      wake();
    }
  }
  void close() {
    closed_ = true;
    wake();
  }
  [[nodiscard]] bool closed() const { return closed_; }
  [[nodiscard]] std::size_t depth() const { return values_.size(); }

  std::optional<T> try_next() {
    if (values_.empty()) {
      return std::nullopt;
    }
    std::optional<T> value(std::move(values_.front()));
    values_.pop_front();
    return value;
  }

  // The next value; nothing once closed and empty. One waiter at a time.
  asio::awaitable<std::optional<T>> next() {
    while (values_.empty() && !closed_) {
      co_await wait();
    }
    co_return try_next();
  }

 private:
  struct Waiter {
    virtual ~Waiter() = default;
    virtual void resume(const asio::any_io_executor& executor) = 0;
  };
  template <class Handler>
  struct WaiterOf final : Waiter {
    explicit WaiterOf(Handler&& taken) : handler(std::move(taken)) {}
    void resume(const asio::any_io_executor& executor) override {
      asio::post(executor, [taken = std::move(handler)]() mutable { std::move(taken)(); });
    }
    Handler handler;
  };

  asio::awaitable<void> wait() {
    return asio::async_initiate<const asio::use_awaitable_t<>, void()>(
        [this](auto&& handler) {
          using Handler = std::decay_t<decltype(handler)>;
          waiter_ = std::make_unique<WaiterOf<Handler>>(std::move(handler));
        },
        asio::use_awaitable);
  }
  void wake() {
    if (waiter_) {
      std::exchange(waiter_, nullptr)->resume(executor_);
    }
  }

  asio::any_io_executor executor_;
  std::deque<T> values_;
  std::unique_ptr<Waiter> waiter_;
  bool closed_ = false;
};

}  // namespace baton::handoff
