// The figures of a load test, of its records: the definitions of docs/benchmarks.md, those of
// `vllm bench serve` where it has them. Pure. Thread: any.
#pragma once

#include "baton/base/result.h"

#include "bench/serving/load.h"
#include "bench/serving/record.h"
#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace baton::serving {

enum class Metric : std::uint8_t { kTtft, kTtst, kTpot, kItl, kE2el };
inline constexpr std::array kMetrics = {Metric::kTtft, Metric::kTtst, Metric::kTpot, Metric::kItl,
                                        Metric::kE2el};
[[nodiscard]] std::string_view metric_name(Metric metric);  // "ttft"
[[nodiscard]] Result<Metric> parse_metric(std::string_view name, const std::string& flag);

// Milliseconds of one request: the time to its first and second token, per output token after the
// first, to its last token; the gaps between chunks with tokens (kItl). Nothing where it has too
// few tokens.
[[nodiscard]] std::vector<double> values_ms(const RequestRecord& record, Metric metric);

struct Distribution {
  std::size_t count = 0;
  double mean = 0;
  double median = 0;
  double deviation = 0;  // of the population, as numpy's std
  double max = 0;
  std::vector<std::pair<double, double>> percentiles;  // (which, value)
};
// Percentiles are interpolated linearly between ranks, as numpy does. No values: zeros.
[[nodiscard]] Distribution distribution_of(std::vector<double> values,
                                           const std::vector<double>& percentiles);

struct Goal {
  Metric metric = Metric::kTtft;
  double most_ms = 0;
};
// "ttft:200". Errors: kInvalidArgument naming --goodput.
[[nodiscard]] Result<Goal> parse_goal(std::string_view text);

struct Failure {
  std::int64_t count = 0;
  std::string example;  // message of the first
};

struct Summary {
  std::int64_t completed = 0;
  std::int64_t failed = 0;
  double duration_s = 0;
  // Of successful requests.
  std::int64_t input_tokens = 0;
  std::int64_t output_tokens = 0;
  std::int64_t cached_tokens = 0;
  std::int64_t kv_bytes = 0;
  std::int64_t split_requests = 0;  // baton: those that crossed two nodes
  std::int64_t miscounted = 0;      // usage and the ids in chunks disagree
  std::int64_t short_answers = 0;   // fewer tokens than asked for

  double request_throughput = 0;  // per second
  double output_throughput = 0;
  double total_throughput = 0;
  double peak_output_throughput = 0;  // the best second, of seconds from the start
  std::int64_t peak_concurrency = 0;
  double goodput = -1;  // requests per second that met all goals; -1: no goals

  std::map<Metric, Distribution> metrics;
  Distribution lag_ms;   // sent - scheduled (or released, where --max-concurrency held it)
  Distribution held_ms;  // released - scheduled, of those that were held
  Distribution wake_ups_ms;
  std::map<std::string, Failure> failures;  // by kind
};

[[nodiscard]] Summary summarize(const LoadResult& result, const std::vector<double>& percentiles,
                                const std::vector<Goal>& goals);

}  // namespace baton::serving
