// What was measured, as values. Filled by measure.cpp and cancels.cpp, read by summary.cpp and
// report.cpp.
#pragma once

#include "bench/handoff/servers.h"
#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace baton::bench_handoff {

// One request to a server that had nothing else to do.
struct Sample {
  double ttft_ms = 0;
  double ttst_ms = 0;       // second token
  double later_gap_ms = 0;  // median gap between the tokens after it: a step
  // Of kSplit and kWhole.
  double exposed_ms = 0;  // from the end of the prefill to the last Ack
  std::int64_t kv_bytes = 0;
};

// The same prompt to all three servers, and as many bytes over the raw socket.
struct Round {
  std::array<Sample, kShapes.size()> samples;  // by Shape
  double raw_s = 0;

  [[nodiscard]] const Sample& at(Shape shape) const { return samples[index_of(shape)]; }
};

struct LengthRounds {
  std::int32_t prompt_tokens = 0;
  std::vector<Round> rounds;
};

// From a client's leaving until the blocks of both nodes are free.
struct CancelTimes {
  std::vector<double> prefill_ms;
  std::vector<double> decode_ms;
};

struct Measured {
  std::vector<LengthRounds> lengths;  // in the order asked for
  CancelTimes cancels;
};

}  // namespace baton::bench_handoff
