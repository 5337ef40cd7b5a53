// Streams written by hand, cut at every byte: which chunks bring tokens, what a failure is called.
#include "bench/serving/stream_reader.h"

#include <gtest/gtest.h>

#include <initializer_list>

namespace baton::serving {
namespace {

using std::chrono::milliseconds;

std::string sse(std::initializer_list<std::string> events) {
  std::string out;
  for (const std::string& event : events) {
    out += "data: " + event + "\n\n";
  }
  return out;
}

TimePoint at_ms(int ms) { return TimePoint(milliseconds(ms)); }

RequestRecord read(const std::string& text, bool keep_ids = false) {
  RequestRecord record;
  StreamReader reader(&record, keep_ids);
  if (reader.feed(text, at_ms(1))) {
    reader.finish(nullptr);
  }
  return record;
}

// What baton sends: ids in each chunk, the prompt's in the first, an end without any, usage,
// [DONE].
const std::string kFirst =
    std::string(R"({"choices":[{"index":0,"text":"","token_ids":[5],"finish_reason":null,)") +
    R"("prompt_token_ids":[1,2,3]}],"baton":{"path":"split","kv_bytes":0}})";
const std::string kMiddle =
    R"({"choices":[{"index":0,"text":"ab","token_ids":[6,7],"finish_reason":null}]})";
const std::string kEnd =
    std::string(R"({"choices":[{"index":0,"text":"","token_ids":[],"finish_reason":"length"}],)") +
    R"("baton":{"path":"split","kv_bytes":737280}})";
const std::string kUsage =
    std::string(R"({"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":3,)") +
    R"("prompt_tokens_details":{"cached_tokens":2}}})";
const std::string kBatonStream = sse({kFirst, kMiddle, kEnd, kUsage, "[DONE]"});

TEST(stream_reader, ids_are_counted_wherever_the_bytes_are_cut) {
  for (std::size_t cut = 1; cut < kBatonStream.size(); ++cut) {
    RequestRecord record;
    StreamReader reader(&record, true);
    const std::string_view all = kBatonStream;
    if (reader.feed(all.substr(0, cut), at_ms(1))) {
      EXPECT_FALSE(reader.feed(all.substr(cut), at_ms(2)));
    }
    ASSERT_TRUE(record.ok()) << record.failure;
    ASSERT_TRUE(record.whole);
    ASSERT_EQ(record.arrivals.size(), 2U);
    EXPECT_EQ(record.arrivals[0].tokens, 1);
    EXPECT_EQ(record.arrivals[1].tokens, 2);
    EXPECT_EQ(record.token_ids, (std::vector<TokenId>{5, 6, 7}));
    EXPECT_EQ(record.counted_ids, 3);
    EXPECT_EQ(record.output_tokens(), 3);
    EXPECT_EQ(record.input_tokens(), 3);
    EXPECT_EQ(record.cached_tokens, 2);
    EXPECT_EQ(record.finish_reason, "length");
    EXPECT_EQ(record.path, "split");
    EXPECT_EQ(record.kv_bytes, 737'280);
  }
}

TEST(stream_reader, an_arrival_has_the_time_of_the_read_that_completed_it) {
  RequestRecord record;
  StreamReader reader(&record, false);
  EXPECT_TRUE(reader.feed(R"(data: {"choices":[{"text":"a)", at_ms(1)));
  EXPECT_TRUE(reader.feed("\"}]}\n", at_ms(5)));
  EXPECT_TRUE(reader.feed("\n", at_ms(9)));
  ASSERT_EQ(record.arrivals.size(), 1U);
  EXPECT_EQ(record.arrivals[0].at, at_ms(5));
}

TEST(stream_reader, without_ids_a_chunk_with_text_is_a_token) {
  const RequestRecord chat =
      read(": hello\r\nevent: message\r\n" +
           sse({R"({"choices":[{"delta":{"role":"assistant","content":""}}]})",
                R"({"choices":[{"delta":{"reasoning_content":"hm"}}]})",
                R"({"choices":[{"delta":{"content":"a"}}]})",
                R"({"choices":[{"delta":{"content":null}}]})",
                R"({"choices":[{"delta":{},"finish_reason":"stop"}]})", "[DONE]"}));
  EXPECT_TRUE(chat.ok()) << chat.failure_message;
  EXPECT_EQ(chat.arrivals.size(), 2U);
  EXPECT_EQ(chat.counted_ids, -1);
  EXPECT_EQ(chat.output_tokens(), 2);
  EXPECT_EQ(chat.finish_reason, "stop");
}

TEST(stream_reader, usage_counts_more_than_chunks_do) {
  const RequestRecord record =
      read(sse({R"({"choices":[{"text":"a b c"}]})",
                R"({"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":3}})", "[DONE]"}));
  EXPECT_EQ(record.output_tokens(), 3);
  EXPECT_EQ(record.input_tokens(), 9);
}

TEST(stream_reader, failures_have_kinds) {
  const std::string begin = sse({R"({"choices":[{"text":"a","token_ids":[1]}]})"});
  EXPECT_EQ(read(begin).failure, "short_stream");
  EXPECT_EQ(read(begin + "data: {nonsense}\n\n").failure, "bad_chunk");
  EXPECT_EQ(read(begin + "data: 7\n\n").failure, "bad_chunk");
  const std::string event =
      std::string(R"({"error":{"message":"no node is left","type":"server_error",)") +
      R"("code":"unavailable"}})";
  const RequestRecord error = read(begin + sse({event}));
  EXPECT_EQ(error.failure, "stream_error:unavailable");
  EXPECT_EQ(error.failure_message, "no node is left");
  EXPECT_EQ(read(sse({R"({"error":{"message":"x","code":500,"type":"server_error"}})"})).failure,
            "stream_error:server_error");

  for (const auto& [code, kind] : {std::pair{ErrorCode::kPeerLost, "connection_lost"},
                                   std::pair{ErrorCode::kDeadlineExceeded, "timeout"}}) {
    RequestRecord record;
    StreamReader reader(&record, false);
    EXPECT_TRUE(reader.feed(begin, at_ms(1)));
    const Error why{code, "gone"};
    reader.finish(&why);
    EXPECT_EQ(record.failure, kind);
    EXPECT_EQ(record.failure_message, "gone");
  }
}

TEST(stream_reader, what_follows_the_end_counts_for_nothing) {
  RequestRecord record;
  StreamReader reader(&record, false);
  EXPECT_FALSE(reader.feed(kBatonStream + kBatonStream, at_ms(1)));
  EXPECT_EQ(record.counted_ids, 3);
  const Error why{ErrorCode::kPeerLost, "closed"};
  reader.finish(&why);  // the server closes after [DONE]
  EXPECT_TRUE(record.ok());
}

TEST(stream_reader, statuses_are_kinds) {
  RequestRecord record;
  fail_by_status(record, 429, R"({"error":{"message":"queue full","type":"x","code":null}})");
  EXPECT_EQ(record.failure, "http_429");
  EXPECT_EQ(record.failure_message, "queue full");
  RequestRecord other;
  fail_by_status(other, 502, "<html>" + std::string(1000, 'x'));
  EXPECT_EQ(other.failure, "http_502");
  EXPECT_EQ(other.failure_message, "<html>" + std::string(194, 'x') + "...");
}

}  // namespace
}  // namespace baton::serving
