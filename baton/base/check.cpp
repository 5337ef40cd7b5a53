#include "baton/base/check.h"

#include "baton/base/log.h"

#include <cstdio>
#include <cstdlib>

namespace baton {
namespace {
std::atomic<std::uint64_t> bugs{0};
}

void check_failed(const char* condition, const char* file, int line, const std::string& message) {
  fmt::print(stderr, "{}:{}: check failed: {} {}\n", file, line, condition, message);
  std::fflush(stderr);
  std::abort();
}

void report_bug(const char* file, int line, const std::string& message) {
  bugs.fetch_add(1, std::memory_order_relaxed);
  log::error("{}:{}: bug: {}", file, line, message);
}

std::uint64_t bug_count() { return bugs.load(std::memory_order_relaxed); }

}  // namespace baton
