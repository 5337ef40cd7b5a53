// A load test's result for people (the lines of `vllm bench serve`, and a few more) and for
// programs (its keys of --save-result, and the detail that plots need). Thread: any.
#pragma once

#include "baton/base/result.h"

#include <nlohmann/json_fwd.hpp>

#include "bench/serving/summary.h"
#include <string>
#include <string_view>
#include <vector>

namespace baton::serving {

// What was asked for, as it was asked.
struct ReportHead {
  std::string base_url;
  std::string endpoint;
  std::string model;
  std::string dataset;       // "random" or "trace"
  std::string request_rate;  // "4", "inf", or "trace"
  double burstiness = 1;
  std::size_t max_concurrency = 0;  // 0: no bound
  std::uint64_t seed = 0;
  std::vector<Metric> shown;  // with percentiles; the rest only go to the file
  std::vector<Goal> goals;
};

[[nodiscard]] std::string report_text(const ReportHead& head, const Summary& summary);

// Lists hold one entry per request in the order of the plan, failed ones too (ttfts: null then);
// ttfts, itls, start_times in seconds. with_tokens: also the generated ids.
[[nodiscard]] nlohmann::ordered_json report_json(const ReportHead& head, const Summary& summary,
                                                 const LoadResult& result, bool with_tokens);

// Whether save_json will be able to: to be asked before the load, not after it.
// Errors of both: kIo naming the flag.
Status check_can_save(const std::string& path, std::string_view flag = "--save-result");
Status save_json(const std::string& path, const nlohmann::ordered_json& json,
                 std::string_view flag = "--save-result");

}  // namespace baton::serving
