// Whole clusters under faults on virtual time; see simulation.h.
//
//   simulation_test                    the fixed set of CI, and the named cases
//   simulation_test --seed N           one seed, its plan and every event printed
//   simulation_test --seeds M [--first N]   a longer run; BATON_SIMULATION_SEEDS does the same
#include "tests/simulation/simulation.h"

#include "baton/base/log.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

namespace baton::simulation {
namespace {

constexpr std::uint64_t kCiSeeds = 1000;

struct Options {
  std::uint64_t first = 1;
  std::uint64_t seeds = kCiSeeds;
  bool one = false;
};
Options options;
// What to say should a check of the code under test end the process.
std::array<char, 80> last_words{};

// False when a promise was broken.
bool run_seed(std::uint64_t seed, Tally& tally) {
  *fmt::format_to_n(last_words.data(), last_words.size() - 1,
                    "aborted in seed {}; replay: simulation_test --seed {}\n", seed, seed)
       .out = '\0';
  const Plan plan = draw_plan(seed);
  if (options.one) {
    fmt::print("{}", describe(plan));
  }
  const Outcome outcome = run_plan(plan, options.one, tally);
  EXPECT_EQ(outcome.failure, "") << describe(plan);
  if (::testing::Test::HasFailure()) {
    fmt::print("seed {} failed; replay: simulation_test --seed {}\n", seed, seed);
    return false;
  }
  return true;
}

TEST(Simulation, EverySeedKeepsThePromise) {
  Tally tally;
  for (std::uint64_t seed = options.first; seed < options.first + options.seeds; ++seed) {
    ASSERT_TRUE(run_seed(seed, tally));
    if (tally.runs % 2000 == 0) {
      fmt::print("{}\n", describe(tally));
      std::fflush(stdout);
    }
  }
  fmt::print("{}\n", describe(tally));
}

TEST(Simulation, OneSeedIsOneRun) {
  if (options.one) {
    GTEST_SKIP() << "one seed was asked for";
  }
  for (const std::uint64_t seed : {3U, 14U, 159U, 265U}) {
    const Plan plan = draw_plan(seed);
    Tally tally;
    const Outcome first = run_plan(plan, false, tally);
    const Outcome second = run_plan(draw_plan(seed), false, tally);
    EXPECT_EQ(first.failure, "") << describe(plan);
    EXPECT_EQ(first.digest, second.digest) << describe(plan);
    EXPECT_NE(first.digest, run_plan(draw_plan(seed + 1), false, tally).digest);
  }
}

std::uint64_t number(const char* text) {
  char* end = nullptr;
  const std::uint64_t value = std::strtoull(text, &end, 10);
  if (end == text || *end != '\0') {
    fmt::print(stderr, "'{}' is not a number\n", text);
    std::exit(2);
  }
  return value;
}

void read_options(int argc, char** argv) {
  if (const char* seeds = std::getenv("BATON_SIMULATION_SEEDS")) {
    options.seeds = number(seeds);
  }
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view flag = argv[i];
    if (flag == "--seed") {
      options = {number(argv[i + 1]), 1, true};
    } else if (flag == "--seeds") {
      options.seeds = number(argv[i + 1]);
    } else if (flag == "--first") {
      options.first = number(argv[i + 1]);
    }
  }
}

extern "C" void on_abort(int /*signal*/) {
  static_cast<void>(!::write(STDERR_FILENO, last_words.data(), std::strlen(last_words.data())));
}

}  // namespace
}  // namespace baton::simulation

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  baton::simulation::read_options(argc, argv);
  spdlog::set_level(baton::simulation::options.one ? spdlog::level::warn : spdlog::level::off);
  static_cast<void>(std::signal(SIGABRT, baton::simulation::on_abort));
  return RUN_ALL_TESTS();
}
