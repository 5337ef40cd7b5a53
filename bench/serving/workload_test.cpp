// Traces and prompts: what a bad line says, which prompts share which prefix, how arrivals lie.
#include "bench/serving/workload.h"

#include <gtest/gtest.h>

#include "bench/serving/trace.h"
#include <algorithm>
#include <cmath>
#include <sstream>

namespace baton::serving {
namespace {

constexpr const char* kExcerpt = "tests/fixtures/traces/mooncake_conversation_excerpt.jsonl";
constexpr std::size_t kAll = 1'000'000;
constexpr const char* kGood =
    R"({"timestamp": 5, "input_length": 600, "output_length": 7, "hash_ids": [0, 9]})";

Result<std::vector<TraceLine>> parse(const std::string& text) {
  std::istringstream in(text);
  return parse_trace(in, "t.jsonl", kAll);
}
std::string error_of(const std::string& text) {
  const auto parsed = parse(text);
  return parsed ? "no error" : parsed.error().message;
}
std::size_t common_prefix(const auto& a, const auto& b) {
  const auto [in_a, in_b] = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  return static_cast<std::size_t>(in_a - a.begin());
}

TEST(trace, a_line_is_read) {
  const auto lines = parse(std::string(kGood) + "\n\n" +
                           R"({"hash_ids":[0],"output_length":1,"input_length":512,)"
                           R"("timestamp":27000.0,"more":true})"
                           "\r\n");
  ASSERT_TRUE(lines.has_value()) << lines.error().message;
  ASSERT_EQ(lines->size(), 2U);
  EXPECT_EQ((*lines)[0].timestamp_ms, 5);
  EXPECT_EQ((*lines)[0].input_tokens, 600);
  EXPECT_EQ((*lines)[0].output_tokens, 7);
  EXPECT_EQ((*lines)[0].hash_ids, (std::vector<std::uint64_t>{0, 9}));
  EXPECT_EQ((*lines)[1].timestamp_ms, 27'000);
}

TEST(trace, a_bad_line_is_named) {
  const auto second = [](const std::string& line) {
    return error_of(std::string(kGood) + "\n" + line + "\n" + line);
  };
  EXPECT_EQ(second("{").rfind("t.jsonl:2: not JSON: ", 0), 0U) << second("{");
  EXPECT_EQ(second("[1]"), "t.jsonl:2: not a JSON object");
  EXPECT_EQ(second(R"({"timestamp":6,"output_length":7,"hash_ids":[0,9]})"),
            "t.jsonl:2: \"input_length\" is missing");
  EXPECT_EQ(second(R"({"timestamp":6,"input_length":"600","output_length":7,"hash_ids":[0,9]})"),
            "t.jsonl:2: \"input_length\" is not a number");
  EXPECT_EQ(second(R"({"timestamp":6,"input_length":0,"output_length":7,"hash_ids":[]})"),
            "t.jsonl:2: \"input_length\" is 0, not from 1 to 2147483647");
  EXPECT_EQ(second(R"({"timestamp":-6,"input_length":1,"output_length":7,"hash_ids":[1]})")
                .rfind("t.jsonl:2: \"timestamp\" is -6, not from 0", 0),
            0U);
  EXPECT_EQ(second(R"({"timestamp":6,"input_length":1e300,"output_length":7,"hash_ids":[]})"),
            "t.jsonl:2: \"input_length\" is not a number");
  EXPECT_EQ(second(R"({"timestamp":6,"input_length":600,"output_length":7})"),
            "t.jsonl:2: \"hash_ids\" is missing or not a list");
  EXPECT_EQ(second(R"({"timestamp":6,"input_length":600,"output_length":7,"hash_ids":[0,-1]})"),
            "t.jsonl:2: \"hash_ids\" entry 1 is not a whole number from 0 on");
  EXPECT_EQ(second(R"({"timestamp":6,"input_length":600,"output_length":7,"hash_ids":[0]})"),
            "t.jsonl:2: 1 hash_ids for 600 tokens: 2 are needed, one per 512");
  EXPECT_EQ(second(R"({"timestamp":4,"input_length":1,"output_length":7,"hash_ids":[0]})"),
            "t.jsonl:2: \"timestamp\" 4 is earlier than 5 before it");
}

TEST(trace, files_that_cannot_be_used) {
  EXPECT_EQ(read_trace("/nowhere.jsonl", kAll).error().message,
            "cannot read /nowhere.jsonl: No such file or directory");
  EXPECT_EQ(read_trace("/dev/null", kAll).error().message, "/dev/null holds no request");
  std::istringstream in(std::string(kGood) + "\n" + kGood + "\nbroken");
  EXPECT_EQ(parse_trace(in, "t", 2)->size(), 2U);  // no further than asked for
}

// The first tokens of a prompt up to the end of block `blocks`, as the header promises it.
std::size_t boundary(std::size_t blocks, double scale) {
  return static_cast<std::size_t>(std::llround(static_cast<double>(blocks) * 512 * scale));
}

TEST(trace, shared_hash_ids_are_shared_prefixes_at_any_scale) {
  const auto lines = read_trace(kExcerpt, kAll);
  ASSERT_TRUE(lines.has_value()) << lines.error().message;
  std::size_t sharing = 0;
  for (const double scale : {1.0, 1.0 / 3, 0.125, 0.03, 2.0}) {
    std::vector<std::vector<TokenId>> prompts;
    for (const TraceLine& line : *lines) {
      prompts.push_back(prompt_ids(scaled_prompt(line, scale), 7, {}));
      EXPECT_EQ(static_cast<std::int32_t>(prompts.back().size()),
                scaled_tokens(line.input_tokens, scale));
    }
    for (std::size_t a = 0; a < lines->size(); ++a) {
      for (std::size_t b = a + 1; b < lines->size(); ++b) {
        const std::size_t blocks = common_prefix((*lines)[a].hash_ids, (*lines)[b].hash_ids);
        const std::size_t shared =
            std::min({boundary(blocks, scale), prompts[a].size(), prompts[b].size()});
        EXPECT_EQ(common_prefix(prompts[a], prompts[b]), shared)
            << "lines " << a << " and " << b << " at " << scale;
        sharing += blocks > 1 ? 1 : 0;
      }
    }
  }
  EXPECT_GT(sharing, 20U);  // or the excerpt shows nothing
}

TEST(trace, very_small_scales_leave_a_token) {
  const auto lines = parse(kGood);
  EXPECT_EQ(token_count(scaled_prompt(lines->front(), 0.0001)), 1);
  EXPECT_EQ(token_count(scaled_prompt(lines->front(), 1)), 600);
}

TEST(prompts, text_shares_what_ids_share) {
  const PromptRecipe a = {{1, 40}, {2, 10}};
  const PromptRecipe b = {{1, 40}, {3, 10}};
  const std::string text_a = prompt_text(a, 0, {});
  const std::string text_b = prompt_text(b, 0, {});
  const std::string head = prompt_text({{1, 40}}, 0, {});
  EXPECT_EQ(text_a.rfind(head + " ", 0), 0U);
  EXPECT_EQ(text_b.rfind(head + " ", 0), 0U);
  EXPECT_NE(text_a, text_b);
  EXPECT_EQ(std::count(text_a.begin(), text_a.end(), ' '), 49);
}

TEST(prompts, ids_lie_in_their_range_and_depend_on_the_seed) {
  const TokenRange range{50, 60};
  const auto ids = prompt_ids({{1, 5000}}, 3, range);
  EXPECT_EQ(*std::min_element(ids.begin(), ids.end()), 50);
  EXPECT_EQ(*std::max_element(ids.begin(), ids.end()), 59);
  EXPECT_NE(ids, prompt_ids({{1, 5000}}, 4, range));
  EXPECT_EQ(ids, prompt_ids({{1, 5000}}, 3, range));
}

// Mean and coefficient of variation of the gaps, in seconds.
std::pair<double, double> gaps_of(const WorkloadOptions& options) {
  const auto plan = plan_workload(options);
  double last = 0;
  double sum = 0;
  double squares = 0;
  for (const PlannedRequest& request : *plan) {
    const double at = std::chrono::duration<double>(request.at).count();
    EXPECT_GE(at, last);
    sum += at - last;
    squares += (at - last) * (at - last);
    last = at;
  }
  const auto count = static_cast<double>(plan->size());
  const double mean = sum / count;
  return {mean, std::sqrt(squares / count - mean * mean) / mean};
}

TEST(workload, arrivals_have_the_rate_and_the_burstiness) {
  WorkloadOptions options;
  options.num_prompts = 20'000;
  options.random_input_tokens = 1;
  options.request_rate = 50;
  for (const double burstiness : {1.0, 4.0, 0.25}) {
    options.burstiness = burstiness;
    const auto [mean, variation] = gaps_of(options);
    // 20,000 draws: five standard errors of the mean.
    EXPECT_NEAR(mean, 0.02, 0.02 * 5 / std::sqrt(burstiness * 20'000)) << burstiness;
    EXPECT_NEAR(variation, 1 / std::sqrt(burstiness), 0.1 / std::sqrt(burstiness)) << burstiness;
  }
}

TEST(workload, inf_is_all_at_once) {
  WorkloadOptions options;
  options.num_prompts = 5;
  for (const bool said : {false, true}) {
    if (said) {
      options.request_rate = std::numeric_limits<double>::infinity();
    }
    const auto plan = plan_workload(options);
    for (const PlannedRequest& request : *plan) {
      EXPECT_EQ(request.at, Duration{});
    }
  }
}

TEST(workload, random_lengths_and_the_common_prefix) {
  WorkloadOptions options;
  options.num_prompts = 200;
  options.random_input_tokens = 100;
  options.random_output_tokens = 10;
  options.random_prefix_tokens = 30;
  options.random_range_ratio = 0.5;
  std::vector<std::int64_t> lengths;
  std::vector<TokenId> first;
  const auto plan = plan_workload(options);
  for (const PlannedRequest& request : *plan) {
    const auto ids = prompt_ids(request.prompt, 0, {});
    lengths.push_back(static_cast<std::int64_t>(ids.size()));
    EXPECT_GE(request.output_tokens, 5);
    EXPECT_LE(request.output_tokens, 15);
    if (first.empty()) {
      first = ids;
    } else {
      EXPECT_EQ(common_prefix(first, ids), 30U);
    }
  }
  EXPECT_LT(*std::min_element(lengths.begin(), lengths.end()), 95);
  EXPECT_GT(*std::max_element(lengths.begin(), lengths.end()), 165);
  EXPECT_GE(*std::min_element(lengths.begin(), lengths.end()), 80);
  EXPECT_LE(*std::max_element(lengths.begin(), lengths.end()), 180);
}

TEST(workload, a_trace_has_its_own_times) {
  WorkloadOptions options;
  options.dataset = Dataset::kTrace;
  options.trace_path = kExcerpt;
  options.scale_time = 0.5;
  options.scale_lengths = 0.1;
  const auto plan = plan_workload(options);
  const auto lines = read_trace(kExcerpt, kAll);
  ASSERT_TRUE(plan.has_value()) << plan.error().message;
  ASSERT_EQ(plan->size(), lines->size());
  for (std::size_t i = 0; i < plan->size(); ++i) {
    const auto ms = (*lines)[i].timestamp_ms - lines->front().timestamp_ms;
    EXPECT_EQ((*plan)[i].at, std::chrono::microseconds(500 * ms));
    EXPECT_EQ((*plan)[i].output_tokens, scaled_tokens((*lines)[i].output_tokens, 0.1));
  }
  EXPECT_GT(plan->back().at, Duration{});
  options.num_prompts = 3;
  EXPECT_EQ(plan_workload(options)->size(), 3U);
}

TEST(workload, mistakes_name_their_flag) {
  const auto flag_of = [](auto change) {
    WorkloadOptions options;
    change(options);
    const auto plan = plan_workload(options);
    return plan ? "no error" : plan.error().message.substr(0, plan.error().message.find(' '));
  };
  EXPECT_EQ(flag_of([](auto& o) { o.num_prompts = -1; }), "--num-prompts");
  EXPECT_EQ(flag_of([](auto& o) { o.request_rate = 0; }), "--request-rate");
  EXPECT_EQ(flag_of([](auto& o) { o.request_rate = std::nan(""); }), "--request-rate");
  EXPECT_EQ(flag_of([](auto& o) { o.burstiness = 0; }), "--burstiness");
  EXPECT_EQ(flag_of([](auto& o) { o.random_input_tokens = 0; }), "--random-input-len");
  EXPECT_EQ(flag_of([](auto& o) { o.random_range_ratio = 1; }), "--random-range-ratio");
  EXPECT_EQ(flag_of([](auto& o) { o.ids.high = o.ids.low; }), "--token-ids");
  EXPECT_EQ(flag_of([](auto& o) { o.trace_path = "x"; }), "--dataset-path");
  const auto trace = [&](auto change) {
    return flag_of([&](auto& o) {
      o.dataset = Dataset::kTrace;
      o.trace_path = kExcerpt;
      change(o);
    });
  };
  EXPECT_EQ(trace([](auto& o) { o.trace_path.clear(); }), "--dataset-path");
  EXPECT_EQ(trace([](auto& o) { o.trace_path = "/nowhere"; }), "--dataset-path:");
  EXPECT_EQ(trace([](auto& o) { o.request_rate = 3; }), "--request-rate");
  EXPECT_EQ(trace([](auto& o) { o.scale_lengths = 0; }), "--scale-lengths");
  EXPECT_EQ(trace([](auto& o) { o.scale_time = -1; }), "--scale-time");
}

}  // namespace
}  // namespace baton::serving
