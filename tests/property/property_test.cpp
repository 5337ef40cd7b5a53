// The promise as a property: whatever the schedule, each stream has the bits of the cold run.
//
//   property_test                     the fixed set of CI
//   property_test --seed N            one schedule, printed
//   property_test --schedules N [--first S]   a longer run; BATON_PROPERTY_SCHEDULES does the same
#include "baton/base/cpu_features.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/property/property_run.h"
#include "tests/support/seed_options.h"
#include <string>

namespace baton::property {
namespace {

constexpr std::uint64_t kCiSchedules = 200;

testing::SeedOptions options{1, kCiSchedules, false};

std::vector<std::string> isas_here() {
  std::vector<std::string> isas = {"ref"};
  if (cpu_features().avx2) {
    isas.emplace_back("avx2");
  }
  if (cpu_features().avx512) {
    isas.emplace_back("avx512");
  }
  return isas;
}

std::string describe(const Tally& tally) {
  return fmt::format(
      "{} schedules, {} streams ({} cut by a cancel, {} replays, {} over three key parts), {} "
      "tokens, {} prompt rows computed, {} cached, {} preemptions, {} handoffs "
      "({} prefills asked for twice)",
      tally.schedules, tally.streams, tally.cancelled, tally.replays, tally.three_parts,
      tally.tokens, tally.computed_tokens, tally.cached_tokens, tally.preemptions, tally.handoffs,
      tally.sent_away);
}

TEST(Property, EveryStreamIsTheColdRun) {
  std::vector<TestModel> models;
  models.push_back(qwen3_model());
  models.push_back(odd_llama_model());
  models.push_back(gemma3_model());
  DrawLimits limits;
  limits.isas = isas_here();
  for (const TestModel& model : models) {
    limits.vocabularies.push_back(model.vocabulary);
    limits.kv_dtypes.push_back(supported_kv_dtypes(model));
  }
  Tally tally;
  for (std::uint64_t seed = options.first; seed < options.first + options.count; ++seed) {
    const Schedule schedule = draw_schedule(seed, limits);
    if (options.one) {
      fmt::print("{}", describe(schedule));
    }
    const std::string difference = run_schedule(schedule, models, tally);
    ASSERT_EQ(difference, "") << describe(schedule);
    if (tally.schedules % 1000 == 0) {
      fmt::print("{}\n", describe(tally));
      std::fflush(stdout);
    }
  }
  fmt::print("{}\n", describe(tally));
  if (options.count >= kCiSchedules) {  // else the suite proves less than it says
    EXPECT_GT(tally.preemptions, 100U);
    EXPECT_GT(tally.handoffs, 80U);
    EXPECT_GT(tally.cached_tokens, 5000U);
    EXPECT_GT(tally.cancelled, 20U);
    EXPECT_GT(tally.replays, 20U);
    EXPECT_GT(tally.three_parts, 15U);
  }
}

}  // namespace
}  // namespace baton::property

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  baton::testing::read_seed_options(argc, argv, "--schedules", "BATON_PROPERTY_SCHEDULES",
                                    baton::property::options);
  return RUN_ALL_TESTS();
}
