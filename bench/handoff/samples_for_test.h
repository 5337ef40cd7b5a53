// Measured values made up for tests, so that figures can be checked by hand.
#pragma once

#include "bench/handoff/samples.h"

namespace baton::bench_handoff::testing {

// A round in which everything is met: the split costs 1 % of the first token and one step of 5 ms
// on the second, and the socket needs 8 of the 8.5 ms of KV sent whole.
inline Round good_round() {
  Round round;
  round.samples[index_of(Shape::kSingle)] = {1000, 1010, 5, 0, 0};
  round.samples[index_of(Shape::kSplit)] = {1010, 1015, 5, 0.25, 20'000'000};
  round.samples[index_of(Shape::kWhole)] = {1010, 1025, 5, 8.5, 20'000'000};
  round.raw_s = 0.008;
  return round;
}

inline Measured measured_of(std::int32_t prompt_tokens, std::vector<Round> rounds) {
  Measured measured;
  measured.lengths.push_back({prompt_tokens, std::move(rounds)});
  return measured;
}

}  // namespace baton::bench_handoff::testing
