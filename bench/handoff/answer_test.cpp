#include "bench/handoff/answer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bench/handoff/options.h"
#include <chrono>

namespace baton::bench_handoff {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

// Token i comes after 100, 120, and then every 5 ms.
serving::RequestRecord cold_record() {
  serving::RequestRecord record;
  record.sent = TimePoint(std::chrono::seconds(7));
  for (int token = 0; token < kOutputTokens; ++token) {
    const int at_ms = token == 0 ? 100 : 115 + 5 * token;
    record.arrivals.push_back({record.sent + milliseconds(at_ms), 1});
    record.token_ids.push_back(1000 + token);
  }
  record.counted_ids = kOutputTokens;
  record.usage_output_tokens = kOutputTokens;
  record.cached_tokens = 0;
  record.whole = true;
  record.path = "split";
  return record;
}

TEST(HandoffAnswer, HasWhatTheClientSaw) {
  const auto answer = read_answer("split", true, cold_record());
  ASSERT_TRUE(answer) << answer.error().message;
  EXPECT_DOUBLE_EQ(answer->sample.ttft_ms, 100);
  EXPECT_DOUBLE_EQ(answer->sample.ttst_ms, 120);
  EXPECT_DOUBLE_EQ(answer->sample.later_gap_ms, 5);
  EXPECT_EQ(answer->tokens, cold_record().token_ids);
}

void expect_refused(const serving::RequestRecord& record, bool split, const char* words) {
  const auto answer = read_answer("whole", split, record);
  ASSERT_FALSE(answer) << words;
  EXPECT_THAT(answer.error().message, HasSubstr("whole: "));
  EXPECT_THAT(answer.error().message, HasSubstr(words));
}

TEST(HandoffAnswer, OnlyAColdWholeAnswerOfTheRightWayCounts) {
  serving::RequestRecord record = cold_record();
  record.failure = "http_429";
  record.failure_message = "full";
  expect_refused(record, true, "http_429: full");
  record = cold_record();
  record.cached_tokens = 32;
  expect_refused(record, true, "32 of the prompt cached");
  record = cold_record();
  record.token_ids.pop_back();
  expect_refused(record, true, "15 tokens");
  record = cold_record();
  record.arrivals = {{record.sent + milliseconds(1), 1}, {record.sent + milliseconds(2), 15}};
  expect_refused(record, true, "in 2 chunks");
  expect_refused(cold_record(), false, "crossed two nodes");
  record = cold_record();
  record.path = "local";
  expect_refused(record, true, "did not cross two nodes");
  EXPECT_TRUE(read_answer("single", false, record));
}

TEST(HandoffAnswer, AnswersMustBeTheSame) {
  EXPECT_TRUE(check_same("a prompt", {{{1, 2}, {1, 2}, {1, 2}}}));
  for (const Shape other : {Shape::kSplit, Shape::kWhole}) {
    std::array<std::vector<TokenId>, kShapes.size()> answers = {{{1, 2}, {1, 2}, {1, 2}}};
    answers[index_of(other)] = {1, 3};
    const Status same = check_same("a prompt", answers);
    ASSERT_FALSE(same);
    EXPECT_EQ(same.error().code, ErrorCode::kInternal);
    EXPECT_EQ(same.error().message, "the answers to a prompt differ: single: 1 2; " +
                                        std::string(kShapeNames[index_of(other)]) + ": 1 3");
  }
}

}  // namespace
}  // namespace baton::bench_handoff
