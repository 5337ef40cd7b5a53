#include "baton/backend/cpu/kv_memory.h"

#include "baton/base/check.h"
#include "baton/kernels/attention.h"

#include <fmt/format.h>

#include <utility>

namespace baton::backend {

tensor::DType to_tensor_dtype(kv::KvDtype dtype) {
  switch (dtype) {
    case kv::KvDtype::kF32:
      return tensor::DType::kF32;
    case kv::KvDtype::kF16:
      return tensor::DType::kF16;
    case kv::KvDtype::kBf16:
      return tensor::DType::kBf16;
    case kv::KvDtype::kQ8_0:
      return tensor::DType::kQ8_0;
  }
  BATON_CHECK(false, "kv dtype {}", static_cast<int>(dtype));
}

Result<kv::KvLayout> make_kv_layout(const model::ModelConfig& config, kv::KvDtype dtype,
                                    std::int32_t block_tokens) {
  if (dtype == kv::KvDtype::kQ8_0 && config.head_dim % kernels::kKvScaleDims != 0) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("a KV cache of q8_0 needs heads of a multiple of {} elements, this "
                            "model's have {}; bf16, f16 and f32 take any",
                            kernels::kKvScaleDims, config.head_dim),
                "kv-dtype");
  }
  if (block_tokens != 32 && block_tokens != 64 && block_tokens != 128 && block_tokens != 256) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("a KV block of {} tokens is not possible; 32, 64, 128 and 256 are",
                            block_tokens),
                "block-tokens");
  }
  if (config.head_dim > kernels::kMaxHeadDim) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("heads of {} elements are not supported; at most {} are",
                            config.head_dim, kernels::kMaxHeadDim));
  }
  kv::KvGroup full;
  full.kv_heads = config.kv_heads;
  full.head_dim = config.head_dim;
  full.dtype = dtype;
  BATON_CHECK(
      full.plane_tile_bytes() == kernels::kv_plane_bytes(to_tensor_dtype(dtype), config.head_dim),
      "the layout's tile differs from the kernels'");
  kv::KvGroup window = full;
  window.kind = kv::GroupKind::kWindow;
  window.window_tokens = config.window_tokens;
  for (std::int32_t layer = 0; layer < config.layers; ++layer) {
    const bool is_window = config.is_window_layer(static_cast<std::size_t>(layer));
    (is_window ? window : full).layers.push_back(layer);
  }
  kv::KvLayout layout;
  for (kv::KvGroup* group : {&full, &window}) {
    if (!group->layers.empty()) {
      layout.groups.push_back(std::move(*group));
    }
  }
  layout.block_tokens = block_tokens;
  return layout;
}

Result<KvMemory> KvMemory::allocate(const kv::KvLayout& layout,
                                    const std::vector<std::uint32_t>& group_blocks) {
  KvMemory memory;
  for (std::size_t index = 0; index < layout.groups.size(); ++index) {
    Group group;
    group.block_bytes = layout.block_bytes(index);
    group.blocks = group_blocks[index];
    BATON_TRY(group.bytes, tensor::Buffer::allocate(group.block_bytes * group.blocks,
                                                    tensor::PageAdvice::kHuge));
    memory.groups_.push_back(std::move(group));
  }
  return memory;
}

std::span<std::byte> KvMemory::block(std::size_t group, kv::BlockId block) {
  Group& of = groups_[group];
  BATON_CHECK(block.value < of.blocks, "block {} of {}", block.value, of.blocks);
  return of.bytes.span().subspan(block.value * of.block_bytes, of.block_bytes);
}

}  // namespace baton::backend
