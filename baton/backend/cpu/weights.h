// The model's weights as the kernels read them: one arena of packed matrices and f32 vectors,
// filled tensor by tensor from the mapped file, whose pages are given back on the way: the file's
// bytes and their packed copy are never resident together. Immutable after load. Thread: any once
// loaded.
#pragma once

#include "baton/base/result.h"
#include "baton/base/thread_pool.h"
#include "baton/files/gguf.h"
#include "baton/kernels/pack.h"
#include "baton/model/model.h"
#include "baton/tensor/buffer.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace baton::backend {

// W[n][k] packed in panels of 16 outputs, see kernels/pack.h.
struct PackedMatrix {
  tensor::DType dtype = tensor::DType::kF32;
  const std::byte* packed = nullptr;
  std::int64_t n = 0;
  std::int64_t k = 0;

  [[nodiscard]] kernels::ActivationFormat format() const {
    return kernels::activation_format(dtype);
  }
  [[nodiscard]] std::int64_t panels() const { return kernels::panel_count(n); }
};

struct CpuLayer {
  const float* attn_norm = nullptr;  // [dim]
  std::array<PackedMatrix, 3> qkv;   // [heads * head_dim], [kv_heads * head_dim] twice; k = dim
  const float* q_norm = nullptr;     // [head_dim] or null
  const float* k_norm = nullptr;     // [head_dim] or null
  PackedMatrix attn_output;          // [dim], k = heads * head_dim
  const float* post_attention_norm = nullptr;  // [dim] or null
  const float* ffn_norm = nullptr;             // [dim]
  std::array<PackedMatrix, 2> gate_up;         // [ffn_dim] each, k = dim
  PackedMatrix ffn_down;                       // [dim], k = ffn_dim
  const float* post_ffn_norm = nullptr;        // [dim] or null
};

struct CpuWeights {
  tensor::Buffer arena;
  PackedMatrix embedding;              // [vocabulary], k = dim
  PackedMatrix output;                 // the same bytes when tied
  const float* output_norm = nullptr;  // [dim]
  std::vector<CpuLayer> layers;
  files::Sha256Digest model_digest{};
};

// Bytes of the arena. Errors: kUnsupported when a shape does not fit its type (named).
Result<std::uint64_t> packed_weight_bytes(const files::GgufFile& file,
                                          const model::ModelDescription& description);

using WeightProgress = std::function<void(std::uint64_t done_bytes, std::uint64_t total_bytes)>;
// Errors: kOverloaded when there is no memory. Thread: the pool's owner; progress is called on it.
Result<CpuWeights> load_weights(const files::GgufFile& file,
                                const model::ModelDescription& description, ThreadPool& pool,
                                const WeightProgress& progress);

}  // namespace baton::backend
