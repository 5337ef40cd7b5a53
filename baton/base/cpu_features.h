// What this CPU and its operating system can run, asked once. Thread: any.
#pragma once

#include "baton/base/result.h"

#include <string>
#include <string_view>
#include <vector>

namespace baton {

struct CpuFeatures {
  bool avx2 = false;    // and FMA, F16C
  bool avx512 = false;  // F, BW, VL, DQ, VNNI and BF16: what kernels/avx512 is compiled for
  // What is missing, space separated; empty when the flag above is true. For messages.
  std::string missing_for_avx2;
  std::string missing_for_avx512;
};
const CpuFeatures& cpu_features();

// CPUs that this process may run on (its affinity mask), ascending. Empty: the system does not say.
std::vector<int> allowed_cpus();
// How many of them there are, at least 1.
int available_cpus();

// The CPUs of a hex mask ("f0" or "0xF0" = 4, 5, 6, 7), ascending. Errors: kInvalidArgument (no hex
// digits, or no bit set).
Result<std::vector<int>> parse_cpu_mask(std::string_view mask);
// The calling thread, and every thread that it makes from now on, run on these CPUs only, so that
// two nodes of one machine keep out of each other's way. Empty = as it is. Errors: kInvalidArgument
// naming the CPUs that this process may not use.
Status use_cpu_mask(std::string_view mask);

}  // namespace baton
