#include "bench/handoff/metrics_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace baton::bench_handoff {
namespace {

using testing::HasSubstr;

TEST(MetricsText, SeriesThatMatchAreSummed) {
  const MetricsText page = MetricsText::parse(
      "# HELP a what a is\n"
      "# TYPE a counter\n"
      "a{dir=\"sent\",via=\"tcp\"} 3\n"
      "a{dir=\"sent\",via=\"ucx\"} 4.5e1\n"
      "a{dir=\"received\"} 100\r\n"
      "ab 1000\n"
      "b 2 1700000000\n"
      "not a series\n"
      "broken{dir=\"sent\n"
      "\n"
      "inf{} +Inf\n"
      "last 7");
  EXPECT_EQ(page.sum("a").value(), 148);
  EXPECT_EQ(page.sum("a", {{"dir", "sent"}}).value(), 48);
  EXPECT_EQ(page.sum("a", {{"dir", "sent"}, {"via", "ucx"}}).value(), 45);
  EXPECT_EQ(page.sum("a", {{"dir", "lost"}}).value(), 0);
  EXPECT_EQ(page.sum("a", {{"other", "sent"}}).value(), 0);
  EXPECT_EQ(page.sum("b").value(), 2);
  EXPECT_TRUE(std::isinf(page.sum("inf").value()));
  EXPECT_EQ(page.sum("last").value(), 7);
}

TEST(MetricsText, LabelsMayHoldAnything) {
  const MetricsText page =
      MetricsText::parse("a{x=\"with \\\"quotes\\\", } and \\\\\",y=\"2\"} 5\na{x=\"l\\nf\"} 1\n");
  EXPECT_EQ(page.sum("a", {{"x", "with \"quotes\", } and \\"}, {"y", "2"}}).value(), 5);
  EXPECT_EQ(page.sum("a", {{"x", "l\nf"}}).value(), 1);
}

TEST(MetricsText, AMissingMetricIsNotZero) {
  const auto sum = MetricsText::parse("a 1\n").sum("b");
  ASSERT_FALSE(sum);
  EXPECT_THAT(sum.error().message, HasSubstr("no b"));
}

TEST(MetricsText, CountersOfAPrefillNode) {
  const auto counters =
      handoff_counters(MetricsText::parse("baton_handoff_exposed_seconds_bucket{le=\"0.01\"} 2\n"
                                          "baton_handoff_exposed_seconds_sum 0.0125\n"
                                          "baton_handoff_exposed_seconds_count 3\n"
                                          "baton_handoff_bytes_total{dir=\"sent\"} 737280\n"
                                          "baton_handoff_bytes_total{dir=\"received\"} 1\n"));
  ASSERT_TRUE(counters) << counters.error().message;
  EXPECT_EQ(counters->exposed_s, 0.0125);
  EXPECT_EQ(counters->handoffs, 3);
  EXPECT_EQ(counters->kv_bytes, 737280);
  EXPECT_FALSE(handoff_counters(MetricsText::parse("baton_handoff_exposed_seconds_sum 1\n")));
}

// A page of an engine whose values are given.
std::string engine_page(int used, int reserved, int running, int handing_off, int waiting) {
  return "baton_pool_blocks{group=\"0\",state=\"free\"} 90\n"
         "baton_pool_blocks{group=\"0\",state=\"cached\"} 10\n"
         "baton_pool_blocks{group=\"0\",state=\"used\"} " +
         std::to_string(used) + "\nbaton_pool_blocks{group=\"1\",state=\"reserved\"} " +
         std::to_string(reserved) + "\nbaton_sequences_running " + std::to_string(running) +
         "\nbaton_sequences_reserved 0\nbaton_sequences_handing_off " +
         std::to_string(handing_off) + "\nbaton_queue_depth " + std::to_string(waiting) + "\n";
}

TEST(MetricsText, AnEngineIsIdleWhenNothingIsHeld) {
  EXPECT_TRUE(idle(MetricsText::parse(engine_page(0, 0, 0, 0, 0))).value());
  EXPECT_EQ(owned_blocks(MetricsText::parse(engine_page(3, 2, 0, 0, 0))).value(), 5);
  for (const std::string& page :
       {engine_page(1, 0, 0, 0, 0), engine_page(0, 1, 0, 0, 0), engine_page(0, 0, 1, 0, 0),
        engine_page(0, 0, 0, 1, 0), engine_page(0, 0, 0, 0, 1)}) {
    EXPECT_FALSE(idle(MetricsText::parse(page)).value()) << page;
  }
  EXPECT_FALSE(idle(MetricsText::parse("baton_queue_depth 0\n")));  // that is no engine's page
}

}  // namespace
}  // namespace baton::bench_handoff
