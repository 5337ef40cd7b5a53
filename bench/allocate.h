// Memory of the benchmark programs, which have nobody to report to: no room ends the program.
#pragma once

#include "baton/tensor/buffer.h"

#include <fmt/format.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <utility>

namespace baton::bench {

inline tensor::Buffer allocate(std::size_t bytes) {
  auto made = tensor::Buffer::allocate(bytes, tensor::PageAdvice::kHuge);
  if (!made) {
    fmt::print(stderr, "{}\n", made.error().message);
    std::exit(1);
  }
  return std::move(*made);
}

}  // namespace baton::bench
