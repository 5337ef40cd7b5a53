#include "bench/serving/summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>

namespace baton::serving {

namespace {

double ms(Duration duration) { return std::chrono::duration<double, std::milli>(duration).count(); }
double seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

// When the token with that number (from 1) had come; its chunk may have brought others.
const Arrival* arrival_of_token(const RequestRecord& record, std::int64_t number) {
  std::int64_t tokens = 0;
  for (const Arrival& arrival : record.arrivals) {
    tokens += arrival.tokens;
    if (tokens >= number) {
      return &arrival;
    }
  }
  return nullptr;
}

double percentile_of(const std::vector<double>& ascending, double percent) {
  const double rank = percent / 100 * static_cast<double>(ascending.size() - 1);
  const auto below = static_cast<std::size_t>(rank);
  const std::size_t above = std::min(below + 1, ascending.size() - 1);
  return std::lerp(ascending[below], ascending[above], rank - static_cast<double>(below));
}

std::int64_t peak_concurrency(const std::vector<RequestRecord>& records) {
  std::vector<std::pair<TimePoint, int>> changes;  // ends before begins at one moment
  for (const RequestRecord& record : records) {
    changes.emplace_back(record.sent, 1);
    changes.emplace_back(record.ended, -1);
  }
  std::sort(changes.begin(), changes.end());
  std::int64_t now = 0;
  std::int64_t peak = 0;
  for (const auto& [at, change] : changes) {
    now += change;
    peak = std::max(peak, now);
  }
  return peak;
}

double peak_output(const LoadResult& result) {
  std::map<std::int64_t, std::int64_t> tokens_in_second;
  for (const RequestRecord& record : result.records) {
    for (const Arrival& arrival : record.arrivals) {
      const auto second = static_cast<std::int64_t>(seconds(arrival.at - result.started));
      tokens_in_second[second] += arrival.tokens;
    }
  }
  std::int64_t peak = 0;
  for (const auto& [second, tokens] : tokens_in_second) {
    peak = std::max(peak, tokens);
  }
  return static_cast<double>(peak);
}

bool meets(const RequestRecord& record, const std::vector<Goal>& goals) {
  return std::all_of(goals.begin(), goals.end(), [&](const Goal& goal) {
    const std::vector<double> values = values_ms(record, goal.metric);
    return std::all_of(values.begin(), values.end(),
                       [&](double value) { return value <= goal.most_ms; });
  });
}

void add_success(Summary& out, const RequestRecord& record) {
  ++out.completed;
  out.input_tokens += record.input_tokens();
  out.output_tokens += record.output_tokens();
  out.cached_tokens += std::max<std::int64_t>(record.cached_tokens, 0);
  out.kv_bytes += record.kv_bytes;
  out.split_requests += record.path == "split" ? 1 : 0;
  const bool both = record.usage_output_tokens >= 0 && record.counted_ids >= 0;
  out.miscounted += both && record.usage_output_tokens != record.counted_ids ? 1 : 0;
  out.short_answers += record.output_tokens() < record.planned_output_tokens ? 1 : 0;
}

}  // namespace

std::string_view metric_name(Metric metric) {
  switch (metric) {
    case Metric::kTtft:
      return "ttft";
    case Metric::kTtst:
      return "ttst";
    case Metric::kTpot:
      return "tpot";
    case Metric::kItl:
      return "itl";
    case Metric::kE2el:
      return "e2el";
  }
  return "";
}

Result<Metric> parse_metric(std::string_view name, const std::string& flag) {
  for (const Metric metric : kMetrics) {
    if (metric_name(metric) == name) {
      return metric;
    }
  }
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("{}: '{}' is none of ttft, ttst, tpot, itl, e2el", flag, name));
}

Result<Goal> parse_goal(std::string_view text) {
  const std::size_t colon = text.find(':');
  const std::string_view number =
      colon == std::string_view::npos ? std::string_view{} : text.substr(colon + 1);
  Goal goal;
  BATON_TRY(goal.metric, parse_metric(text.substr(0, colon), "--goodput"));
  const char* const end = number.data() + number.size();
  const auto read = std::from_chars(number.data(), end, goal.most_ms);
  if (number.empty() || read.ec != std::errc() || read.ptr != end || !(goal.most_ms > 0)) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("--goodput: '{}' is not METRIC:MILLISECONDS", text));
  }
  return goal;
}

std::vector<double> values_ms(const RequestRecord& record, Metric metric) {
  if (record.arrivals.empty()) {
    return {};
  }
  const TimePoint first = record.arrivals.front().at;
  const TimePoint last = record.arrivals.back().at;
  switch (metric) {
    case Metric::kTtft:
      return {ms(first - record.sent)};
    case Metric::kTtst: {
      const Arrival* second = arrival_of_token(record, 2);
      return second == nullptr ? std::vector<double>{}
                               : std::vector<double>{ms(second->at - record.sent)};
    }
    case Metric::kTpot:
      return record.output_tokens() < 2
                 ? std::vector<double>{}
                 : std::vector<double>{ms(last - first) /
                                       static_cast<double>(record.output_tokens() - 1)};
    case Metric::kItl: {
      std::vector<double> gaps;
      for (std::size_t i = 1; i < record.arrivals.size(); ++i) {
        gaps.push_back(ms(record.arrivals[i].at - record.arrivals[i - 1].at));
      }
      return gaps;
    }
    case Metric::kE2el:
      return {ms(last - record.sent)};
  }
  return {};
}

Distribution distribution_of(std::vector<double> values, const std::vector<double>& percentiles) {
  Distribution out;
  out.count = values.size();
  if (values.empty()) {
    for (const double percent : percentiles) {
      out.percentiles.emplace_back(percent, 0.0);
    }
    return out;
  }
  std::sort(values.begin(), values.end());
  const auto count = static_cast<double>(values.size());
  out.mean = std::accumulate(values.begin(), values.end(), 0.0) / count;
  double squares = 0;
  for (const double value : values) {
    squares += (value - out.mean) * (value - out.mean);
  }
  out.deviation = std::sqrt(squares / count);
  out.median = percentile_of(values, 50);
  out.max = values.back();
  for (const double percent : percentiles) {
    out.percentiles.emplace_back(percent, percentile_of(values, percent));
  }
  return out;
}

Summary summarize(const LoadResult& result, const std::vector<double>& percentiles,
                  const std::vector<Goal>& goals) {
  Summary out;
  std::map<Metric, std::vector<double>> values;
  std::vector<double> lags;
  std::vector<double> held;
  std::int64_t good = 0;
  for (const RequestRecord& record : result.records) {
    lags.push_back(ms(record.sent - record.released));
    if (record.released > record.scheduled) {
      held.push_back(ms(record.released - record.scheduled));
    }
    if (!record.ok()) {
      ++out.failed;
      Failure& failure = out.failures[record.failure];
      if (failure.count++ == 0) {
        failure.example = record.failure_message;
      }
      continue;
    }
    add_success(out, record);
    good += meets(record, goals) ? 1 : 0;
    for (const Metric metric : kMetrics) {
      const std::vector<double> some = values_ms(record, metric);
      values[metric].insert(values[metric].end(), some.begin(), some.end());
    }
  }
  out.duration_s = seconds(result.ended - result.started);
  if (out.duration_s > 0) {
    out.request_throughput = static_cast<double>(out.completed) / out.duration_s;
    out.output_throughput = static_cast<double>(out.output_tokens) / out.duration_s;
    out.total_throughput =
        static_cast<double>(out.input_tokens + out.output_tokens) / out.duration_s;
    out.goodput = goals.empty() ? -1 : static_cast<double>(good) / out.duration_s;
  }
  out.peak_output_throughput = peak_output(result);
  out.peak_concurrency = peak_concurrency(result.records);
  for (const Metric metric : kMetrics) {
    out.metrics[metric] = distribution_of(std::move(values[metric]), percentiles);
  }
  out.lag_ms = distribution_of(std::move(lags), percentiles);
  out.held_ms = distribution_of(std::move(held), percentiles);
  std::vector<double> wake_ups;
  std::transform(result.wake_ups.begin(), result.wake_ups.end(), std::back_inserter(wake_ups), ms);
  out.wake_ups_ms = distribution_of(std::move(wake_ups), percentiles);
  return out;
}

}  // namespace baton::serving
