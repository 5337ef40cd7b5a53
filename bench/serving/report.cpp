#include "bench/serving/report.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>

namespace baton::serving {

namespace {

constexpr int kWidth = 60;
// A sender this late, at the 99th percentile, has not kept the schedule: the result says so. The
// shortest times that are measured are a few milliseconds.
constexpr double kLateMs = 5;

using Json = nlohmann::ordered_json;

std::string line(std::string_view name, const std::string& value) {
  return fmt::format("{:<46}{:>14}\n", name, value);
}
std::string line(std::string_view name, std::int64_t value) {
  return line(name, std::to_string(value));
}
std::string line(std::string_view name, double value) {
  return line(name, fmt::format("{:.2f}", value));
}
std::string title(std::string_view text, char fill) {
  const std::string shown = text.empty() ? "" : fmt::format(" {} ", text);
  const auto left = (kWidth - shown.size()) / 2;
  return std::string(left, fill) + shown + std::string(kWidth - left - shown.size(), fill) + "\n";
}

std::string percent_name(double percent) {
  return percent == std::floor(percent) ? fmt::format("{:.0f}", percent)
                                        : fmt::format("{}", percent);
}

std::string_view long_name(Metric metric) {
  switch (metric) {
    case Metric::kTtft:
      return "Time to First Token";
    case Metric::kTtst:
      return "Time to Second Token";
    case Metric::kTpot:
      return "Time per Output Token (excl. 1st)";
    case Metric::kItl:
      return "Inter-token Latency";
    case Metric::kE2el:
      return "End-to-end Latency";
  }
  return "";
}

std::string upper(std::string_view name) {
  std::string out(name);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return out;
}

std::string distribution_lines(std::string_view name, const Distribution& values) {
  std::string out = line(fmt::format("Mean {} (ms):", name), values.mean);
  out += line(fmt::format("Median {} (ms):", name), values.median);
  for (const auto& [percent, value] : values.percentiles) {
    out += line(fmt::format("P{} {} (ms):", percent_name(percent), name), value);
  }
  return out;
}

double percentile_99(const Distribution& values) {
  for (const auto& [percent, value] : values.percentiles) {
    if (percent == 99) {
      return value;
    }
  }
  return values.max;
}

// The client about itself: what it adds to every other figure.
std::string client_lines(const Summary& summary) {
  std::string out = title("The Client Itself", '-');
  out += distribution_lines("send lag", summary.lag_ms);
  out += line("Max send lag (ms):", summary.lag_ms.max);
  out += distribution_lines("wake-up delay", summary.wake_ups_ms);
  out += line("Max wake-up delay (ms):", summary.wake_ups_ms.max);
  if (summary.held_ms.count > 0) {
    out += line("Requests held by --max-concurrency:",
                static_cast<std::int64_t>(summary.held_ms.count));
    out += line("Mean time held (ms):", summary.held_ms.mean);
  }
  if (percentile_99(summary.lag_ms) > kLateMs) {
    out += "WARNING: requests left late: the client did not keep the schedule\n";
  }
  if (percentile_99(summary.wake_ups_ms) > kLateMs) {
    out += "WARNING: the client's thread woke late: gaps below that delay mean little\n";
  }
  return out;
}

std::string failure_lines(const Summary& summary) {
  std::string out;
  if (!summary.failures.empty()) {
    out += title("Failures", '-');
  }
  for (const auto& [kind, failure] : summary.failures) {
    out += line(kind + ":", failure.count);
    out += fmt::format("    first: {}\n", failure.example);
  }
  if (summary.short_answers > 0) {
    out += line("Answers shorter than asked for:", summary.short_answers);
  }
  if (summary.miscounted > 0) {
    out += fmt::format("WARNING: usage and token ids disagree in {} answers\n", summary.miscounted);
  }
  return out;
}

void add_distribution(Json& json, const std::string& name, const Distribution& values) {
  json["mean_" + name + "_ms"] = values.mean;
  json["median_" + name + "_ms"] = values.median;
  json["std_" + name + "_ms"] = values.deviation;
  for (const auto& [percent, value] : values.percentiles) {
    json["p" + percent_name(percent) + "_" + name + "_ms"] = value;
  }
  json["max_" + name + "_ms"] = values.max;
}

double seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

void add_detail(Json& json, const LoadResult& result, bool with_tokens) {
  for (const char* name : {"input_lens", "output_lens", "cached_lens", "start_times", "send_lags",
                           "ttfts", "ttsts", "e2els", "itls", "errors"}) {
    json[name] = Json::array();
  }
  for (const RequestRecord& record : result.records) {
    const auto first_of = [&](Metric metric) {
      const std::vector<double> values = values_ms(record, metric);
      return record.ok() && !values.empty() ? Json(values.front() / 1e3) : Json(nullptr);
    };
    std::vector<double> gaps = values_ms(record, Metric::kItl);
    std::for_each(gaps.begin(), gaps.end(), [](double& gap) { gap /= 1e3; });
    json["input_lens"].push_back(record.input_tokens());
    json["output_lens"].push_back(record.ok() ? record.output_tokens() : 0);
    json["cached_lens"].push_back(std::max<std::int64_t>(record.cached_tokens, 0));
    json["start_times"].push_back(seconds(record.sent - result.started));
    json["send_lags"].push_back(seconds(record.sent - record.released));
    json["ttfts"].push_back(first_of(Metric::kTtft));
    json["ttsts"].push_back(first_of(Metric::kTtst));
    json["e2els"].push_back(first_of(Metric::kE2el));
    json["itls"].push_back(gaps);
    json["errors"].push_back(record.ok() ? "" : record.failure + ": " + record.failure_message);
    if (with_tokens) {
      json["token_ids"].push_back(record.token_ids);
    }
  }
}

Status cannot_save(const std::string& path, std::string_view flag) {
  return fail(ErrorCode::kIo,
              fmt::format("{}: cannot write {}: {}", flag, path, std::strerror(errno)));
}

}  // namespace

std::string report_text(const ReportHead& head, const Summary& summary) {
  std::string out = title("Serving Benchmark Result", '=');
  out += line("Successful requests:", summary.completed);
  out += line("Failed requests:", summary.failed);
  out += line("Request rate configured (req/s):", head.request_rate);
  if (head.max_concurrency > 0) {
    out += line("Maximum request concurrency:", static_cast<std::int64_t>(head.max_concurrency));
  }
  out += line("Benchmark duration (s):", summary.duration_s);
  out += line("Total input tokens:", summary.input_tokens);
  out += line("Total generated tokens:", summary.output_tokens);
  if (summary.cached_tokens > 0) {
    out += line("of the input, cached tokens:", summary.cached_tokens);
  }
  if (summary.split_requests > 0) {
    out += line("Requests that crossed two nodes:", summary.split_requests);
    out += line("KV moved for them (MB):", static_cast<double>(summary.kv_bytes) * 1e-6);
  }
  out += line("Request throughput (req/s):", summary.request_throughput);
  if (summary.goodput >= 0) {
    out += line("Request goodput (req/s):", summary.goodput);
  }
  out += line("Output token throughput (tok/s):", summary.output_throughput);
  out += line("Peak output token throughput (tok/s):", summary.peak_output_throughput);
  out += line("Peak concurrent requests:", summary.peak_concurrency);
  out += line("Total token throughput (tok/s):", summary.total_throughput);
  for (const Metric metric : head.shown) {
    out += title(long_name(metric), '-');
    out += distribution_lines(upper(metric_name(metric)), summary.metrics.at(metric));
  }
  out += client_lines(summary);
  out += failure_lines(summary);
  return out + title("", '=');
}

Json report_json(const ReportHead& head, const Summary& summary, const LoadResult& result,
                 bool with_tokens) {
  const auto when = static_cast<std::time_t>(result.started_unix_s);
  Json json = {{"date", fmt::format("{:%Y%m%d-%H%M%S}", fmt::gmtime(when))},
               {"started_unix_s", result.started_unix_s},
               {"backend", "openai"},
               {"base_url", head.base_url},
               {"endpoint", head.endpoint},
               {"model_id", head.model},
               {"dataset_name", head.dataset},
               {"num_prompts", result.records.size()},
               {"request_rate", head.request_rate},
               {"burstiness", head.burstiness},
               {"max_concurrency", head.max_concurrency > 0 ? Json(head.max_concurrency) : Json()},
               {"seed", head.seed},
               {"duration", summary.duration_s},
               {"completed", summary.completed},
               {"failed", summary.failed},
               {"total_input_tokens", summary.input_tokens},
               {"total_output_tokens", summary.output_tokens},
               {"total_cached_tokens", summary.cached_tokens},
               {"split_requests", summary.split_requests},
               {"kv_bytes", summary.kv_bytes},
               {"short_answers", summary.short_answers},
               {"miscounted_answers", summary.miscounted},
               {"request_throughput", summary.request_throughput},
               {"request_goodput", summary.goodput >= 0 ? Json(summary.goodput) : Json()},
               {"output_throughput", summary.output_throughput},
               {"total_token_throughput", summary.total_throughput},
               {"max_output_tokens_per_s", summary.peak_output_throughput},
               {"max_concurrent_requests", summary.peak_concurrency}};
  json["goals"] = Json::object();
  for (const Goal& goal : head.goals) {
    json["goals"][std::string(metric_name(goal.metric))] = goal.most_ms;
  }
  for (const Metric metric : kMetrics) {
    add_distribution(json, std::string(metric_name(metric)), summary.metrics.at(metric));
  }
  add_distribution(json, "send_lag", summary.lag_ms);
  add_distribution(json, "wake_up", summary.wake_ups_ms);
  add_distribution(json, "held", summary.held_ms);
  json["held_requests"] = summary.held_ms.count;
  json["failures"] = Json::object();
  for (const auto& [kind, failure] : summary.failures) {
    json["failures"][kind] = {{"count", failure.count}, {"first", failure.example}};
  }
  add_detail(json, result, with_tokens);
  return json;
}

Status check_can_save(const std::string& path, std::string_view flag) {
  const bool existed = std::filesystem::exists(path);
  if (!std::ofstream(path, std::ios::app)) {
    return cannot_save(path, flag);
  }
  if (!existed) {
    std::error_code ignored;
    std::filesystem::remove(path, ignored);
  }
  return {};
}

Status save_json(const std::string& path, const Json& json, std::string_view flag) {
  std::ofstream out(path);
  // Servers' messages may be cut inside a character.
  out << json.dump(1, ' ', false, Json::error_handler_t::replace) << "\n";
  out.close();
  return out ? Status{} : cannot_save(path, flag);
}

}  // namespace baton::serving
