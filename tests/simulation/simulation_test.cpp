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

#include "tests/simulation/cells.h"
#include "tests/support/seed_options.h"
#include <array>
#include <csignal>
#include <cstring>
#include <string>

namespace baton::simulation {
namespace {

constexpr std::uint64_t kCiSeeds = 1000;

testing::SeedOptions options{1, kCiSeeds, false};
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
  for (std::uint64_t seed = options.first; seed < options.first + options.count; ++seed) {
    ASSERT_TRUE(run_seed(seed, tally));
    if (tally.runs % 2000 == 0) {
      fmt::print("{}\n", describe(tally));
      std::fflush(stdout);
    }
  }
  fmt::print("{}\n", describe(tally));
#ifdef BATON_FAILPOINTS
  if (!options.one) {
    fmt::print("{}", describe_cells());
  }
  if (options.count >= kCiSeeds) {
    EXPECT_EQ(missing_cells(), "");
  }
#endif
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

extern "C" void on_abort(int /*signal*/) {
  static_cast<void>(!::write(STDERR_FILENO, last_words.data(), std::strlen(last_words.data())));
}

}  // namespace
}  // namespace baton::simulation

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  baton::testing::read_seed_options(argc, argv, "--seeds", "BATON_SIMULATION_SEEDS",
                                    baton::simulation::options);
  spdlog::set_level(baton::simulation::options.one ? spdlog::level::warn : spdlog::level::off);
  static_cast<void>(std::signal(SIGABRT, baton::simulation::on_abort));
  return RUN_ALL_TESTS();
}
