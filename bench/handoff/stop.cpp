#include "bench/handoff/stop.h"

#include <csignal>
#include <thread>

namespace baton::bench_handoff {

namespace {
constexpr Duration kPoll = std::chrono::milliseconds(20);
}

StopOnSignal::StopOnSignal()
    : loop_("bench-signals"), signals_(loop_.executor(), SIGINT, SIGTERM, SIGHUP) {
  signals_.async_wait([this](const boost::system::error_code& error, int number) {
    if (!error) {
      signals_.clear();  // a second signal does what signals do
      signal_ = number;
      source_.request_stop();
    }
  });
}

StopOnSignal::~StopOnSignal() { loop_.stop(); }

bool wait_until(const std::stop_token& stop, Duration most,
                const std::function<bool()>& condition) {
  const TimePoint end = SystemClock().now() + most;
  while (!stop.stop_requested()) {
    if (condition()) {
      return true;
    }
    if (SystemClock().now() > end) {
      return false;
    }
    std::this_thread::sleep_for(kPoll);
  }
  return false;
}

Status still_wanted(const std::stop_token& stop) {
  return stop.stop_requested() ? fail(ErrorCode::kCancelled, "interrupted") : Status{};
}

}  // namespace baton::bench_handoff
