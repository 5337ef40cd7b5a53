// Memory as a network might see it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

namespace baton::testing {

// Cuts memory into pieces of odd sizes, empty ones included.
template <class Byte>
std::vector<std::span<Byte>> pieces(std::span<Byte> whole, std::size_t step) {
  std::vector<std::span<Byte>> cut;
  for (std::size_t i = 0; !whole.empty(); ++i) {
    const std::size_t bytes = std::min(whole.size(), i % 7 == 3 ? 0 : step + i % 5);
    cut.push_back(whole.first(bytes));
    whole = whole.subspan(bytes);
  }
  return cut;
}

}  // namespace baton::testing
