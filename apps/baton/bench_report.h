// Results of `baton bench engine` as llama-bench prints them: a Markdown table, JSON or CSV.
// Thread: any.
#pragma once

#include "apps/baton/bench_engine.h"
#include "apps/baton/bench_work.h"
#include "bench/limits/limits.h"
#include <cstdint>
#include <string>
#include <vector>

namespace baton::app {

struct Measurement {
  std::string test;  // pp512, tg128, pp512 @ d1024
  std::int32_t batch = 0;
  std::int32_t threads = 0;
  std::int32_t depth = 0;
  std::int32_t tokens = 0;      // in all, of one repetition
  std::vector<double> seconds;  // one per repetition, ascending
  Work work;                    // of one repetition
  bench::Limits limits;         // zeros: not measured

  [[nodiscard]] double median_seconds() const;
  [[nodiscard]] double tokens_per_second() const { return tokens / median_seconds(); }
};

// To stdout. JSON: an array of objects with at least model, test, batch, threads and
// tokens_per_second. A share is null (JSON) or "-" where the limit was not measured.
void print_measurements(const BenchEngineOptions& options, const std::string& model,
                        const std::vector<Measurement>& measurements);

}  // namespace baton::app
