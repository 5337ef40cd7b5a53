// __builtin_cpu_supports also asks whether the system saves the wide registers (XGETBV).
#include "baton/base/cpu_features.h"

#include <sched.h>

#include <algorithm>

namespace baton {
namespace {

void need(bool present, const char* name, std::string& missing) {
  if (!present) {
    missing += missing.empty() ? "" : " ";
    missing += name;
  }
}

CpuFeatures detect() {
  __builtin_cpu_init();
  CpuFeatures found;
  need(__builtin_cpu_supports("avx2") != 0, "avx2", found.missing_for_avx2);
  need(__builtin_cpu_supports("fma") != 0, "fma", found.missing_for_avx2);
  need(__builtin_cpu_supports("f16c") != 0, "f16c", found.missing_for_avx2);
  std::string& wide = found.missing_for_avx512;
  wide = found.missing_for_avx2;
  need(__builtin_cpu_supports("avx512f") != 0, "avx512f", wide);
  need(__builtin_cpu_supports("avx512bw") != 0, "avx512bw", wide);
  need(__builtin_cpu_supports("avx512vl") != 0, "avx512vl", wide);
  need(__builtin_cpu_supports("avx512dq") != 0, "avx512dq", wide);
  need(__builtin_cpu_supports("avx512vnni") != 0, "avx512vnni", wide);
  need(__builtin_cpu_supports("avx512bf16") != 0, "avx512bf16", wide);
  found.avx2 = found.missing_for_avx2.empty();
  found.avx512 = found.missing_for_avx512.empty();
  return found;
}

}  // namespace

const CpuFeatures& cpu_features() {
  static const CpuFeatures features = detect();
  return features;
}

int available_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) != 0) {
    return 1;
  }
  return std::max(1, CPU_COUNT(&set));
}

}  // namespace baton
