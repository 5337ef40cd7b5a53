#include "apps/baton/bench_report.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "bench/median.h"
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <optional>

namespace baton::app {

namespace {

// What one measurement says in all formats.
struct Line {
  double rate = 0;  // tokens per second
  double low = 0;
  double high = 0;
  double deviation = 0;
  double gmac = 0;
  double gb = 0;
  std::optional<double> compute_share;  // time at the compute limits / time taken
  std::optional<double> read_share;
};

double deviation_of(const std::vector<double>& rates) {
  const double count = static_cast<double>(rates.size());
  const double mean = std::accumulate(rates.begin(), rates.end(), 0.0) / count;
  double sum = 0;
  for (const double rate : rates) {
    sum += (rate - mean) * (rate - mean);
  }
  return count > 1 ? std::sqrt(sum / (count - 1)) : 0.0;
}

Line line_of(const Measurement& one) {
  std::vector<double> rates;
  std::ranges::transform(one.seconds, std::back_inserter(rates),
                         [&](double seconds) { return one.tokens / seconds; });
  const double seconds = one.median_seconds();
  Line line;
  line.rate = one.tokens_per_second();
  line.low = rates.back();  // seconds ascend, rates descend
  line.high = rates.front();
  line.deviation = deviation_of(rates);
  line.gmac = one.work.macs() / seconds * 1e-9;
  line.gb = one.work.bytes / seconds * 1e-9;
  if (one.limits.int8_gmac > 0) {
    line.compute_share = one.work.compute_seconds(one.limits) / seconds;
    line.read_share = one.work.read_seconds(one.limits) / seconds;
  }
  return line;
}

nlohmann::ordered_json or_null(const std::optional<double>& value) {
  return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json(nullptr);
}

void print_json(const BenchEngineOptions& options, const std::string& model,
                const std::vector<Measurement>& measurements) {
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (const Measurement& one : measurements) {
    const Line line = line_of(one);
    all.push_back({{"model", model},
                   {"test", one.test},
                   {"batch", one.batch},
                   {"threads", one.threads},
                   {"depth", one.depth},
                   {"isa", options.isa},
                   {"kv_dtype", options.kv_dtype},
                   {"tokens_per_second", line.rate},
                   {"min", line.low},
                   {"max", line.high},
                   {"stddev", line.deviation},
                   {"repetitions", one.seconds.size()},
                   {"gmac_per_second", line.gmac},
                   {"gb_per_second", line.gb},
                   {"compute_share", or_null(line.compute_share)},
                   {"read_share", or_null(line.read_share)},
                   {"limits",
                    {{"int8_gmac_per_second", one.limits.int8_gmac},
                     {"bf16_gmac_per_second", one.limits.bf16_gmac},
                     {"fp32_gmac_per_second", one.limits.fp32_gmac},
                     {"read_gb_per_second", one.limits.read_gb},
                     {"read_bytes", one.limits.read_bytes}}}});
  }
  std::puts(all.dump(2).c_str());
}

void print_csv(const BenchEngineOptions& options, const std::string& model,
               const std::vector<Measurement>& measurements) {
  std::puts(
      "model,test,batch,threads,depth,isa,kv_dtype,tokens_per_second,min,max,stddev,"
      "gmac_per_second,gb_per_second,compute_share,read_share");
  for (const Measurement& one : measurements) {
    const Line line = line_of(one);
    const auto share = [](const std::optional<double>& value) {
      return value ? fmt::format("{:.4f}", *value) : std::string();
    };
    fmt::print("{},{},{},{},{},{},{},{:.3f},{:.3f},{:.3f},{:.3f},{:.2f},{:.3f},{},{}\n", model,
               one.test, one.batch, one.threads, one.depth, options.isa, options.kv_dtype,
               line.rate, line.low, line.high, line.deviation, line.gmac, line.gb,
               share(line.compute_share), share(line.read_share));
  }
}

// The limits are those of the first test of each number of threads.
void print_limits(const std::vector<Measurement>& measurements) {
  int shown = 0;
  for (const Measurement& one : measurements) {
    if (one.limits.threads != shown && one.limits.int8_gmac > 0) {
      shown = one.limits.threads;
      fmt::print(
          "limits, {} threads: int8 {:.0f}, bf16 {:.0f}, fp32 {:.0f} GMAC/s; read {:.1f} GB/s "
          "({:.0f} MB)\n",
          shown, one.limits.int8_gmac, one.limits.bf16_gmac, one.limits.fp32_gmac,
          one.limits.read_gb, static_cast<double>(one.limits.read_bytes) * 1e-6);
    }
  }
}

void print_table(const std::string& model, const std::vector<Measurement>& measurements) {
  print_limits(measurements);
  std::puts(
      "| model | test | batch | threads | t/s (median) | min .. max | GMAC/s | of limit | GB/s | "
      "of read |");
  std::puts("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |");
  const auto percent = [](const std::optional<double>& value) {
    return value ? fmt::format("{:.0f} %", *value * 100) : std::string("-");
  };
  for (const Measurement& one : measurements) {
    const Line line = line_of(one);
    fmt::print("| {} | {} | {} | {} | {:.2f} | {:.2f} .. {:.2f} | {:.1f} | {} | {:.2f} | {} |\n",
               model, one.test, one.batch, one.threads, line.rate, line.low, line.high, line.gmac,
               percent(line.compute_share), line.gb, percent(line.read_share));
  }
}

}  // namespace

double Measurement::median_seconds() const { return bench::median(seconds); }

void print_measurements(const BenchEngineOptions& options, const std::string& model,
                        const std::vector<Measurement>& measurements) {
  switch (options.format) {
    case BenchFormat::kJson:
      return print_json(options, model, measurements);
    case BenchFormat::kCsv:
      return print_csv(options, model, measurements);
    case BenchFormat::kTable:
      return print_table(model, measurements);
  }
}

}  // namespace baton::app
