#include "baton/kv/block_pool.h"

#include "baton/base/check.h"

#include <algorithm>

namespace baton::kv {

BlockRef& BlockRef::operator=(BlockRef&& other) noexcept {
  if (this != &other) {
    reset();
    pool_ = std::exchange(other.pool_, nullptr);
    id_ = other.id_;
  }
  return *this;
}

BlockRef BlockRef::share() const {
  BATON_CHECK(pool_ != nullptr, "share of an empty BlockRef");
  pool_->add_reference(id_);
  return BlockRef(pool_, id_);
}

void BlockRef::reset() {
  if (pool_ != nullptr) {
    std::exchange(pool_, nullptr)->drop_reference(id_);
  }
}

BlockPool::BlockPool(std::uint32_t block_count, std::function<void(BlockId)> on_free)
    : references_(block_count, 0),
      kept_(block_count, false),
      free_count_(block_count),
      on_free_(std::move(on_free)) {}

BlockPool::~BlockPool() {
  BATON_CHECK(owned_count_ == 0, "{} of {} blocks still referenced when their pool ends",
              owned_count_, references_.size());
}

// First fit: with lowest ids preferred the free space gathers at the end, where runs are long. A
// scan of a pool of 100,000 blocks costs about 0.1 ms, once per admission.
std::optional<std::uint32_t> BlockPool::find_run(std::uint32_t count) const {
  std::uint32_t run = 0;
  for (std::uint32_t block = 0; block < references_.size(); ++block) {
    run = is_free(block) ? run + 1 : 0;
    if (run == count) {
      return block + 1 - count;
    }
  }
  return std::nullopt;
}

std::optional<std::vector<BlockRef>> BlockPool::try_take(std::uint32_t count) {
  if (count > free_count_) {
    return std::nullopt;
  }
  std::vector<BlockRef> taken;
  taken.reserve(count);
  std::uint32_t block = count == 0 ? 0 : find_run(count).value_or(0);
  for (; taken.size() < count; ++block) {
    if (is_free(block)) {
      references_[block] = 1;
      taken.push_back(BlockRef(this, BlockId{block}));
    }
  }
  free_count_ -= count;
  owned_count_ += count;
  return taken;
}

void BlockPool::add_reference(BlockId block) {
  BATON_CHECK(references_[block.value] > 0, "reference to free block {}", block.value);
  ++references_[block.value];
}

void BlockPool::drop_reference(BlockId block) {
  BATON_CHECK(references_[block.value] > 0, "block {} freed twice", block.value);
  if (--references_[block.value] > 0) {
    return;
  }
  --owned_count_;
  if (kept_[block.value]) {
    ++cached_count_;
    return;
  }
  ++free_count_;
  if (on_free_) {
    on_free_(block);
  }
}

void BlockPool::keep(BlockId block) {
  BATON_CHECK(references_[block.value] > 0 && !kept_[block.value], "block {} cannot be kept",
              block.value);
  kept_[block.value] = true;
  ++kept_count_;
}

void BlockPool::forget(BlockId block) {
  BATON_CHECK(kept_[block.value], "block {} is not kept", block.value);
  kept_[block.value] = false;
  --kept_count_;
  if (references_[block.value] > 0) {
    return;
  }
  --cached_count_;
  ++free_count_;
  if (on_free_) {
    on_free_(block);
  }
}

BlockRef BlockPool::take_kept(BlockId block) {
  BATON_CHECK(kept_[block.value], "block {} is not kept", block.value);
  if (references_[block.value]++ == 0) {
    --cached_count_;
    ++owned_count_;
  }
  return BlockRef(this, block);
}

void BlockPool::check_integrity() const {
  std::uint32_t free_counted = 0;
  std::uint32_t cached_counted = 0;
  std::uint32_t kept_counted = 0;
  for (std::uint32_t block = 0; block < references_.size(); ++block) {
    free_counted += is_free(block) ? 1 : 0;
    cached_counted += kept_[block] && references_[block] == 0 ? 1 : 0;
    kept_counted += kept_[block] ? 1 : 0;
  }
  BATON_CHECK(free_counted == free_count_, "{} blocks are free, {} are counted as free",
              free_counted, free_count_);
  BATON_CHECK(cached_counted == cached_count_ && kept_counted == kept_count_,
              "{} blocks are cached of {} kept, {} and {} are counted", cached_counted,
              kept_counted, cached_count_, kept_count_);
  BATON_CHECK(free_count_ + cached_count_ + owned_count_ == references_.size(),
              "free {} + cached {} + owned {} != all {}", free_count_, cached_count_, owned_count_,
              references_.size());
}

}  // namespace baton::kv
