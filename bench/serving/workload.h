// What a load test sends and when: arrivals (Poisson, or gamma of any burstiness, or a trace's) and
// prompts. Made before the first request leaves; equal options make the equal workload. Thread:
// any.
#pragma once

#include "baton/base/clock.h"
#include "baton/base/result.h"

#include "bench/serving/prompts.h"
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace baton::serving {

enum class Dataset : std::uint8_t { kRandom, kTrace };

struct WorkloadOptions {
  Dataset dataset = Dataset::kRandom;
  std::int32_t num_prompts = 0;        // 0: 1,000 random ones, or the whole trace
  std::optional<double> request_rate;  // a second; none: all at once, or the trace's times
  double burstiness = 1;               // shape of the gamma distribution of gaps; 1: Poisson
  std::int32_t random_input_tokens = 1024;
  std::int32_t random_output_tokens = 128;
  std::int32_t random_prefix_tokens = 0;  // before them, the same for all
  double random_range_ratio = 0;          // lengths uniform in [(1 - r) n, (1 + r) n]
  std::string trace_path;
  double scale_lengths = 1;
  double scale_time = 1;
  std::uint64_t seed = 0;
  TokenRange ids;
};

struct PlannedRequest {
  Duration at{};  // after the start
  PromptRecipe prompt;
  std::int32_t output_tokens = 0;
};

// In order of arrival. Errors: kInvalidArgument naming the flag; of a trace, see read_trace.
Result<std::vector<PlannedRequest>> plan_workload(const WorkloadOptions& options);

}  // namespace baton::serving
