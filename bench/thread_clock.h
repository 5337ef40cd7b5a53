// What a thread of a benchmark program has used of a CPU: means something on a busy machine, too.
#pragma once

#include <ctime>

namespace baton::bench {

inline double thread_cpu_s() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace baton::bench
