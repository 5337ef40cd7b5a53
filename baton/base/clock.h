// Time as an argument: everything that waits or stamps gets a Clock, so that tests and the cluster
// simulation run on virtual time. Only base/, net/ and apps/ may ask the system for the time
// (tools/check_layers.py).
#pragma once

#include <chrono>

namespace baton {

using Duration = std::chrono::nanoseconds;
// Monotonic; the zero point is arbitrary and private to the process.
using TimePoint = std::chrono::time_point<std::chrono::steady_clock, Duration>;

class Clock {
 public:
  virtual ~Clock() = default;
  // Thread: any.
  [[nodiscard]] virtual TimePoint now() const = 0;
};

class SystemClock final : public Clock {
 public:
  [[nodiscard]] TimePoint now() const override;
};

// A clock that stands still until told. Thread: any one at a time.
class ManualClock final : public Clock {
 public:
  [[nodiscard]] TimePoint now() const override { return now_; }
  void advance(Duration by) { now_ += by; }

 private:
  TimePoint now_{};
};

}  // namespace baton
