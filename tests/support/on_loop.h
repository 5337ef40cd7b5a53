// Acting on an event loop from a test's own thread.
#pragma once

#include "baton/net/event_loop.h"

#include <boost/asio/post.hpp>

#include <future>
#include <type_traits>
#include <utility>

namespace baton::testing {

// Runs `function` on the loop and waits for what it returns. Thread: any but the loop's.
template <class Function>
std::invoke_result_t<Function> on_loop(net::EventLoop& loop, Function function) {
  std::packaged_task<std::invoke_result_t<Function>()> task(std::move(function));
  auto result = task.get_future();
  asio::post(loop.executor(), [&task] { task(); });
  return result.get();
}

}  // namespace baton::testing
