// The passes over a whole row of logits. Sums run in 16 lanes (element i in lane i mod 16) over
// spans of kSumSpan elements, each folded by one fixed tree, the spans added in order as doubles:
// fixed bits, and vector speed at any width.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace baton::sample {

inline constexpr std::size_t kSumSpan = 1024;

struct RowMaximum {
  float value = 0.0F;  // largest that is not NaN; -infinity if there is none
  bool has_nan = false;
};
RowMaximum row_maximum(std::span<const float> row);

// First index that holds `value`; row.size() if none.
std::size_t first_index_of(std::span<const float> row, float value);

// sum of exp(x - max); max is finite and no smaller than any element. NaN counts as -infinity.
double exp_sum(std::span<const float> row, float max);

// weights[i] = exp((row[i] - max) / temperature); span_sums[j] = sum of weights in
// [j kSumSpan, (j + 1) kSumSpan). No NaN in row.
void exp_weights(std::span<const float> row, float max, float temperature, std::span<float> weights,
                 std::vector<double>& span_sums);

}  // namespace baton::sample
