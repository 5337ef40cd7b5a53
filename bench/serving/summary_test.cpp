// Figures of streams written by hand, against arithmetic done by hand.
#include "bench/serving/summary.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "bench/serving/report.h"
#include <initializer_list>

namespace baton::serving {
namespace {

using std::chrono::milliseconds;

TimePoint at_ms(int ms) { return TimePoint(milliseconds(ms)); }

RequestRecord record(int scheduled, int sent,
                     std::initializer_list<std::pair<int, std::int32_t>> arrivals) {
  RequestRecord out;
  out.scheduled = out.released = at_ms(scheduled);
  out.sent = at_ms(sent);
  out.planned_prompt_tokens = 10;
  out.counted_ids = 0;
  for (const auto& [at, tokens] : arrivals) {
    out.arrivals.push_back({at_ms(at), tokens});
    out.counted_ids += tokens;
    out.ended = at_ms(at + 1);
  }
  out.usage_output_tokens = out.counted_ids;
  out.planned_output_tokens = static_cast<std::int32_t>(out.counted_ids);
  out.whole = true;
  return out;
}

// From 1,000 ms on. The first: tokens at 100, 110, 130 and two at 170 ms after it was sent. The
// second: 2 ms late, one token. The third fails.
LoadResult three() {
  LoadResult result;
  result.started = at_ms(1000);
  result.records.push_back(record(1000, 1000, {{1100, 1}, {1110, 1}, {1130, 1}, {1170, 2}}));
  result.records.push_back(record(1050, 1052, {{1252, 1}}));
  result.records.back().prompt_tokens = 12;
  result.records.back().cached_tokens = 4;
  RequestRecord bad = record(1060, 1060, {{1070, 1}});
  bad.failure = "http_429";
  bad.failure_message = "full";
  result.records.push_back(bad);
  result.ended = at_ms(3000);
  return result;
}

TEST(summary, one_stream_by_hand) {
  const RequestRecord one = three().records[0];
  EXPECT_EQ(values_ms(one, Metric::kTtft), std::vector<double>{100});
  EXPECT_EQ(values_ms(one, Metric::kTtst), std::vector<double>{110});
  EXPECT_EQ(values_ms(one, Metric::kTpot), std::vector<double>{70.0 / 4});
  EXPECT_EQ(values_ms(one, Metric::kItl), (std::vector<double>{10, 20, 40}));
  EXPECT_EQ(values_ms(one, Metric::kE2el), std::vector<double>{170});
}

TEST(summary, the_second_token_may_come_with_the_first) {
  const RequestRecord one = record(0, 0, {{7, 2}, {9, 1}});
  EXPECT_EQ(values_ms(one, Metric::kTtst), std::vector<double>{7});
  const RequestRecord single = record(0, 0, {{7, 1}});
  EXPECT_TRUE(values_ms(single, Metric::kTtst).empty());
  EXPECT_TRUE(values_ms(single, Metric::kTpot).empty());
  EXPECT_TRUE(values_ms(single, Metric::kItl).empty());
  EXPECT_TRUE(values_ms(RequestRecord{}, Metric::kTtft).empty());
}

TEST(summary, all_of_them_by_hand) {
  const Summary summary = summarize(three(), {90, 99}, {});
  EXPECT_EQ(summary.completed, 2);
  EXPECT_EQ(summary.failed, 1);
  EXPECT_EQ(summary.input_tokens, 22);
  EXPECT_EQ(summary.output_tokens, 6);
  EXPECT_EQ(summary.cached_tokens, 4);
  EXPECT_DOUBLE_EQ(summary.duration_s, 2);
  EXPECT_DOUBLE_EQ(summary.request_throughput, 1);
  EXPECT_DOUBLE_EQ(summary.output_throughput, 3);
  EXPECT_DOUBLE_EQ(summary.total_throughput, 14);
  EXPECT_DOUBLE_EQ(summary.peak_output_throughput, 7);  // the failed one's token came, too
  EXPECT_EQ(summary.peak_concurrency, 3);
  EXPECT_EQ(summary.goodput, -1);
  const Distribution& ttft = summary.metrics.at(Metric::kTtft);
  EXPECT_EQ(ttft.count, 2U);
  EXPECT_DOUBLE_EQ(ttft.mean, 150);
  EXPECT_DOUBLE_EQ(ttft.median, 150);
  EXPECT_DOUBLE_EQ(ttft.deviation, 50);
  EXPECT_DOUBLE_EQ(ttft.percentiles[0].second, 190);
  EXPECT_DOUBLE_EQ(ttft.percentiles[1].second, 199);
  EXPECT_DOUBLE_EQ(summary.metrics.at(Metric::kItl).percentiles[0].second, 36);
  EXPECT_DOUBLE_EQ(summary.metrics.at(Metric::kTpot).mean, 17.5);
  EXPECT_DOUBLE_EQ(summary.metrics.at(Metric::kE2el).max, 200);
  EXPECT_DOUBLE_EQ(summary.lag_ms.max, 2);
  EXPECT_DOUBLE_EQ(summary.lag_ms.mean, 2.0 / 3);
  EXPECT_EQ(summary.held_ms.count, 0U);
  ASSERT_EQ(summary.failures.size(), 1U);
  EXPECT_EQ(summary.failures.at("http_429").count, 1);
  EXPECT_EQ(summary.failures.at("http_429").example, "full");
}

TEST(summary, time_held_back_is_not_lag) {
  LoadResult result = three();
  result.records[1].released = at_ms(1052);  // --max-concurrency
  const Summary summary = summarize(result, {}, {});
  EXPECT_DOUBLE_EQ(summary.lag_ms.max, 0);
  EXPECT_EQ(summary.held_ms.count, 1U);
  EXPECT_DOUBLE_EQ(summary.held_ms.max, 2);
}

TEST(summary, goodput_counts_what_meets_every_goal) {
  const auto goodput = [](std::vector<Goal> goals) {
    return summarize(three(), {}, goals).goodput;
  };
  EXPECT_DOUBLE_EQ(goodput({{Metric::kTtft, 200}}), 1);
  EXPECT_DOUBLE_EQ(goodput({{Metric::kTtft, 199}}), 0.5);
  EXPECT_DOUBLE_EQ(goodput({{Metric::kTtft, 200}, {Metric::kItl, 39}}), 0.5);
  EXPECT_DOUBLE_EQ(goodput({{Metric::kTtft, 99}}), 0);
}

TEST(summary, goals_and_metrics_are_read) {
  const auto goal = parse_goal("ttft:200");
  ASSERT_TRUE(goal.has_value());
  EXPECT_EQ(goal->metric, Metric::kTtft);
  EXPECT_EQ(goal->most_ms, 200);
  for (const char* bad : {"ttft", "ttft:", "ttft:0", "ttft:-1", "ttft:1x", "x:1", "", "ttft:nan"}) {
    const auto read = parse_goal(bad);
    ASSERT_FALSE(read.has_value()) << bad;
    EXPECT_EQ(read.error().message.rfind("--goodput", 0), 0U) << read.error().message;
  }
  EXPECT_EQ(*parse_metric("e2el", "--x"), Metric::kE2el);
}

TEST(summary, disagreement_and_shortness_are_counted) {
  LoadResult result = three();
  result.records[0].usage_output_tokens = 4;
  result.records[1].planned_output_tokens = 9;
  const Summary summary = summarize(result, {}, {});
  EXPECT_EQ(summary.miscounted, 1);
  EXPECT_EQ(summary.short_answers, 2);
}

TEST(summary, nothing_is_no_number) {
  LoadResult result;
  const Summary summary = summarize(result, {99}, {{Metric::kTtft, 1}});
  EXPECT_EQ(summary.completed, 0);
  EXPECT_EQ(summary.metrics.at(Metric::kTtft).percentiles[0].second, 0);
}

TEST(report, the_file_has_what_the_table_shows) {
  ReportHead head;
  head.model = "m";
  head.request_rate = "4";
  head.shown = {Metric::kTtft, Metric::kItl};
  head.goals = {{Metric::kTtft, 200}};
  const LoadResult result = three();
  const Summary summary = summarize(result, {99, 99.9}, head.goals);
  const std::string text = report_text(head, summary);
  const auto has = [&](const std::string& name, const std::string& value) {
    const std::size_t at = text.find(name);
    const std::size_t end = text.find('\n', at);
    return at != std::string::npos && text.substr(0, end).ends_with(" " + value);
  };
  EXPECT_TRUE(has("Successful requests:", "2")) << text;
  EXPECT_TRUE(has("Failed requests:", "1")) << text;
  EXPECT_TRUE(has("Request goodput (req/s):", "1.00")) << text;
  EXPECT_TRUE(has("P99 TTFT (ms):", "199.00")) << text;
  EXPECT_TRUE(has("P99.9 ITL (ms):", "39.96")) << text;
  EXPECT_TRUE(has("Max send lag (ms):", "2.00")) << text;
  EXPECT_TRUE(has("http_429:", "1")) << text;
  EXPECT_EQ(text.find("TPOT"), std::string::npos);  // not asked for

  const auto json = report_json(head, summary, result, true);
  EXPECT_EQ(json["completed"], 2);
  EXPECT_EQ(json["median_ttft_ms"], 150.0);
  EXPECT_EQ(json["p99_ttft_ms"], 199.0);
  EXPECT_EQ(json["ttfts"], nlohmann::json({0.1, 0.2, nullptr}));
  EXPECT_EQ(json["itls"][0], nlohmann::json({0.01, 0.02, 0.04}));
  EXPECT_EQ(json["errors"][2], "http_429: full");
  EXPECT_EQ(json["output_lens"], nlohmann::json({5, 1, 0}));
  EXPECT_EQ(json["start_times"][1], 0.052);
  EXPECT_EQ(json["failures"]["http_429"]["count"], 1);
  EXPECT_EQ(json["max_concurrency"], nullptr);
  const Status saved = save_json("/nowhere/x.json", json);
  ASSERT_FALSE(saved.has_value());
  EXPECT_EQ(saved.error().message.rfind("--save-result: cannot write /nowhere/x.json", 0), 0U);
}

TEST(report, a_late_client_says_so) {
  ReportHead head;
  LoadResult result = three();
  EXPECT_EQ(report_text(head, summarize(result, {99}, {})).find("WARNING"), std::string::npos);
  result.records[1].sent = at_ms(1070);
  EXPECT_NE(report_text(head, summarize(result, {99}, {})).find("WARNING: requests left late"),
            std::string::npos);
  result = three();
  result.wake_ups.assign(10, milliseconds(8));
  EXPECT_NE(report_text(head, summarize(result, {99}, {})).find("WARNING: the client's thread"),
            std::string::npos);
}

}  // namespace
}  // namespace baton::serving
