#include "bench/serving/workload.h"

#include <fmt/format.h>

#include "bench/serving/trace.h"
#include <cmath>
#include <random>

namespace baton::serving {

namespace {

constexpr std::int32_t kDefaultPrompts = 1000;
constexpr std::uint64_t kSharedPiece = 0;  // the common prefix; request i's own tokens are i + 1

Status wrong(const std::string& what) { return fail(ErrorCode::kInvalidArgument, what); }

bool positive(double value) { return std::isfinite(value) && value > 0; }

Status check(const WorkloadOptions& options) {
  if (options.num_prompts < 0) {
    return wrong("--num-prompts must be at least 1");
  }
  if (options.request_rate && !(*options.request_rate > 0)) {
    return wrong("--request-rate must be above 0, or inf");
  }
  if (!positive(options.burstiness)) {
    return wrong("--burstiness must be above 0");
  }
  if (options.ids.low < 0 || options.ids.high <= options.ids.low) {
    return wrong("--token-ids must be LOW:HIGH with 0 <= LOW < HIGH");
  }
  if (options.dataset == Dataset::kTrace) {
    if (options.trace_path.empty()) {
      return wrong("--dataset-path is missing: --dataset-name trace needs a file");
    }
    if (options.request_rate) {
      return wrong(
          "--request-rate does not go with a trace, which has its own times; see "
          "--scale-time");
    }
    if (!positive(options.scale_lengths)) {
      return wrong("--scale-lengths must be above 0");
    }
    if (!std::isfinite(options.scale_time) || options.scale_time < 0) {
      return wrong("--scale-time must be at least 0");
    }
    return {};
  }
  if (!options.trace_path.empty()) {
    return wrong("--dataset-path needs --dataset-name trace");
  }
  if (options.random_input_tokens < 1 || options.random_output_tokens < 1 ||
      options.random_prefix_tokens < 0) {
    return wrong(
        "--random-input-len and --random-output-len must be at least 1, "
        "--random-prefix-len at least 0");
  }
  if (!(options.random_range_ratio >= 0 && options.random_range_ratio < 1)) {
    return wrong("--random-range-ratio must be at least 0 and below 1");
  }
  return {};
}

// Gaps are gamma distributed with the rate's mean; shape 1 is the exponential one of Poisson.
class Arrivals {
 public:
  explicit Arrivals(const WorkloadOptions& options)
      : rate_(options.request_rate.value_or(std::numeric_limits<double>::infinity())),
        engine_(mixed(options.seed ^ 0xA551)),
        gap_(options.burstiness, std::isfinite(rate_) ? 1 / (rate_ * options.burstiness) : 1) {}

  Duration next() {
    if (!std::isfinite(rate_)) {
      return {};
    }
    at_s_ += gap_(engine_);
    return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(at_s_));
  }

 private:
  double rate_;
  std::mt19937_64 engine_;
  std::gamma_distribution<double> gap_;
  double at_s_ = 0;
};

std::vector<PlannedRequest> plan_random(const WorkloadOptions& options) {
  const std::int32_t count = options.num_prompts == 0 ? kDefaultPrompts : options.num_prompts;
  Arrivals arrivals(options);
  std::mt19937_64 engine(mixed(options.seed ^ 0x1E46));
  const auto length = [&](std::int32_t tokens) {
    const double reach = tokens * options.random_range_ratio;
    const auto low = static_cast<std::int32_t>(std::max(1.0, std::ceil(tokens - reach)));
    const auto high = static_cast<std::int32_t>(std::max(1.0, std::floor(tokens + reach)));
    return std::uniform_int_distribution<std::int32_t>(low, high)(engine);
  };
  std::vector<PlannedRequest> plan;
  for (std::int32_t index = 0; index < count; ++index) {
    PlannedRequest request;
    request.at = arrivals.next();
    if (options.random_prefix_tokens > 0) {
      request.prompt.push_back({kSharedPiece, options.random_prefix_tokens});
    }
    request.prompt.push_back(
        {static_cast<std::uint64_t>(index) + 1, length(options.random_input_tokens)});
    request.output_tokens = length(options.random_output_tokens);
    plan.push_back(std::move(request));
  }
  return plan;
}

Result<std::vector<PlannedRequest>> plan_trace(const WorkloadOptions& options) {
  const auto most = options.num_prompts == 0 ? std::numeric_limits<std::size_t>::max()
                                             : static_cast<std::size_t>(options.num_prompts);
  auto lines = read_trace(options.trace_path, most);
  if (!lines) {
    return fail(ErrorCode::kInvalidArgument, "--dataset-path: " + lines.error().message);
  }
  std::vector<PlannedRequest> plan;
  for (const TraceLine& line : *lines) {
    const auto after_ms = static_cast<double>(line.timestamp_ms - lines->front().timestamp_ms);
    PlannedRequest request;
    request.at = std::chrono::duration_cast<Duration>(
        std::chrono::duration<double, std::milli>(after_ms * options.scale_time));
    request.prompt = scaled_prompt(line, options.scale_lengths);
    request.output_tokens = scaled_tokens(line.output_tokens, options.scale_lengths);
    plan.push_back(std::move(request));
  }
  return plan;
}

}  // namespace

Result<std::vector<PlannedRequest>> plan_workload(const WorkloadOptions& options) {
  BATON_TRY_VOID(check(options));
  return options.dataset == Dataset::kTrace ? plan_trace(options) : plan_random(options);
}

}  // namespace baton::serving
