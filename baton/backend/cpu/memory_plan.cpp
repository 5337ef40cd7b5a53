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

// Bytes of one block of each full group, of each window group.
struct ColumnBytes {
  std::uint64_t full = 0;
  std::uint64_t window = 0;
};

bool is_window(const kv::KvLayout& layout, std::size_t group) {
  return layout.groups[group].kind == kv::GroupKind::kWindow;
}

ColumnBytes column_bytes(const kv::KvLayout& layout) {
  ColumnBytes bytes;
  for (std::size_t group = 0; group < layout.groups.size(); ++group) {
    (is_window(layout, group) ? bytes.window : bytes.full) += layout.block_bytes(group);
  }
  return bytes;
}

// Blocks that max_num_seqs sequences of the whole context hold at once, in bytes of all groups.
std::uint64_t wanted_bytes(const CpuBackendOptions& options, const kv::KvLayout& layout,
                           std::int32_t context_tokens) {
  std::uint64_t bytes = 0;
  for (std::size_t group = 0; group < layout.groups.size(); ++group) {
    bytes += static_cast<std::uint64_t>(
                 layout.blocks_held(group, context_tokens, options.max_step_tokens)) *
             layout.block_bytes(group);
  }
  return bytes * static_cast<std::uint64_t>(options.max_num_seqs);
}

// Window groups first: all that max_num_seqs sequences can hold in them, or as many sequences as
// leave the full groups that length for each. The full groups get the rest. A budget below one such
// sequence is cut evenly: sequences are short then, and hold as much of each group.
void divide(std::uint64_t budget_bytes, const CpuBackendOptions& options,
            const kv::KvLayout& layout, std::int32_t context_tokens, MemoryPlan& plan) {
  const ColumnBytes bytes = column_bytes(layout);
  std::uint64_t windows = 0;  // blocks of a sequence in a window group
  for (std::size_t group = 0; group < layout.groups.size(); ++group) {
    if (is_window(layout, group)) {
      windows =
          std::max<std::uint64_t>(windows, static_cast<std::uint64_t>(layout.blocks_held(
                                               group, context_tokens, options.max_step_tokens)));
    }
  }
  const std::uint64_t even = budget_bytes / (bytes.full + bytes.window);
  const std::uint64_t sequences =
      windows == 0 ? 0
                   : std::min<std::uint64_t>(even / windows,
                                             static_cast<std::uint64_t>(options.max_num_seqs));
  const std::uint64_t window_blocks = sequences == 0 ? even : sequences * windows;
  const std::uint64_t full_blocks =
      bytes.full == 0 ? 0 : (budget_bytes - window_blocks * bytes.window) / bytes.full;
  constexpr std::uint64_t kMostBlocks = std::numeric_limits<std::uint32_t>::max() - 1;  // ids
  for (std::size_t group = 0; group < layout.groups.size(); ++group) {
    const std::uint64_t blocks = is_window(layout, group) ? window_blocks : full_blocks;
    plan.groups.push_back(
        {layout.block_bytes(group), static_cast<std::uint32_t>(std::min(blocks, kMostBlocks))});
    plan.kv_bytes += plan.groups.back().block_bytes * plan.groups.back().blocks;
  }
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
  std::string blocks;
  for (const MemoryPlan::Group& group : plan.groups) {
    blocks += fmt::format("{}{} blocks of {:.2f} MiB", blocks.empty() ? "" : ", ", group.blocks,
                          mib(group.block_bytes));
  }
  return fmt::format("weights {:.1f} MiB, KV cache {:.1f} MiB ({}), scratch {:.1f} MiB",
                     mib(plan.weight_bytes), mib(plan.kv_bytes), blocks, mib(plan.scratch_bytes));
}

Status plan_kv_memory(const CpuBackendOptions& options, const kv::KvLayout& layout,
                      std::int32_t context_tokens, std::uint64_t available_bytes,
                      MemoryPlan& plan) {
  const ColumnBytes column = column_bytes(layout);
  const std::uint64_t block_bytes = column.full + column.window;
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
    budget_bytes = std::min(wanted_bytes(options, layout, context_tokens), left / 2);
  }
  if (budget_bytes < block_bytes) {
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("a KV cache of {} bytes holds no block: one block of {} tokens needs {} "
                    "bytes; raise --kv-memory or lower --block-tokens",
                    budget_bytes, layout.block_tokens, block_bytes),
        "kv-memory");
  }
  if (budget_bytes > available_bytes || fixed_bytes > available_bytes - budget_bytes) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("a KV cache of {} bytes does not fit beside {} bytes of weights and "
                            "scratch: {} bytes are available",
                            budget_bytes, fixed_bytes, available_bytes),
                "kv-memory");
  }
  divide(budget_bytes, options, layout, context_tokens, plan);
  return {};
}

}  // namespace baton::backend
