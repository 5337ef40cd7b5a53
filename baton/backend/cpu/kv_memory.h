// The bytes of the KV cache: one allocation per group, blocks side by side in KvLayout's order. Who
// may use a block is the pool's affair (kv/), what is in a tile the kernels'. Thread: any, on
// blocks that its user owns.
#pragma once

#include "baton/base/result.h"
#include "baton/kv/layout.h"
#include "baton/model/model.h"
#include "baton/tensor/buffer.h"
#include "baton/tensor/dtype.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace baton::backend {

// Errors: kUnsupported (heads that a dtype cannot hold), kInvalidArgument (block_tokens).
Result<kv::KvLayout> make_kv_layout(const model::ModelConfig& config, kv::KvDtype dtype,
                                    std::int32_t block_tokens);
tensor::DType to_tensor_dtype(kv::KvDtype dtype);

class KvMemory {
 public:
  KvMemory() = default;
  // group_blocks: blocks of each group. Errors: kOverloaded when there is no memory.
  static Result<KvMemory> allocate(const kv::KvLayout& layout,
                                   const std::vector<std::uint32_t>& group_blocks);

  [[nodiscard]] std::span<std::byte> block(std::size_t group, kv::BlockId block);
  [[nodiscard]] std::uint32_t blocks(std::size_t group) const { return groups_[group].blocks; }

 private:
  struct Group {
    tensor::Buffer bytes;
    std::size_t block_bytes = 0;
    std::uint32_t blocks = 0;
  };
  std::vector<Group> groups_;
};

}  // namespace baton::backend
