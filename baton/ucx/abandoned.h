// Workers that cannot be destroyed and are never let progress again. Private to baton/ucx/.
#pragma once

#include "baton/ucx/library.h"

#include <cstddef>
#include <memory>

namespace baton::ucx {

// Of one context. A worker keeps 0.4 MB (TCP) to 5 MB (shared memory) and some descriptors.
inline constexpr std::size_t kMaxAbandoned = 16;

// Keeps a worker and its context until the process ends, untouched; returns how many of that
// context there are now. Thread: any.
std::size_t abandon(std::shared_ptr<const Context> context, ucp_worker_h worker);
std::size_t count_abandoned(const Context* context);

}  // namespace baton::ucx
