#include "apps/baton/bench_serve.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "bench/serving/report.h"
#include "bench/serving/summary.h"
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <utility>

namespace baton::app {
namespace {

// Of the seed of warm-up prompts: they must not warm a cache for the counted ones.
constexpr std::uint64_t kWarmupSeed = 0x57A2F00D;

tl::unexpected<Error> wrong(std::string what) {
  return fail(ErrorCode::kInvalidArgument, std::move(what));
}

template <class T>
bool read_number(std::string_view text, T& out) {
  const char* const end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, out);
  return !text.empty() && read.ec == std::errc() && read.ptr == end;
}

Result<serving::TokenRange> parse_token_ids(const std::string& text) {
  const std::size_t colon = text.find(':');
  serving::TokenRange range;
  if (colon == std::string::npos ||
      !read_number(std::string_view(text).substr(0, colon), range.low) ||
      !read_number(std::string_view(text).substr(colon + 1), range.high)) {
    return wrong(fmt::format("--token-ids: '{}' is not LOW:HIGH", text));
  }
  return range;
}

Result<serving::WorkloadOptions> workload_options(const BenchServeOptions& options) {
  serving::WorkloadOptions workload = options.workload;
  BATON_TRY(workload.ids, parse_token_ids(options.token_ids));
  if (!options.request_rate.empty()) {
    double rate = 0;
    if (!read_number(options.request_rate, rate)) {
      return wrong(
          fmt::format("--request-rate: '{}' is neither a number nor inf", options.request_rate));
    }
    workload.request_rate = rate;
  }
  return workload;
}

Result<serving::PromptFormat> prompt_format(const BenchServeOptions& options) {
  const bool chat = options.endpoint.find("chat/completions") != std::string::npos;
  if (chat && options.prompt_format == BenchPromptFormat::kIds) {
    return wrong("--prompt-format ids: a chat takes text, not token ids");
  }
  return chat || options.prompt_format == BenchPromptFormat::kText ? serving::PromptFormat::kText
                                                                   : serving::PromptFormat::kIds;
}

// Everything that can be wrong is found here, before the first byte is sent.
Result<serving::LoadOptions> load_options(const BenchServeOptions& options,
                                          const serving::WorkloadOptions& workload) {
  serving::LoadOptions load;
  BATON_TRY(load.target, serving::parse_base_url(options.base_url));
  load.target.api_key = options.api_key;
  load.target.stall_timeout = std::chrono::duration_cast<Duration>(
      std::chrono::duration<double>(std::min(options.request_timeout_s, 1e8)));
  if (!options.endpoint.starts_with('/')) {
    return wrong(fmt::format("--endpoint: '{}' does not begin with /", options.endpoint));
  }
  const bool breaks_header = std::any_of(options.api_key.begin(), options.api_key.end(),
                                         [](unsigned char c) { return c < 0x20; });
  if (breaks_header) {
    return wrong("--api-key: it holds a control character (a line break, say)");
  }
  load.endpoint = options.endpoint;
  BATON_TRY(load.format, prompt_format(options));
  load.ignore_eos = options.ignore_eos;
  load.ask_for_ids = options.return_token_ids;
  load.keep_ids = options.save_detailed;
  load.temperature = options.temperature;
  load.max_concurrency = static_cast<std::size_t>(options.max_concurrency);
  load.seed = workload.seed;
  load.ids = workload.ids;
  return load;
}

Result<serving::ReportHead> report_head(const BenchServeOptions& options) {
  serving::ReportHead head;
  head.base_url = options.base_url;
  head.endpoint = options.endpoint;
  const bool trace = options.workload.dataset == serving::Dataset::kTrace;
  head.dataset = trace ? "trace" : "random";
  head.request_rate = trace ? "trace" : options.request_rate.empty() ? "inf" : options.request_rate;
  head.burstiness = options.workload.burstiness;
  head.max_concurrency = static_cast<std::size_t>(options.max_concurrency);
  head.seed = options.workload.seed;
  for (const std::string& name : options.percentile_metrics) {
    BATON_TRY(head.shown.emplace_back(), serving::parse_metric(name, "--percentile-metrics"));
  }
  for (const std::string& text : options.goodput) {
    BATON_TRY(const serving::Goal goal, serving::parse_goal(text));
    head.goals.push_back(goal);
  }
  for (const double percent : options.metric_percentiles) {
    if (!(percent >= 0 && percent <= 100)) {
      return wrong("--metric-percentiles must be from 0 to 100");
    }
  }
  return head;
}

Status warm_up(const BenchServeOptions& options, serving::LoadOptions load) {
  if (options.num_warmups == 0) {
    return {};
  }
  serving::WorkloadOptions workload;
  workload.num_prompts = options.num_warmups;
  workload.random_input_tokens = options.workload.random_input_tokens;
  workload.random_output_tokens = options.workload.random_output_tokens;
  load.seed ^= kWarmupSeed;
  load.max_concurrency = 1;
  BATON_TRY(const auto plan, serving::plan_workload(workload));
  for (const serving::RequestRecord& record : serving::run_load(load, plan).records) {
    if (!record.ok()) {
      return wrong(fmt::format("--num-warmups: a request failed: {}: {}", record.failure,
                               record.failure_message));
    }
  }
  return {};
}

Result<std::int64_t> run(const BenchServeOptions& options) {
  BATON_TRY(const serving::WorkloadOptions workload, workload_options(options));
  BATON_TRY(serving::LoadOptions load, load_options(options, workload));
  BATON_TRY(serving::ReportHead head, report_head(options));
  BATON_TRY(const auto plan, serving::plan_workload(workload));
  if (!options.save_result.empty()) {
    BATON_TRY_VOID(serving::check_can_save(options.save_result));
  }
  load.model = options.model;
  if (load.model.empty()) {
    BATON_TRY(load.model, serving::ask_for_model(load.target));
  }
  head.model = load.model;
  BATON_TRY_VOID(warm_up(options, load));
  const serving::LoadResult result = serving::run_load(load, plan);
  const serving::Summary summary =
      serving::summarize(result, options.metric_percentiles, head.goals);
  std::fputs(serving::report_text(head, summary).c_str(), stdout);
  if (!options.save_result.empty()) {
    BATON_TRY_VOID(serving::save_json(
        options.save_result, serving::report_json(head, summary, result, options.save_detailed)));
  }
  return summary.completed;
}

}  // namespace

int run_bench_serve(const BenchServeOptions& options) {
  const auto completed = run(options);
  if (!completed) {
    fmt::print(stderr, "baton bench serve: {}\n", completed.error().message);
    return 1;
  }
  return *completed > 0 ? 0 : 1;
}

}  // namespace baton::app
