// __builtin_cpu_supports also asks whether the system saves the wide registers (XGETBV).
#include "baton/base/cpu_features.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sched.h>

#include <algorithm>
#include <cctype>

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

std::vector<int> allowed_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cpus;
  if (::sched_getaffinity(0, sizeof set, &set) == 0) {
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(static_cast<std::size_t>(cpu), &set)) {
        cpus.push_back(cpu);
      }
    }
  }
  return cpus;
}

int available_cpus() { return std::max(1, static_cast<int>(allowed_cpus().size())); }

Result<std::vector<int>> parse_cpu_mask(std::string_view mask) {
  std::string_view digits = mask;
  if (digits.starts_with("0x") || digits.starts_with("0X")) {
    digits.remove_prefix(2);
  }
  std::vector<int> cpus;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    const auto digit = static_cast<unsigned char>(digits[digits.size() - 1 - i]);
    if (std::isxdigit(digit) == 0) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("--cpu-mask: '{}' is not a hex mask such as f0", mask), "cpu-mask");
    }
    const int value = std::isdigit(digit) != 0 ? digit - '0' : std::tolower(digit) - 'a' + 10;
    for (int bit = 0; bit < 4; ++bit) {
      if ((value >> bit & 1) != 0) {
        cpus.push_back(static_cast<int>(4 * i) + bit);
      }
    }
  }
  if (cpus.empty()) {
    return fail(ErrorCode::kInvalidArgument, fmt::format("--cpu-mask: '{}' names no CPU", mask),
                "cpu-mask");
  }
  return cpus;
}

Status use_cpu_mask(std::string_view mask) {
  if (mask.empty()) {
    return {};
  }
  BATON_TRY(const std::vector<int> cpus, parse_cpu_mask(mask));
  const std::vector<int> present = allowed_cpus();
  if (present.empty()) {
    return fail(ErrorCode::kInternal, "--cpu-mask: the system does not say which CPUs there are");
  }
  cpu_set_t wanted;
  CPU_ZERO(&wanted);
  std::vector<int> absent;
  for (const int cpu : cpus) {
    if (std::binary_search(present.begin(), present.end(), cpu)) {
      CPU_SET(static_cast<std::size_t>(cpu), &wanted);
    } else {
      absent.push_back(cpu);
    }
  }
  if (!absent.empty()) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("--cpu-mask: {} names CPU {}, this process may use CPU {}", mask,
                            fmt::join(absent, ", "), fmt::join(present, ", ")),
                "cpu-mask");
  }
  if (::sched_setaffinity(0, sizeof wanted, &wanted) != 0) {
    return fail(ErrorCode::kInternal, "--cpu-mask: the system refused it");
  }
  return {};
}

}  // namespace baton
