// BATON_CHECK: an invariant of ours, always on; prints values and aborts. Never on request or peer
// input. BATON_DCHECK: the same, in dev and sanitizer builds only. BATON_BUG: perhaps our bug;
// logs, counts, and the caller fails the one request concerned.
#pragma once

#include <fmt/format.h>

#include <atomic>
#include <cstdint>
#include <string>

namespace baton {

[[noreturn]] void check_failed(const char* condition, const char* file, int line,
                               const std::string& message);
void report_bug(const char* file, int line, const std::string& message);

// How many BATON_BUG lines this process wrote; exported as baton_bugs_total.
std::uint64_t bug_count();

}  // namespace baton

#define BATON_CHECK(condition, ...)                                                         \
  do {                                                                                      \
    if (!(condition)) [[unlikely]] {                                                        \
      ::baton::check_failed(#condition, __FILE__, __LINE__, ::fmt::format("" __VA_ARGS__)); \
    }                                                                                       \
  } while (false)

#ifdef BATON_DCHECK_ON
#define BATON_DCHECK(condition, ...) BATON_CHECK(condition, __VA_ARGS__)
#else
#define BATON_DCHECK(condition, ...) \
  do {                               \
  } while (false)
#endif

#define BATON_BUG(...) ::baton::report_bug(__FILE__, __LINE__, ::fmt::format(__VA_ARGS__))
