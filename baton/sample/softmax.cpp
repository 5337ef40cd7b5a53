#include "baton/sample/softmax.h"

#include "baton/sample/math.h"

#include <algorithm>
#include <array>
#include <limits>

namespace baton::sample {

namespace {

constexpr std::size_t kLanes = 16;
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// NaN -> -infinity.
inline Float4 without_nan(Float4 x) { return x == x ? x : Float4{} + kMinusInfinity; }

// The fixed tree: lanes i and i + 8, then i and i + 4, i + 2, i + 1.
float fold(const std::array<Float4, 4>& lanes) {
  const Float4 eight_low = lanes[0] + lanes[2];
  const Float4 eight_high = lanes[1] + lanes[3];
  const Float4 four = eight_low + eight_high;
  return (four[0] + four[2]) + (four[1] + four[3]);
}

// Calls body(index, pointer to 16 floats, real elements) over [begin, end); the last group is
// padded with -infinity, whose exponential is 0.
template <class Body>
inline void for_each_group(std::span<const float> row, std::size_t begin, std::size_t end,
                           Body&& body) {
  std::size_t i = begin;
  for (; i + kLanes <= end; i += kLanes) {
    body(i, row.data() + i, kLanes);
  }
  if (i < end) {
    std::array<float, kLanes> padded;
    padded.fill(kMinusInfinity);
    std::copy(row.begin() + static_cast<std::ptrdiff_t>(i),
              row.begin() + static_cast<std::ptrdiff_t>(end), padded.begin());
    body(i, padded.data(), end - i);
  }
}

}  // namespace

RowMaximum row_maximum(std::span<const float> row) {
  std::array<Float4, 4> best;
  best.fill(Float4{} + kMinusInfinity);
  Int4 unordered{};
  for_each_group(row, 0, row.size(), [&](std::size_t, const float* group, std::size_t) {
    for (std::size_t v = 0; v < 4; ++v) {
      const Float4 x = load4(group + 4 * v);
      best[v] = x > best[v] ? x : best[v];
      unordered |= x != x;
    }
  });
  RowMaximum result{kMinusInfinity, false};
  for (std::size_t v = 0; v < 4; ++v) {
    for (int lane = 0; lane < 4; ++lane) {
      result.value = std::max(result.value, best[v][lane]);
    }
  }
  result.has_nan = (unordered[0] | unordered[1] | unordered[2] | unordered[3]) != 0;
  return result;
}

std::size_t first_index_of(std::span<const float> row, float value) {
  return static_cast<std::size_t>(std::find(row.begin(), row.end(), value) - row.begin());
}

double exp_sum(std::span<const float> row, float max) {
  double total = 0.0;
  for (std::size_t begin = 0; begin < row.size(); begin += kSumSpan) {
    std::array<Float4, 4> lanes{};
    for_each_group(row, begin, std::min(row.size(), begin + kSumSpan),
                   [&](std::size_t, const float* group, std::size_t) {
                     for (std::size_t v = 0; v < 4; ++v) {
                       lanes[v] += exp4(without_nan(load4(group + 4 * v)) - max);
                     }
                   });
    total += static_cast<double>(fold(lanes));
  }
  return total;
}

void exp_weights(std::span<const float> row, float max, float temperature, std::span<float> weights,
                 std::vector<double>& span_sums) {
  span_sums.clear();
  for (std::size_t begin = 0; begin < row.size(); begin += kSumSpan) {
    std::array<Float4, 4> lanes{};
    for_each_group(row, begin, std::min(row.size(), begin + kSumSpan),
                   [&](std::size_t index, const float* group, std::size_t count) {
                     std::array<float, kLanes> stored;
                     for (std::size_t v = 0; v < 4; ++v) {
                       const Float4 weight = exp4((load4(group + 4 * v) - max) / temperature);
                       lanes[v] += weight;
                       store4(stored.data() + 4 * v, weight);
                     }
                     std::copy_n(stored.begin(), count,
                                 weights.begin() + static_cast<std::ptrdiff_t>(index));
                   });
    span_sums.push_back(static_cast<double>(fold(lanes)));
  }
}

}  // namespace baton::sample
