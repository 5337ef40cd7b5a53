// Command line of the tests that draw each case from a seed: --seed N (one, printed), --first N,
// and how many, by a flag or a variable that the test names.
#pragma once

#include <cstdint>

namespace baton::testing {

struct SeedOptions {
  std::uint64_t first = 1;
  std::uint64_t count = 0;
  bool one = false;
};

// `options` holds the defaults. What is no number ends the process with 2.
void read_seed_options(int argc, char** argv, const char* count_flag, const char* count_variable,
                       SeedOptions& options);

}  // namespace baton::testing
