#include "bench/limits/limits.h"

#include "baton/base/check.h"
#include "baton/base/clock.h"
#include "baton/base/float_mode.h"
#include "baton/tensor/buffer.h"

#include "bench/limits/loops.h"
#include <algorithm>
#include <barrier>
#include <cstdint>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

namespace baton::bench {

namespace {

constexpr int kRepetitions = 5;              // a neighbour's burst spoils some, not all
constexpr std::int64_t kRounds = 2'000'000;  // of 4 to 8 ns each: some 10 ms a repetition

// Seconds of the fastest repetition of body(thread) on all threads at once.
double best_seconds(int threads, const std::function<void(int)>& body) {
  const SystemClock clock;
  double best = 1e30;
  std::barrier gate(threads);
  std::vector<TimePoint> begins(static_cast<std::size_t>(threads));
  std::vector<TimePoint> ends(static_cast<std::size_t>(threads));
  const auto run = [&](int thread) {
    const ScopedFloatMode float_mode;
    const auto own = static_cast<std::size_t>(thread);
    for (int repetition = 0; repetition < kRepetitions; ++repetition) {
      gate.arrive_and_wait();
      begins[own] = clock.now();
      body(thread);
      ends[own] = clock.now();
      gate.arrive_and_wait();
      if (thread == 0) {
        const auto begin = *std::ranges::min_element(begins);
        const auto end = *std::ranges::max_element(ends);
        best = std::min(best, std::chrono::duration<double>(end - begin).count());
      }
    }
  };
  std::vector<std::jthread> others;
  for (int thread = 1; thread < threads; ++thread) {
    others.emplace_back(run, thread);
  }
  run(0);
  return best;
}

double gmac_per_second(const Loop& loop, int threads) {
  std::vector<float> kept(static_cast<std::size_t>(threads));
  const double seconds = best_seconds(threads, [&](int thread) {
    volatile float result = loop.run(kRounds);
    kept[static_cast<std::size_t>(thread)] = result;
  });
  return static_cast<double>(loop.macs_per_round) * kRounds * threads / seconds * 1e-9;
}

double read_gb_per_second(const Loops& loops, int threads, std::size_t bytes) {
  auto buffer = tensor::Buffer::allocate(bytes, tensor::PageAdvice::kHuge);
  if (!buffer) {
    return 0;
  }
  std::memset(buffer->data(), 1, bytes);
  const std::size_t share = bytes / static_cast<std::size_t>(threads);
  const double seconds = best_seconds(threads, [&](int thread) {
    volatile std::uint64_t result =
        loops.read(buffer->data() + static_cast<std::size_t>(thread) * share, share);
    static_cast<void>(result);
  });
  return static_cast<double>(share) * threads / seconds * 1e-9;
}

}  // namespace

Limits measure_limits(kernels::Isa isa, int threads, std::size_t read_bytes) {
  BATON_CHECK(isa != kernels::Isa::kAuto && threads >= 1);
  Limits limits;
  limits.threads = threads;
  limits.read_bytes = read_bytes;
  if (isa == kernels::Isa::kRef) {
    return limits;  // the scalar twin is there to be compared with, not to be fast
  }
  const Loops& loops = isa == kernels::Isa::kAvx512 ? kAvx512Loops : kAvx2Loops;
  limits.int8_gmac = gmac_per_second(loops.int8, threads);
  limits.bf16_gmac = gmac_per_second(loops.bf16, threads);
  limits.fp32_gmac = gmac_per_second(loops.fp32, threads);
  limits.read_gb = read_gb_per_second(loops, threads, read_bytes);
  return limits;
}

}  // namespace baton::bench
