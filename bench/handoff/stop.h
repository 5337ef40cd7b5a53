// Ctrl-C as a stop token. What must end with it (a node, a socket) registers a std::stop_callback;
// loops ask the token. So the measuring code returns in its usual way, and what it has is printed.
#pragma once

#include "baton/base/clock.h"
#include "baton/base/result.h"
#include "baton/net/event_loop.h"

#include <boost/asio/signal_set.hpp>

#include <atomic>
#include <functional>
#include <stop_token>

namespace baton::bench_handoff {

// From its construction to its end the first SIGINT, SIGTERM or SIGHUP asks to stop; a second one
// ends the process as usual. Callbacks run on a thread of its own. One at a time in a process.
class StopOnSignal {
 public:
  StopOnSignal();
  ~StopOnSignal();
  StopOnSignal(const StopOnSignal&) = delete;
  StopOnSignal& operator=(const StopOnSignal&) = delete;

  [[nodiscard]] std::stop_token token() const { return source_.get_token(); }
  [[nodiscard]] int signal() const { return signal_; }  // its number; 0: none has come

 private:
  net::EventLoop loop_;
  asio::signal_set signals_;
  std::stop_source source_;
  std::atomic<int> signal_{0};
};

// Polls until condition() is true. False: not within that time, or asked to stop.
[[nodiscard]] bool wait_until(const std::stop_token& stop, Duration most,
                              const std::function<bool()>& condition);
// kCancelled if asked to stop: for measuring code to return with.
[[nodiscard]] Status still_wanted(const std::stop_token& stop);

}  // namespace baton::bench_handoff
