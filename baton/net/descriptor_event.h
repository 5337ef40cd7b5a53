// Waiting for a descriptor that belongs to somebody else, a library's say: nothing is read from it.
#pragma once

#include "baton/base/clock.h"
#include "baton/net/asio.h"

#include <memory>

namespace baton::net {

// Thread: all of it on the executor, which must be serial.
class DescriptorEvent {
 public:
  // Errors: is_open() is false afterwards when the kernel does not want to watch it.
  DescriptorEvent(const asio::any_io_executor& executor, int descriptor);
  ~DescriptorEvent();  // release()
  DescriptorEvent(const DescriptorEvent&) = delete;
  DescriptorEvent& operator=(const DescriptorEvent&) = delete;

  // Returns once the descriptor is readable, `time` (or kForever) has passed or it was released;
  // sometimes for no reason. Cancelling the coroutine does not end it. One waiter at a time.
  asio::awaitable<void> wait(Duration time);
  // Before its owner closes the descriptor: wakes the waiter, and there is nothing to wait for any
  // more. Idempotent.
  void release();
  [[nodiscard]] bool is_open() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace baton::net
