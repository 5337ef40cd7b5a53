#include "baton/backend/cpu/weights.h"

#include "baton/base/check.h"
#include "baton/files/model_digest.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>

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
    case files::TensorType::kQ5_0:
      return tensor::DType::kQ5_0;
    case files::TensorType::kQ5_1:
      return tensor::DType::kQ5_1;
    case files::TensorType::kQ2K:
      return tensor::DType::kQ2K;
    case files::TensorType::kQ3K:
      return tensor::DType::kQ3K;
    case files::TensorType::kQ4K:
      return tensor::DType::kQ4K;
    case files::TensorType::kQ5K:
      return tensor::DType::kQ5K;
    case files::TensorType::kQ6K:
      return tensor::DType::kQ6K;
    case files::TensorType::kIq4Nl:
      return tensor::DType::kIq4Nl;
    case files::TensorType::kMxfp4:
      return tensor::DType::kMxfp4;
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
    for (const std::optional<model::TensorRef>* ref :
         {&layer.attn_q_norm, &layer.attn_k_norm, &layer.post_attention_norm,
          &layer.post_ffn_norm}) {
      if (*ref) {
        order.push_back((*ref)->index);
      }
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

// Where each tensor of the file goes in the arena; null for one that is not used.
using Places = std::vector<std::byte*>;

// A piece stays in a core's L2 between its hash and its repack, and bounds what is resident twice.
constexpr std::uint64_t kPieceBytes = 512 * 1024;

// Hashes and packs (or copies) one tensor piece by piece, giving the file's pages back on the way.
files::TensorHash load_tensor(const files::GgufFile& file, const files::GgufTensor& tensor,
                              std::byte* target) {
  files::TensorHasher hasher;
  if (is_vector(tensor)) {
    hasher.update(tensor.bytes);
    std::memcpy(target, tensor.bytes.data(), tensor.bytes.size());
    return hasher.finish();
  }
  const tensor::DType dtype = to_dtype(tensor.type);
  const auto n = static_cast<std::int64_t>(tensor.dims[1]);
  const auto k = static_cast<std::int64_t>(tensor.dims[0]);
  const std::uint64_t panel_bytes = kernels::kPanelOutputs * tensor::row_bytes(dtype, k);
  const std::int64_t panels = kernels::panel_count(n);
  const auto step =
      static_cast<std::int64_t>(std::max<std::uint64_t>(1, kPieceBytes / panel_bytes));
  for (std::int64_t first = 0; first < panels; first += step) {
    const std::int64_t last = std::min(panels, first + step);
    const std::uint64_t begin = static_cast<std::uint64_t>(first) * panel_bytes;
    const std::uint64_t end = std::min<std::uint64_t>(
        tensor.bytes.size(), static_cast<std::uint64_t>(last) * panel_bytes);
    const auto piece = tensor.bytes.subspan(begin, end - begin);
    hasher.update(piece);
    kernels::repack(dtype, tensor.bytes.data(), n, k, first, last, target);
    file.release_pages(piece);
  }
  return hasher.finish();
}

struct Placer {
  const Places& places;

  [[nodiscard]] const float* vector(const model::TensorRef& ref) const {
    return reinterpret_cast<const float*>(places[ref.index]);
  }
  [[nodiscard]] const float* vector(const std::optional<model::TensorRef>& ref) const {
    return ref ? vector(*ref) : nullptr;
  }
  [[nodiscard]] PackedMatrix matrix(const model::TensorRef& ref) const {
    return {to_dtype(ref.type), places[ref.index], ref.rows, ref.columns};
  }
};

CpuLayer place_layer(const Placer& placer, const model::LayerWeights& source) {
  CpuLayer layer;
  layer.attn_norm = placer.vector(source.attn_norm);
  layer.qkv = {placer.matrix(source.attn_q), placer.matrix(source.attn_k),
               placer.matrix(source.attn_v)};
  layer.q_norm = placer.vector(source.attn_q_norm);
  layer.k_norm = placer.vector(source.attn_k_norm);
  layer.attn_output = placer.matrix(source.attn_output);
  layer.post_attention_norm = placer.vector(source.post_attention_norm);
  layer.ffn_norm = placer.vector(source.ffn_norm);
  layer.gate_up = {placer.matrix(source.ffn_gate), placer.matrix(source.ffn_up)};
  layer.ffn_down = placer.matrix(source.ffn_down);
  layer.post_ffn_norm = placer.vector(source.post_ffn_norm);
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
  std::vector<std::size_t> order = step_order(description);
  Places places(file.tensors().size(), nullptr);
  std::byte* next = weights.arena.data();
  for (const std::size_t index : order) {
    places[index] = next;
    next += arena_bytes(file.tensors()[index]);
  }
  // One thread a tensor, the largest first: an embedding that comes last would keep one busy alone.
  std::ranges::stable_sort(order, std::greater{},
                           [&](std::size_t index) { return file.tensors()[index].bytes.size(); });
  files::ModelDigest digest(file);
  std::atomic<std::uint64_t> done_bytes{0};
  pool.parallel_for(static_cast<std::int64_t>(order.size()), 1,
                    [&](std::int64_t first, std::int64_t last, int thread) {
                      for (std::int64_t i = first; i < last; ++i) {
                        const std::size_t index = order[static_cast<std::size_t>(i)];
                        const files::GgufTensor& tensor = file.tensors()[index];
                        digest.set(index, load_tensor(file, tensor, places[index]));
                        done_bytes += arena_bytes(tensor);
                        if (progress && thread == 0) {
                          progress(done_bytes, total_bytes);
                        }
                      }
                    });
  if (progress) {
    progress(total_bytes, total_bytes);
  }
  const Placer placer{places};
  for (const model::LayerWeights& layer : description.layers) {
    weights.layers.push_back(place_layer(placer, layer));
  }
  weights.output_norm = placer.vector(description.output_norm);
  weights.output = placer.matrix(description.output);
  weights.embedding = placer.matrix(description.token_embedding);
  weights.model_digest = digest.finish();
  return weights;
}

}  // namespace baton::backend
