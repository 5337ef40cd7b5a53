// The fixed pool that computes kernels. The calling thread takes part, so a pool of size 1 has no
// threads of its own. Work is handed over without a lock; a worker that comes late is not waited
// for (the others have done its share), so a busy machine costs speed, never a stall. Workers spin
// for some tens of microseconds after work (the gap between two kernels of a layer), then sleep: an
// idle pool uses no CPU. Which thread runs which chunk changes no result. Every thread is in
// float_mode.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

namespace baton {

class ThreadPool {
 public:
  // Threads in all, the caller included; at least 1 (checked), at most kMaxThreads.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // More than any machine's cores that one engine would use; bounds the join count in state_.
  static constexpr int kMaxThreads = 1024;

  [[nodiscard]] int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls body(first, last, thread) on ranges that cover [0, count), each at most `grain` long,
  // taken in order by whichever thread is free; returns when all are done. thread is in
  // [0, threads()), 0 = the caller, and names per-thread scratch. body must not throw and must not
  // call parallel_for. Thread: the one owner, in float_mode (checked).
  template <class Body>
  void parallel_for(std::int64_t count, std::int64_t grain, Body&& body) {
    using Plain = std::remove_reference_t<Body>;
    run(
        count, grain,
        [](const void* context, std::int64_t first, std::int64_t last, int thread) {
          (*static_cast<Plain*>(const_cast<void*>(context)))(first, last, thread);
        },
        static_cast<const void*>(&body));
  }
  // The same with one range per thread, as equal as can be: for even work on an idle machine.
  template <class Body>
  void parallel_for_even(std::int64_t count, Body&& body) {
    parallel_for(count, (count + threads() - 1) / threads(), body);
  }

 private:
  using Function = void (*)(const void* context, std::int64_t first, std::int64_t last, int thread);
  // Written by the owner while no worker is joined, read by workers after they joined.
  struct Job {
    Function function = nullptr;
    const void* context = nullptr;
    std::int64_t count = 0;
    std::int64_t grain = 1;
  };

  void run(std::int64_t count, std::int64_t grain, Function function, const void* context);
  void take_chunks(int thread);
  void work(int thread);
  bool try_join(std::uint32_t& seen_epoch);

  Job job_;
  alignas(64) std::atomic<std::int64_t> next_{0};  // first index that nobody has taken
  // [epoch:16][open:1][joined:15]. A worker joins by adding 1 while open is set; the owner clears
  // open when no chunk is left and waits for joined = 0 before it reuses job_.
  alignas(64) std::atomic<std::uint32_t> state_{0};
  alignas(64) std::atomic<std::uint32_t> wake_{0};  // counts jobs; sleepers wait for it to change
  std::atomic<bool> stop_{false};
  std::vector<std::jthread> workers_;
};

}  // namespace baton
