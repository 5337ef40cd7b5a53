#include "baton/backend/cpu/weights.h"

#include "baton/base/check.h"
#include "baton/files/model_digest.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <unordered_map>

namespace baton::backend {

namespace {

constexpr std::uint64_t kAlignment = tensor::kBufferAlignment;

tensor::DType to_dtype(files::TensorType type) {
  switch (type) {
    case files::TensorType::kF32:
      return tensor::DType::kF32;
    case files::TensorType::kF16:
      return tensor::DType::kF16;
    case files::TensorType::kBf16:
      return tensor::DType::kBf16;
    case files::TensorType::kQ4_0:
      return tensor::DType::kQ4_0;
    case files::TensorType::kQ4_1:
      return tensor::DType::kQ4_1;
    case files::TensorType::kQ8_0:
      return tensor::DType::kQ8_0;
  }
  BATON_CHECK(false, "tensor type {}", static_cast<std::uint32_t>(type));
}

bool is_vector(const files::GgufTensor& tensor) { return tensor.dims.size() == 1; }

// Bytes of one tensor in the arena, rounded up so that the next one is aligned too.
std::uint64_t arena_bytes(const files::GgufTensor& tensor) {
  const std::uint64_t bytes =
      is_vector(tensor)
          ? tensor.bytes.size()
          : kernels::packed_bytes(to_dtype(tensor.type), static_cast<std::int64_t>(tensor.dims[1]),
                                  static_cast<std::int64_t>(tensor.dims[0]));
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// Tensor indices in the order in which a step reads them: a layer's weights lie side by side.
std::vector<std::size_t> step_order(const model::ModelDescription& description) {
  std::vector<std::size_t> order;
  for (const model::LayerWeights& layer : description.layers) {
    for (const model::TensorRef* ref :
         {&layer.attn_norm, &layer.attn_q, &layer.attn_k, &layer.attn_v}) {
      order.push_back(ref->index);
    }
    if (layer.attn_q_norm) {
      order.push_back(layer.attn_q_norm->index);
    }
    if (layer.attn_k_norm) {
      order.push_back(layer.attn_k_norm->index);
    }
    for (const model::TensorRef* ref :
         {&layer.attn_output, &layer.ffn_norm, &layer.ffn_gate, &layer.ffn_up, &layer.ffn_down}) {
      order.push_back(ref->index);
    }
  }
  order.push_back(description.output_norm.index);
  order.push_back(description.output.index);
  if (!description.config.tied_output) {
    order.push_back(description.token_embedding.index);
  }
  return order;
}

class Loader {
 public:
  Loader(const files::GgufFile& file, ThreadPool& pool, std::span<std::byte> arena)
      : file_(file), pool_(pool), arena_(arena), digest_(file) {}

  // Hashes, copies or packs one tensor, then gives its pages back.
  void load(std::size_t index) {
    const files::GgufTensor& tensor = file_.tensors()[index];
    digest_.add(index);
    std::byte* target = arena_.data() + used_bytes_;
    used_bytes_ += arena_bytes(tensor);
    BATON_CHECK(used_bytes_ <= arena_.size(), "{} of {} bytes", used_bytes_, arena_.size());
    if (is_vector(tensor)) {
      std::memcpy(target, tensor.bytes.data(), tensor.bytes.size());
    } else {
      const tensor::DType dtype = to_dtype(tensor.type);
      const auto n = static_cast<std::int64_t>(tensor.dims[1]);
      const auto k = static_cast<std::int64_t>(tensor.dims[0]);
      constexpr std::int64_t kGrainPanels = 8;
      pool_.parallel_for(kernels::panel_count(n), kGrainPanels,
                         [&](std::int64_t first, std::int64_t last, int /*thread*/) {
                           kernels::repack(dtype, tensor.bytes.data(), n, k, first, last, target);
                         });
    }
    file_.release_pages(tensor.bytes);
    placed_.emplace(index, target);
  }

  [[nodiscard]] const float* vector(const model::TensorRef& ref) const {
    return reinterpret_cast<const float*>(placed_.at(ref.index));
  }
  [[nodiscard]] PackedMatrix matrix(const model::TensorRef& ref) const {
    return {to_dtype(ref.type), placed_.at(ref.index), ref.rows, ref.columns};
  }
  files::Sha256Digest digest() { return digest_.finish(); }

 private:
  const files::GgufFile& file_;
  ThreadPool& pool_;
  std::span<std::byte> arena_;
  std::uint64_t used_bytes_ = 0;
  files::ModelDigest digest_;
  std::unordered_map<std::size_t, const std::byte*> placed_;
};

CpuLayer place_layer(const Loader& loader, const model::LayerWeights& source) {
  CpuLayer layer;
  layer.attn_norm = loader.vector(source.attn_norm);
  layer.qkv = {loader.matrix(source.attn_q), loader.matrix(source.attn_k),
               loader.matrix(source.attn_v)};
  layer.q_norm = source.attn_q_norm ? loader.vector(*source.attn_q_norm) : nullptr;
  layer.k_norm = source.attn_k_norm ? loader.vector(*source.attn_k_norm) : nullptr;
  layer.attn_output = loader.matrix(source.attn_output);
  layer.ffn_norm = loader.vector(source.ffn_norm);
  layer.gate_up = {loader.matrix(source.ffn_gate), loader.matrix(source.ffn_up)};
  layer.ffn_down = loader.matrix(source.ffn_down);
  return layer;
}

}  // namespace

Result<std::uint64_t> packed_weight_bytes(const files::GgufFile& file,
                                          const model::ModelDescription& description) {
  std::uint64_t bytes = 0;
  for (const std::size_t index : step_order(description)) {
    const files::GgufTensor& tensor = file.tensors()[index];
    if (!is_vector(tensor)) {
      const auto shape = kernels::check_weight_shape(to_dtype(tensor.type),
                                                     static_cast<std::int64_t>(tensor.dims[1]),
                                                     static_cast<std::int64_t>(tensor.dims[0]));
      if (!shape) {
        return fail(
            shape.error().code,
            fmt::format("{}: tensor '{}': {}", file.path(), tensor.name, shape.error().message),
            file.path());
      }
    }
    bytes += arena_bytes(tensor);
  }
  return bytes;
}

Result<CpuWeights> load_weights(const files::GgufFile& file,
                                const model::ModelDescription& description, ThreadPool& pool,
                                const WeightProgress& progress) {
  BATON_TRY(const std::uint64_t total_bytes, packed_weight_bytes(file, description));
  CpuWeights weights;
  BATON_TRY(weights.arena, tensor::Buffer::allocate(total_bytes, tensor::PageAdvice::kHuge));
  Loader loader(file, pool, weights.arena.span());
  std::uint64_t done_bytes = 0;
  for (const std::size_t index : step_order(description)) {
    loader.load(index);
    done_bytes += arena_bytes(file.tensors()[index]);
    if (progress) {
      progress(done_bytes, total_bytes);
    }
  }
  for (const model::LayerWeights& layer : description.layers) {
    weights.layers.push_back(place_layer(loader, layer));
  }
  weights.output_norm = loader.vector(description.output_norm);
  weights.output = loader.matrix(description.output);
  weights.embedding = loader.matrix(description.token_embedding);
  weights.model_digest = loader.digest();
  return weights;
}

}  // namespace baton::backend
