// What this CPU and its operating system can run, asked once. Thread: any.
#pragma once

#include <string>

namespace baton {

struct CpuFeatures {
  bool avx2 = false;    // and FMA, F16C
  bool avx512 = false;  // F, BW, VL, DQ, VNNI and BF16: what kernels/avx512 is compiled for
  // What is missing, space separated; empty when the flag above is true. For messages.
  std::string missing_for_avx2;
  std::string missing_for_avx512;
};
const CpuFeatures& cpu_features();

// CPUs that this process may run on (its affinity mask), at least 1.
int available_cpus();

}  // namespace baton
