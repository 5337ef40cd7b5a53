// Random tests from one seed: the same draws on every machine and library.
#pragma once

#include "baton/base/ids.h"
#include "baton/sample/params.h"

#include <cstdint>
#include <random>
#include <vector>

namespace baton::testing {

// std::uniform_int_distribution differs between libraries; this does not.
class Draw {
 public:
  explicit Draw(std::uint64_t seed) : random_(seed) {}
  // In [low, high].
  std::int32_t in(std::int32_t low, std::int32_t high) {
    const auto width = static_cast<std::uint64_t>(high - low + 1);
    return low + static_cast<std::int32_t>(random_() % width);
  }
  bool chance(std::int32_t percent) { return in(1, 100) <= percent; }
  template <class T>
  T one_of(const std::vector<T>& values) {
    return values[static_cast<std::size_t>(in(0, static_cast<std::int32_t>(values.size()) - 1))];
  }
  std::uint64_t bits() { return random_(); }

 private:
  std::mt19937_64 random_;
};

std::vector<TokenId> draw_tokens(Draw& draw, std::int32_t count, std::int32_t vocabulary);
// Greedy or seeded, with each of the filters and penalties now and then.
sample::SamplingParams draw_sampling(Draw& draw, std::int32_t vocabulary);

}  // namespace baton::testing
