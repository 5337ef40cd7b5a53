#include "baton/backend/cpu/memory_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

namespace baton::backend {

namespace {

constexpr double kMiB = 1024.0 * 1024.0;

std::uint64_t read_number(const char* path, std::uint64_t fallback) {
  std::ifstream file(path);
  std::uint64_t value = 0;
  return file >> value ? value : fallback;  // cgroup files say "max" for no limit
}

std::uint64_t system_available_bytes() {
  std::ifstream file("/proc/meminfo");
  std::string name;
  std::string unit;
  std::uint64_t value_kib = 0;
  while (file >> name >> value_kib) {
    if (name == "MemAvailable:") {
      return value_kib * 1024;
    }
    std::getline(file, unit);
  }
  return std::numeric_limits<std::uint64_t>::max();
}

double mib(std::uint64_t bytes) { return static_cast<double>(bytes) / kMiB; }

}  // namespace

std::uint64_t available_memory_bytes() {
  constexpr std::uint64_t kUnlimited = std::numeric_limits<std::uint64_t>::max();
  const std::uint64_t limit = read_number("/sys/fs/cgroup/memory.max", kUnlimited);
  const std::uint64_t used = read_number("/sys/fs/cgroup/memory.current", 0);
  const std::uint64_t in_group = limit == kUnlimited ? kUnlimited : limit - std::min(used, limit);
  return std::min(system_available_bytes(), in_group);
}

std::string describe(const MemoryPlan& plan) {
  return fmt::format(
      "weights {:.1f} MiB, KV cache {:.1f} MiB ({} blocks of {:.2f} MiB), scratch {:.1f} MiB",
      mib(plan.weight_bytes), mib(plan.kv_bytes), plan.blocks, mib(plan.block_bytes),
      mib(plan.scratch_bytes));
}

Status plan_kv_memory(const CpuBackendOptions& options, const kv::KvLayout& layout,
                      std::int32_t context_tokens, std::uint64_t available_bytes,
                      MemoryPlan& plan) {
  plan.block_bytes = layout.block_bytes(0);
  const std::uint64_t fixed_bytes = plan.weight_bytes + plan.scratch_bytes;
  if (fixed_bytes > available_bytes) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("weights and scratch need {} bytes, {} are available: a smaller model, "
                            "or fewer and shorter sequences, may fit",
                            fixed_bytes, available_bytes),
                "model");
  }
  std::uint64_t budget_bytes = options.kv_memory_bytes;
  if (budget_bytes == 0) {
    const std::uint64_t left = available_bytes - std::min(fixed_bytes, available_bytes);
    const std::uint64_t wanted_blocks =
        static_cast<std::uint64_t>(layout.blocks_for(context_tokens)) *
        static_cast<std::uint64_t>(options.max_num_seqs);
    budget_bytes = std::min(wanted_blocks * plan.block_bytes, left / 2);
  }
  if (budget_bytes < plan.block_bytes) {
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("a KV cache of {} bytes holds no block: one block of {} tokens needs {} "
                    "bytes; raise --kv-memory or lower --block-tokens",
                    budget_bytes, layout.block_tokens, plan.block_bytes),
        "kv-memory");
  }
  if (budget_bytes > available_bytes || fixed_bytes > available_bytes - budget_bytes) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("a KV cache of {} bytes does not fit beside {} bytes of weights and "
                            "scratch: {} bytes are available",
                            budget_bytes, fixed_bytes, available_bytes),
                "kv-memory");
  }
  // Block ids are 32 bit.
  plan.blocks = static_cast<std::uint32_t>(std::min<std::uint64_t>(
      budget_bytes / plan.block_bytes, std::numeric_limits<std::uint32_t>::max() - 1));
  plan.kv_bytes = plan.blocks * plan.block_bytes;
  return {};
}

}  // namespace baton::backend
