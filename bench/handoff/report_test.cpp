#include "bench/handoff/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "bench/handoff/samples_for_test.h"
#include <algorithm>

namespace baton::bench_handoff {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

Machine machine() {
  return {
      "abc1234", "2026-01-31 12:00 UTC", "A CPU", 2, "m.gguf", "/b/baton", 1.25, 0.031, "loopback",
      1.5};
}

Measured measured() {
  Measured some = testing::measured_of(8128, {testing::good_round()});
  Round& round = some.lengths[0].rounds[0];
  round.samples[index_of(Shape::kSingle)] = {22696, 22718.94, 10, 0, 0};
  round.samples[index_of(Shape::kSplit)] = {22945.656, 22968.84834, 10, 2.6, 187'269'120};
  round.samples[index_of(Shape::kWhole)] = {22945.656, 22991.84, 10, 57.5, 187'269'120};
  round.raw_s = 0.0571;
  some.cancels = {{2, 5, 3}, {1.4}};
  return some;
}

TEST(HandoffTable, ARowHasEveryFigure) {
  const Measured some = measured();
  const std::string text = table(summarize(some), some.cancels);
  EXPECT_THAT(text,
              HasSubstr("| 8,128 | 22,696.0 ms | 1.011 | 22,718.9 ms | 1.011 | +24.99 | 0.999 "
                        "| 187.3 MB | 3.26 GB/s | 3.28 GB/s | 99% | 2.6 ms | 5% | 0.4 ms |\n"));
  EXPECT_THAT(text, StartsWith("| prompt | TTFT single | split ÷ single | TTST single | split ÷ "
                               "single | split − single, in steps | streamed ÷ whole (TTST) | KV | "
                               "sent whole | raw socket | share | exposed, streamed | ÷ sent whole "
                               "| not wire |\n| ---: |"));
  EXPECT_THAT(text, EndsWith("\n\nclient leaves during prefill: blocks of both nodes free after 3 "
                             "ms (median of 3, at most 5 ms)\n"
                             "client leaves during decode: blocks of both nodes free after 1 ms "
                             "(median of 1, at most 1 ms)\n"));
  // Each line has as many columns.
  const std::size_t end = text.find("\n\n");
  std::string rows = text.substr(0, end + 1);
  for (std::size_t begin = 0; begin < rows.size();) {
    const std::size_t newline = rows.find('\n', begin);
    EXPECT_EQ(std::count(rows.begin() + static_cast<long>(begin),
                         rows.begin() + static_cast<long>(newline), '|'),
              15);
    begin = newline + 1;
  }
}

TEST(HandoffTable, OfNothingIsItsHead) {
  const std::string text = table({}, {});
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2);
}

TEST(HandoffReport, AGoalIsALine) {
  const Measured some = measured();
  const std::string text = report_text(machine(), some);
  EXPECT_THAT(text,
              StartsWith("m.gguf on A CPU, 2 cores, commit abc1234, 2026-01-31 12:00 UTC; "
                         "before the first request others used 3% of the cores (load 1.2)\n"));
  for (const char* line :
       {"\nGoals, and medians by tokens of the prompt (* misses its goal; of so few rounds it may "
        "be "
        "chance: --rounds):\n",
        "\nmet      rate of KV sent whole ÷ raw socket ≥ 0.90: 8128: 0.99\n",
        "\nmet      time of KV sent whole that is not wire ≤ max(1 ms, 10% of it): 8128: 0.4 of "
        "5.8 ms\n",
        "\nmet      TTFT split ÷ single ≤ 1.02: 8128: 1.011\n",
        "\nmet      TTST split ÷ single ≤ 1.05 + one step: 8128: 1.011 of 1.050\n",
        "\nmet      TTST streamed ÷ sent whole ≤ 1.00: 8128: 0.999\n",
        "\nmet      exposed of streamed KV ÷ sent whole ≤ 5% from 1000 tokens on, where the link "
        "keeps up: 8128: 4.5%\n",
        "\nmet      client leaves → blocks free on both nodes, longest ≤ 100 ms: prefill: 5 ms, "
        "decode: 1 ms\n",
        "\nThe three servers gave the same tokens for each of 1 prompts.\n"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

TEST(HandoffReport, RoundsAreCalledFewBelowThree) {
  Measured some = measured();
  some.lengths[0].rounds.assign(3, testing::good_round());
  EXPECT_THAT(report_text(machine(), some), HasSubstr("(* misses its goal):\n"));
}

TEST(HandoffReport, AGoalThatIsMissedSaysWhere) {
  Measured some = measured();
  some.lengths.insert(some.lengths.begin(), {16, {testing::good_round()}});
  some.lengths[0].rounds[0].samples[index_of(Shape::kSplit)].ttft_ms = 1037;
  const std::string text = report_text(machine(), some);
  EXPECT_THAT(text, HasSubstr("\nnot met  TTFT split ÷ single ≤ 1.02: 16: 1.037 *, 8128: 1.011\n"));
  EXPECT_THAT(report_text(machine(), {}), HasSubstr("\n-        TTFT split ÷ single ≤ 1.02: not "
                                                    "measured\n"));
}

TEST(HandoffReport, JsonHasWhatTheTableHasAndEveryRound) {
  const auto json = report_json(machine(), measured(), false);
  EXPECT_EQ(json["machine"]["commit"], "abc1234");
  EXPECT_EQ(json["machine"]["link"], "loopback");
  EXPECT_EQ(json["machine"]["load_after"], 1.5);
  ASSERT_EQ(json["results"].size(), 1);
  const auto& one = json["results"][0];
  EXPECT_EQ(one["prompt_tokens"], 8128);
  EXPECT_EQ(one["kv_bytes"], 187'269'120);
  EXPECT_EQ(one["single_ttft_ms"], 22696);
  EXPECT_EQ(one["split_ttst_ms"], 22968.84834);
  EXPECT_EQ(one["whole_later_gap_ms"], 10);
  EXPECT_EQ(one["split_exposed_ms"], 2.6);
  EXPECT_EQ(one["whole_exposed_ms"], 57.5);
  EXPECT_NEAR(one["raw_gb_per_s"].get<double>(), 3.2797, 1e-4);
  EXPECT_NEAR(one["not_wire_ms"].get<double>(), 0.4, 1e-9);
  EXPECT_NEAR(one["ratios"]["ttft"].get<double>(), 1.011, 1e-9);
  const auto& round = one["rounds"][0];
  EXPECT_EQ(round["raw_s"], 0.0571);
  EXPECT_NEAR(round["not_wire_ms"].get<double>(), 0.4, 1e-9);
  EXPECT_EQ(round["whole"]["exposed_ms"], 57.5);
  EXPECT_EQ(round["whole"]["bytes"], 187'269'120);
  EXPECT_FALSE(round["single"].contains("exposed_ms"));
  for (const RatioField& field : kRatioFields) {
    EXPECT_TRUE(round["ratios"].contains(std::string(field.key))) << field.key;
    EXPECT_TRUE(one["ratios"].contains(std::string(field.key))) << field.key;
  }
  EXPECT_EQ(json["cancel_ms"].dump(), R"({"prefill":[2.0,5.0,3.0],"decode":[1.4]})");
  EXPECT_EQ(json["goals"].size(), 7);
  EXPECT_EQ(json["goals"][2]["name"], "ttft");
  EXPECT_EQ(json["goals"][2]["met"], true);
  EXPECT_EQ(json["goals"][2]["values"][0]["where"], "8128");
  EXPECT_EQ(json["interrupted"], false);
}

TEST(HandoffReport, JsonOfNothingSaysSo) {
  const auto json = report_json(machine(), {}, true);
  EXPECT_TRUE(json["results"].empty());
  EXPECT_TRUE(json["cancel_ms"].empty());
  EXPECT_TRUE(json["goals"][0]["met"].is_null());
  EXPECT_EQ(json["interrupted"], true);
}

}  // namespace
}  // namespace baton::bench_handoff
