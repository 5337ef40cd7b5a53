// The blocks of one group: which are free, how often each is referenced, and which are kept for
// their content when nobody references them (the prefix cache). Ids and counts only.
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
  // on_free runs when a block becomes free: its last reference goes, or, for a kept block, its
  // content is forgotten (debug builds poison it there). May be empty.
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
  // Unreferenced blocks kept for their content.
  [[nodiscard]] std::uint32_t cached_blocks() const { return cached_count_; }
  [[nodiscard]] std::uint32_t owned_blocks() const { return owned_count_; }
  [[nodiscard]] std::uint32_t references(BlockId block) const { return references_[block.value]; }

  // A referenced block whose content shall outlive its references: it is not free then, but cached.
  void keep(BlockId block);
  // Ends keep(): an unreferenced block becomes free.
  void forget(BlockId block);
  // A reference to a kept block, referenced or not.
  [[nodiscard]] BlockRef take_kept(BlockId block);
  [[nodiscard]] bool is_kept(BlockId block) const { return kept_[block.value]; }
  [[nodiscard]] std::uint32_t kept_blocks() const { return kept_count_; }  // referenced or not

  // free + cached + owned = all, recounted block by block. Dies otherwise.
  void check_integrity() const;

 private:
  friend class BlockRef;
  void add_reference(BlockId block);
  void drop_reference(BlockId block);
  [[nodiscard]] std::optional<std::uint32_t> find_run(std::uint32_t count) const;

  [[nodiscard]] bool is_free(std::uint32_t block) const {
    return references_[block] == 0 && !kept_[block];
  }

  std::vector<std::uint32_t> references_;  // [block]; 0 = free or cached
  std::vector<bool> kept_;                 // [block]
  std::uint32_t free_count_ = 0;
  std::uint32_t owned_count_ = 0;
  std::uint32_t cached_count_ = 0;
  std::uint32_t kept_count_ = 0;
  std::function<void(BlockId)> on_free_;
};

}  // namespace baton::kv
