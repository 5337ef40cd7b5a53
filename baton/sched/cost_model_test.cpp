#include "baton/sched/cost_model.h"

#include <gtest/gtest.h>

namespace baton::sched {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

TEST(StepBudget, FollowsTheLastDecodeOnlyStep) {
  CostModel model;
  EXPECT_EQ(model.step_budget(milliseconds(40), false), milliseconds(80));
  EXPECT_EQ(model.step_budget(milliseconds(40), true), milliseconds(40));
  model.observe(3, {}, milliseconds(12));
  EXPECT_EQ(model.step_budget(milliseconds(40), true), milliseconds(40));
  model.observe(8, {}, milliseconds(30));
  EXPECT_EQ(model.step_budget(milliseconds(40), true), milliseconds(60));
  EXPECT_EQ(model.decode_cost(true), milliseconds(30));
  EXPECT_EQ(model.decode_cost(false), Duration::zero());
}

TEST(CostModel, LearnsBothTerms) {
  CostModel model;
  const auto true_cost = [](const CostModel::PrefillWork& work) {
    return Duration(static_cast<std::int64_t>(work.tokens * 100'000 + work.token_positions * 50));
  };
  for (int start = 0; start < 2048; start += 256) {
    CostModel::PrefillWork work;
    work.add(start, 256);
    model.observe(0, work, true_cost(work));
  }
  const std::int32_t rows = model.rows_within(milliseconds(40), 2048);
  CostModel::PrefillWork chosen;
  chosen.add(2048, rows);
  EXPECT_NEAR(static_cast<double>(true_cost(chosen).count()), 40e6, 1e6);
  EXPECT_LT(rows, model.rows_within(milliseconds(40), 0));
}

TEST(CostModel, SubtractsTheDecodesOfAMixedStep) {
  CostModel model;
  model.observe(4, {}, milliseconds(10));
  CostModel::PrefillWork work;
  work.add(0, 100);
  model.observe(4, work, milliseconds(20));
  EXPECT_NEAR(model.rows_within(milliseconds(10), 0), 100, 1);
}

TEST(CostModel, BeforeAnyMeasurementStartsSmall) {
  const CostModel model;
  EXPECT_EQ(model.rows_within(milliseconds(40), 0), 64);
  EXPECT_EQ(model.rows_within(Duration::zero(), 0), 0);
}

TEST(CostModel, OddMeasurementsNeverGiveNonsense) {
  CostModel model;
  for (const int elapsed_us : {0, 1, 1'000'000, 3, 0}) {
    for (const int start : {0, 32, 8000}) {
      CostModel::PrefillWork work;
      work.add(start, 32);
      model.observe(start % 3, work, microseconds(elapsed_us));
      EXPECT_GE(model.rows_within(milliseconds(40), start), 0);
      EXPECT_GE(model.prefill_cost(work), Duration::zero());
    }
  }
}

}  // namespace
}  // namespace baton::sched
