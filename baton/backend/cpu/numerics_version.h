// The version of the CPU's numerics. Any commit that changes one bit of any logit raises it: nodes
// pair, and requests are replayed, only within one version (docs/exactness.md).
#pragma once

#include "baton/kernels/attention.h"

#include <cstdint>

namespace baton::backend {

inline constexpr std::uint32_t kCpuNumericsVersion = 1;
static_assert(kernels::kPartKeys == 512, "another length is another numerics version");

}  // namespace baton::backend
