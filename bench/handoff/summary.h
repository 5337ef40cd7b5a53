// Medians and ratios of what was measured, and which goals they meet. Pure. Thread: any.
#pragma once

#include "bench/handoff/samples.h"
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace baton::bench_handoff {

// Of one round; medians of them in a summary.
struct Ratios {
  double ttft = 0;                    // split / single
  double ttst = 0;                    // split / single
  double ttst_steps = 0;              // (split - single) / a step of the single node
  double ttst_streamed_to_whole = 0;  // KV streamed / sent whole
  double rate_to_raw = 0;             // of KV sent whole / of the raw socket
  double exposed_to_transfer = 0;     // exposed of streamed KV / time of KV sent whole
};
struct RatioField {
  std::string_view key;
  double Ratios::*value;
};
inline constexpr std::array kRatioFields = {
    RatioField{"ttft", &Ratios::ttft},
    RatioField{"ttst", &Ratios::ttst},
    RatioField{"ttst_steps", &Ratios::ttst_steps},
    RatioField{"ttst_streamed_to_whole", &Ratios::ttst_streamed_to_whole},
    RatioField{"rate_to_raw", &Ratios::rate_to_raw},
    RatioField{"exposed_to_transfer", &Ratios::exposed_to_transfer}};
[[nodiscard]] Ratios ratios_of(const Round& round);

// Time of KV sent whole that the raw socket does not need for as many bytes, the decode node being
// idle. Below 0 where the socket was slower.
[[nodiscard]] double not_wire_ms(const Round& round);

// Medians over the rounds of one length, of which there is at least one.
struct LengthSummary {
  std::int32_t prompt_tokens = 0;
  std::int64_t kv_bytes = 0;
  Ratios ratios;
  std::array<Sample, kShapes.size()> samples;  // by Shape; kv_bytes of kSingle is 0
  double raw_ms = 0;
  double raw_gb_per_s = 0;
  double not_wire_ms = 0;

  [[nodiscard]] const Sample& at(Shape shape) const { return samples[index_of(shape)]; }
};
// Lengths without a round are left out.
[[nodiscard]] std::vector<LengthSummary> summarize(const Measured& measured);

// A goal for one ratio and what was reached.
struct Verdict {
  struct Value {
    std::string where;  // "256", or a phase
    std::string shown;  // with its unit
    double value = 0;
    double bound = 0;
    bool met = false;
  };
  std::string_view key;  // for programs
  std::string what;
  std::string goal;           // "<= 1.02"
  std::vector<Value> values;  // empty: nothing that the goal speaks of was measured

  [[nodiscard]] bool met() const;
};
// One for each ratio with a goal, in a fixed order.
[[nodiscard]] std::vector<Verdict> judge(const std::vector<LengthSummary>& lengths,
                                         const CancelTimes& cancels);

}  // namespace baton::bench_handoff
