// How much memory the CPU backend takes: decided before anything large is allocated, from the
// options, the model's shape and what the machine has left. Thread: any.
#pragma once

#include "baton/backend/cpu/cpu_backend.h"
#include "baton/base/result.h"
#include "baton/kv/layout.h"

#include <cstdint>

namespace baton::backend {

// What the system (or this process's cgroup, when that is less) could still give; bytes.
std::uint64_t available_memory_bytes();

// Fills kv_bytes and groups of `plan`, whose weight_bytes and scratch_bytes are set.
// Errors: kInvalidArgument when the budget is below a block of each group or above what the system
// has.
Status plan_kv_memory(const CpuBackendOptions& options, const kv::KvLayout& layout,
                      std::int32_t context_tokens, std::uint64_t available_bytes, MemoryPlan& plan);

}  // namespace baton::backend
