// The CPU backend: owns repacked weights and the KV pool, computes a step on a fixed set of
// threads. Logits of a row are a pure function of the exactness tag and the sequence's tokens:
// never of the other rows of the step, the chunking, the thread count or the vector width
// (docs/exactness.md). Thread: made on any; then the engine thread only (block_bytes' spans as
// backend.h says).
#pragma once

#include "baton/backend/backend.h"
#include "baton/base/result.h"
#include "baton/files/dummy_model.h"
#include "baton/kv/layout.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace baton::backend {

struct CpuBackendOptions {
  std::string model_path;
  std::optional<files::DummyModel> dummy;     // instead of model_path: random weights
  std::string isa = "auto";                   // auto, ref, avx2, avx512
  std::int32_t threads = 0;                   // 0 = as many as this process may use
  kv::KvDtype kv_dtype = kv::KvDtype::kBf16;  // any; see docs/limits.md
  std::int32_t block_tokens = 128;            // 32, 64, 128 or 256
  // Bytes for the KV pools. 0 = automatic: what max_num_seqs sequences of max_context tokens need,
  // at most half of the memory that is available after the weights. Of them window groups get what
  // max_num_seqs sequences hold at once, or fewer where little is left for the others.
  std::uint64_t kv_memory_bytes = 0;
  std::int32_t max_context_tokens = 0;  // 0 = the model's
  std::int32_t max_step_tokens = 512;   // rows of one step; sizes the scratch memory
  std::int32_t max_num_seqs = 16;       // sequences of one step
};

// Called on the making thread while weights load: bytes of the file done and in all.
using LoadProgress = std::function<void(std::uint64_t done_bytes, std::uint64_t total_bytes)>;

// What will be allocated; printed before the load.
struct MemoryPlan {
  std::uint64_t weight_bytes = 0;  // the file's tensors, repacked
  std::uint64_t kv_bytes = 0;      // of all groups
  std::uint64_t scratch_bytes = 0;
  struct Group {
    std::uint64_t block_bytes = 0;
    std::uint32_t blocks = 0;
  };
  std::vector<Group> groups;  // of the KV layout
};
std::string describe(const MemoryPlan& plan);  // one line

// Errors: those of GgufFile::open and describe_model; kInvalidArgument (isa that this CPU lacks,
// options out of range, a KV budget below one block: with both numbers), kUnsupported (KV dtype),
// kIo (no memory). `on_plan` (may be null) gets the plan before anything large is allocated.
Result<std::unique_ptr<Backend>> make_cpu_backend(
    const CpuBackendOptions& options, const LoadProgress& progress = nullptr,
    const std::function<void(const MemoryPlan&)>& on_plan = nullptr);

}  // namespace baton::backend
