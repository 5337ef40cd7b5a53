#include "baton/base/thread_pool.h"

#include "baton/base/check.h"
#include "baton/base/float_mode.h"

#include <pthread.h>
#include <xmmintrin.h>

#include <algorithm>
#include <chrono>

namespace baton {
namespace {

constexpr std::uint32_t kOpen = 1U << 15U;
constexpr std::uint32_t kJoined = kOpen - 1;
constexpr std::uint32_t kEpochShift = 16;

// Longer than the serial gap between two kernels of a layer (a few microseconds), far shorter than
// what a user of an idle server would see.
constexpr auto kSpin = std::chrono::microseconds(40);
constexpr int kPausesPerLook = 32;

// Calls done() until it is true or the spinning time is over; returns what it said last.
template <class Done>
bool spin_until(Done&& done) {
  const auto end = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < kPausesPerLook; ++i) {
      if (done()) {
        return true;
      }
      _mm_pause();
    }
  } while (std::chrono::steady_clock::now() < end);
  return done();
}

}  // namespace

ThreadPool::ThreadPool(int threads) {
  BATON_CHECK(threads >= 1 && threads <= kMaxThreads, "{} threads", threads);
  workers_.reserve(static_cast<std::size_t>(threads - 1));
  for (int thread = 1; thread < threads; ++thread) {
    workers_.emplace_back([this, thread] { work(thread); });
  }
}

ThreadPool::~ThreadPool() {
  stop_.store(true, std::memory_order_release);
  wake_.fetch_add(1, std::memory_order_release);
  wake_.notify_all();
}

void ThreadPool::run(std::int64_t count, std::int64_t grain, Function function,
                     const void* context) {
  assert_float_mode();
  if (count <= 0) {
    return;
  }
  grain = std::max<std::int64_t>(grain, 1);
  if (workers_.empty() || count <= grain) {
    for (std::int64_t first = 0; first < count; first += grain) {
      function(context, first, std::min(count, first + grain), 0);
    }
    return;
  }
  job_ = Job{function, context, count, grain};
  next_.store(0, std::memory_order_relaxed);
  const std::uint32_t epoch = (state_.load(std::memory_order_relaxed) >> kEpochShift) + 1;
  state_.store((epoch << kEpochShift) | kOpen, std::memory_order_release);
  wake_.fetch_add(1, std::memory_order_release);
  wake_.notify_all();  // no system call unless somebody sleeps

  take_chunks(0);

  state_.fetch_and(~kOpen, std::memory_order_acq_rel);
  const auto all_left = [this] { return (state_.load(std::memory_order_acquire) & kJoined) == 0; };
  while (!spin_until(all_left)) {
    std::this_thread::yield();  // a worker inside a chunk lost its core: let it have this one
  }
}

void ThreadPool::take_chunks(int thread) {
  for (;;) {
    const std::int64_t first = next_.fetch_add(job_.grain, std::memory_order_relaxed);
    if (first >= job_.count) {
      return;
    }
    job_.function(job_.context, first, std::min(job_.count, first + job_.grain), thread);
  }
}

bool ThreadPool::try_join(std::uint32_t& seen_epoch) {
  std::uint32_t state = state_.load(std::memory_order_acquire);
  while ((state & kOpen) != 0 && (state >> kEpochShift) != seen_epoch) {
    if (state_.compare_exchange_weak(state, state + 1, std::memory_order_acquire)) {
      seen_epoch = state >> kEpochShift;
      return true;
    }
  }
  return false;
}

void ThreadPool::work(int thread) {
  set_float_mode();
  ::pthread_setname_np(::pthread_self(), "baton-compute");
  std::uint32_t seen_epoch = state_.load(std::memory_order_relaxed) >> kEpochShift;
  seen_epoch = (seen_epoch - 1) & 0xFFFFU;  // a job may be open already: take part in it
  for (;;) {
    const std::uint32_t ticket = wake_.load(std::memory_order_acquire);
    const bool joined =
        spin_until([&] { return stop_.load(std::memory_order_relaxed) || try_join(seen_epoch); });
    if (stop_.load(std::memory_order_acquire)) {
      return;  // never while joined: the owner's run() has returned by then
    }
    if (joined) {
      assert_float_mode();
      take_chunks(thread);
      state_.fetch_sub(1, std::memory_order_release);
    } else {
      wake_.wait(ticket, std::memory_order_acquire);
    }
  }
}

}  // namespace baton
