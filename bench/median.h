// What benchmarks report of several measurements.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace baton::bench {

// The middle value, or the mean of the two middle ones. `values` is not empty.
inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

}  // namespace baton::bench
