// The version of the CPU's numerics. Any commit that changes one bit of any logit raises it: nodes
// pair, and requests are replayed, only within one version (docs/exactness.md).
#pragma once

#include <cstdint>

namespace baton::backend {

inline constexpr std::uint32_t kCpuNumericsVersion = 1;

}  // namespace baton::backend
