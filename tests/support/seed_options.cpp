#include "tests/support/seed_options.h"

#include <fmt/format.h>

#include <cstdlib>
#include <string_view>

namespace baton::testing {

namespace {

std::uint64_t number(const char* text) {
  char* end = nullptr;
  const std::uint64_t value = std::strtoull(text, &end, 10);
  if (end == text || *end != '\0') {
    fmt::print(stderr, "'{}' is not a number\n", text);
    std::exit(2);
  }
  return value;
}

}  // namespace

void read_seed_options(int argc, char** argv, const char* count_flag, const char* count_variable,
                       SeedOptions& options) {
  if (const char* count = std::getenv(count_variable)) {
    options.count = number(count);
  }
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view flag = argv[i];
    if (flag == "--seed") {
      options = {number(argv[i + 1]), 1, true};
    } else if (flag == count_flag) {
      options.count = number(argv[i + 1]);
    } else if (flag == "--first") {
      options.first = number(argv[i + 1]);
    }
  }
}

}  // namespace baton::testing
