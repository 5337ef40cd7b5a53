#include "bench/handoff/summary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bench/handoff/samples_for_test.h"
#include "bench/median.h"
#include <algorithm>

namespace baton::bench_handoff {
namespace {

using testing::good_round;
using testing::measured_of;

const Verdict& find(const std::vector<Verdict>& verdicts, std::string_view key) {
  return *std::find_if(verdicts.begin(), verdicts.end(),
                       [&](const Verdict& verdict) { return verdict.key == key; });
}

Verdict verdict_of(std::string_view key, const Round& round, std::int32_t tokens = 1024) {
  return find(judge(summarize(measured_of(tokens, {round})), {}), key);
}

TEST(HandoffSummary, RatiosOfARound) {
  Round round = good_round();
  round.samples[index_of(Shape::kSplit)] = {1100, 1111, 5, 2, 20'000'000};
  round.samples[index_of(Shape::kWhole)].exposed_ms = 10;
  const Ratios ratios = ratios_of(round);
  EXPECT_DOUBLE_EQ(ratios.ttft, 1.1);
  EXPECT_DOUBLE_EQ(ratios.ttst, 1.1);
  EXPECT_DOUBLE_EQ(ratios.ttst_steps, 20.2);  // (1111 - 1010) / 5
  EXPECT_DOUBLE_EQ(ratios.ttst_streamed_to_whole, 1111.0 / 1025.0);
  EXPECT_DOUBLE_EQ(ratios.rate_to_raw, 0.8);
  EXPECT_DOUBLE_EQ(ratios.exposed_to_transfer, 0.2);
  EXPECT_DOUBLE_EQ(not_wire_ms(round), 2);
  round.raw_s = 0.012;
  EXPECT_DOUBLE_EQ(not_wire_ms(round), -2);
}

TEST(HandoffSummary, MediansAreOfRatiosAndNotRatiosOfMedians) {
  EXPECT_EQ(bench::median({3, 1, 2}), 2);
  EXPECT_EQ(bench::median({4, 1, 2, 3}), 2.5);
  EXPECT_EQ(bench::median({7}), 7);
  std::vector<Round> rounds(3, good_round());
  // Split / single: 1.5, 1, 3; medians of the times are 20 and 40.
  const double single[] = {20, 40, 10};
  const double split[] = {30, 40, 30};
  for (std::size_t i = 0; i < rounds.size(); ++i) {
    rounds[i].samples[index_of(Shape::kSingle)].ttft_ms = single[i];
    rounds[i].samples[index_of(Shape::kSplit)].ttft_ms = split[i];
  }
  const auto lengths = summarize(measured_of(64, rounds));
  ASSERT_EQ(lengths.size(), 1);
  EXPECT_DOUBLE_EQ(lengths[0].ratios.ttft, 1.5);
  EXPECT_DOUBLE_EQ(lengths[0].at(Shape::kSingle).ttft_ms, 20);
  EXPECT_DOUBLE_EQ(lengths[0].at(Shape::kSplit).ttft_ms, 30);
  EXPECT_EQ(lengths[0].kv_bytes, 20'000'000);
  EXPECT_DOUBLE_EQ(lengths[0].raw_gb_per_s, 2.5);  // 20 MB in 8 ms
  EXPECT_DOUBLE_EQ(lengths[0].raw_ms, 8);
  EXPECT_DOUBLE_EQ(lengths[0].not_wire_ms, 0.5);
}

TEST(HandoffSummary, LengthsWithoutARoundAreLeftOut) {
  Measured measured = measured_of(16, {good_round()});
  measured.lengths.push_back({256, {}});
  const auto lengths = summarize(measured);
  ASSERT_EQ(lengths.size(), 1);
  EXPECT_EQ(lengths[0].prompt_tokens, 16);
  EXPECT_TRUE(summarize({}).empty());
}

TEST(HandoffGoals, AllAreMetByAGoodRound) {
  const auto verdicts = judge(summarize(measured_of(1024, {good_round()})), {{1, 99.9}, {2, 100}});
  EXPECT_EQ(verdicts.size(), 7);
  for (const Verdict& verdict : verdicts) {
    EXPECT_TRUE(verdict.met()) << verdict.key;
  }
}

TEST(HandoffGoals, NothingMeasuredIsNotMet) {
  for (const Verdict& verdict : judge({}, {})) {
    EXPECT_TRUE(verdict.values.empty()) << verdict.key;
    EXPECT_FALSE(verdict.met()) << verdict.key;
  }
}

TEST(HandoffGoals, FirstTokenAtMostTwoPercentLater) {
  Round round = good_round();
  round.samples[index_of(Shape::kSplit)].ttft_ms = 1020;
  EXPECT_TRUE(verdict_of("ttft", round, 16).met());
  round.samples[index_of(Shape::kSplit)].ttft_ms = 1021;
  EXPECT_FALSE(verdict_of("ttft", round, 16).met());
}

TEST(HandoffGoals, OneLengthThatMissesIsEnough) {
  Round bad = good_round();
  bad.samples[index_of(Shape::kSplit)].ttft_ms = 1030;
  Measured measured = measured_of(16, {good_round()});
  measured.lengths.push_back({256, {bad}});
  const auto verdicts = judge(summarize(measured), {});
  const Verdict& verdict = find(verdicts, "ttft");
  ASSERT_EQ(verdict.values.size(), 2);
  EXPECT_TRUE(verdict.values[0].met);
  EXPECT_FALSE(verdict.values[1].met);
  EXPECT_EQ(verdict.values[1].where, "256");
  EXPECT_FALSE(verdict.met());
}

TEST(HandoffGoals, SecondTokenAtMostFivePercentAndAStepLater) {
  Round round = good_round();  // 1010 * 1.05 + 5 = 1065.5
  round.samples[index_of(Shape::kSplit)].ttst_ms = 1065;
  EXPECT_TRUE(verdict_of("ttst", round).met());
  round.samples[index_of(Shape::kSplit)].ttst_ms = 1066;
  EXPECT_FALSE(verdict_of("ttst", round).met());
}

TEST(HandoffGoals, NotWireIsAMillisecondOrATenth) {
  Round round = good_round();
  round.samples[index_of(Shape::kWhole)].exposed_ms = 3;
  round.raw_s = 0.0021;
  EXPECT_TRUE(verdict_of("not_wire_ms", round).met());  // 0.9 ms, nearly a third
  round.raw_s = 0.0019;
  EXPECT_FALSE(verdict_of("not_wire_ms", round).met());
  round.samples[index_of(Shape::kWhole)].exposed_ms = 100;
  round.raw_s = 0.091;
  EXPECT_TRUE(verdict_of("not_wire_ms", round).met());  // 9 ms, less than a tenth
  round.raw_s = 0.089;
  EXPECT_FALSE(verdict_of("not_wire_ms", round).met());
}

TEST(HandoffGoals, RateOfTheSocket) {
  Round round = good_round();
  round.samples[index_of(Shape::kWhole)].exposed_ms = 8.8;
  EXPECT_TRUE(verdict_of("rate_to_raw", round).met());
  round.samples[index_of(Shape::kWhole)].exposed_ms = 9;
  EXPECT_FALSE(verdict_of("rate_to_raw", round).met());
}

TEST(HandoffGoals, StreamingIsNeverSlower) {
  Round round = good_round();
  round.samples[index_of(Shape::kWhole)].ttst_ms = 1015;
  EXPECT_TRUE(verdict_of("ttst_streamed_to_whole", round).met());
  round.samples[index_of(Shape::kWhole)].ttst_ms = 1014;
  EXPECT_FALSE(verdict_of("ttst_streamed_to_whole", round).met());
}

TEST(HandoffGoals, ExposedCountsForLongPromptsWhereTheLinkKeepsUp) {
  Round round = good_round();
  EXPECT_TRUE(verdict_of("exposed_to_transfer", round, 1000).met());
  EXPECT_TRUE(verdict_of("exposed_to_transfer", round, 999).values.empty());
  round.samples[index_of(Shape::kSplit)].exposed_ms = 0.5;  // of 8.5
  EXPECT_FALSE(verdict_of("exposed_to_transfer", round, 1000).met());
  round.raw_s = 1.1;  // the prompt is computed in 1.0
  EXPECT_TRUE(verdict_of("exposed_to_transfer", round, 1000).values.empty());
}

TEST(HandoffGoals, TheLongestCancelCounts) {
  const Verdict slow = find(judge({}, {{3, 101, 4}, {2}}), "cancel_ms");
  ASSERT_EQ(slow.values.size(), 2);
  EXPECT_EQ(slow.values[0].value, 101);
  EXPECT_FALSE(slow.values[0].met);
  EXPECT_TRUE(slow.values[1].met);
  EXPECT_FALSE(slow.met());
}

}  // namespace
}  // namespace baton::bench_handoff
