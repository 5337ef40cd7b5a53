// The blocks of one group: which are free, and how often each is referenced. Ids and counts only.
// Thread: the engine's.
#pragma once

#include "baton/kv/layout.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

namespace baton::kv {

class BlockPool;

// One reference to one block: move-only, unpins on destruction. Must not outlive its pool.
class BlockRef {
 public:
  BlockRef() = default;
  BlockRef(BlockRef&& other) noexcept
      : pool_(std::exchange(other.pool_, nullptr)), id_(other.id_) {}
  BlockRef& operator=(BlockRef&& other) noexcept;
  BlockRef(const BlockRef&) = delete;
  BlockRef& operator=(const BlockRef&) = delete;
  ~BlockRef() { reset(); }

  [[nodiscard]] BlockId id() const { return id_; }
  [[nodiscard]] bool empty() const { return pool_ == nullptr; }
  [[nodiscard]] BlockRef share() const;  // one more reference to the same block
  void reset();

 private:
  friend class BlockPool;
  BlockRef(BlockPool* pool, BlockId id) : pool_(pool), id_(id) {}
  BlockPool* pool_ = nullptr;
  BlockId id_;
};

class BlockPool {
 public:
  // on_free runs when a block's last reference goes (debug builds poison it there). May be empty.
  explicit BlockPool(std::uint32_t block_count, std::function<void(BlockId)> on_free = {});
  ~BlockPool();  // checks that no reference is left
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  // count blocks, one reference each, ascending; a single run where one is free, else the lowest
  // ids. Empty when fewer are free: all or nothing.
  std::optional<std::vector<BlockRef>> try_take(std::uint32_t count);

  [[nodiscard]] std::uint32_t total_blocks() const {
    return static_cast<std::uint32_t>(references_.size());
  }
  [[nodiscard]] std::uint32_t free_blocks() const { return free_count_; }
  // Unreferenced blocks kept for their content. The prefix cache (issue 4) will own them.
  [[nodiscard]] std::uint32_t cached_blocks() const { return 0; }
  [[nodiscard]] std::uint32_t owned_blocks() const { return owned_count_; }
  [[nodiscard]] std::uint32_t references(BlockId block) const { return references_[block.value]; }

  // free + cached + owned = all, recounted block by block. Dies otherwise.
  void check_integrity() const;

 private:
  friend class BlockRef;
  void add_reference(BlockId block);
  void drop_reference(BlockId block);
  [[nodiscard]] std::optional<std::uint32_t> find_run(std::uint32_t count) const;

  std::vector<std::uint32_t> references_;  // [block]; 0 = free
  std::uint32_t free_count_ = 0;
  std::uint32_t owned_count_ = 0;
  std::function<void(BlockId)> on_free_;
};

}  // namespace baton::kv
