// `baton bench serve`: load on any OpenAI-compatible server and what its clients see, as `vllm
// bench serve` measures and prints it (bench/serving has the load generator). Thread: main.
#pragma once

#include "bench/serving/load.h"
#include "bench/serving/workload.h"
#include <cstdint>
#include <string>
#include <vector>

namespace baton::app {

enum class BenchPromptFormat : std::uint8_t { kAuto, kIds, kText };

struct BenchServeOptions {
  std::string base_url = "http://127.0.0.1:8080";
  std::string endpoint = "/v1/completions";
  std::string model;  // empty: the first one that the server names
  std::string api_key;
  serving::WorkloadOptions workload;
  std::string request_rate;  // "", "inf" or a number
  std::string token_ids = "1000:30000";
  BenchPromptFormat prompt_format = BenchPromptFormat::kAuto;
  std::int32_t max_concurrency = 0;  // 0: no bound
  std::int32_t num_warmups = 0;      // sent one by one before, not counted
  bool ignore_eos = false;
  bool return_token_ids = true;
  double temperature = 0;
  double request_timeout_s = 600;  // silence in mid-answer
  std::vector<std::string> percentile_metrics{"ttft", "ttst", "tpot", "itl", "e2el"};
  std::vector<double> metric_percentiles{99};
  std::vector<std::string> goodput;
  std::string save_result;
  bool save_detailed = false;  // the generated ids too
};

// Prints to stdout. Returns the process's exit code: 0 when at least one request succeeded, 1 when
// none did or the flags are wrong (one line on stderr that names the flag).
int run_bench_serve(const BenchServeOptions& options);

}  // namespace baton::app
