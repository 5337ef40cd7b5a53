// Block tables of sequences that run through a backend without an engine (benchmarks, perplexity):
// each sequence has a part of every pool for itself, and goes round in its part of a window group.
// Thread: one.
#pragma once

#include "baton/backend/backend.h"
#include "baton/kv/layout.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace baton::backend {

class FixedTables {
 public:
  // tokens_each: of a sequence, at most.
  FixedTables(const BackendInfo& info, std::int32_t tokens_each) : info_(info) {
    for (std::size_t group = 0; group < info.layout.groups.size(); ++group) {
      blocks_each_.push_back(static_cast<std::uint32_t>(
          info.layout.blocks_held(group, tokens_each, info.max_step_tokens)));
    }
  }

  // So many sequences have room in every group.
  [[nodiscard]] bool fit(std::int32_t sequences) const {
    for (std::size_t group = 0; group < blocks_each_.size(); ++group) {
      if (std::uint64_t{blocks_each_[group]} * static_cast<std::uint64_t>(sequences) >
          info_.group_blocks[group]) {
        return false;
      }
    }
    return true;
  }

  // [group]: for queries at [start, end), of which there are at most max_step_tokens. Blocks that
  // none of them sees are left out.
  [[nodiscard]] std::vector<std::vector<kv::BlockId>> at(std::int32_t sequence, std::int64_t start,
                                                         std::int64_t end) const {
    std::vector<std::vector<kv::BlockId>> tables;
    for (std::size_t group = 0; group < blocks_each_.size(); ++group) {
      const std::uint32_t first_id = static_cast<std::uint32_t>(sequence) * blocks_each_[group];
      const auto seen_from = static_cast<std::uint32_t>(
          info_.layout.groups[group].first_visible(start) / info_.layout.block_tokens);
      std::vector<kv::BlockId>& table = tables.emplace_back();
      for (std::uint32_t block = 0;
           block < static_cast<std::uint32_t>(info_.layout.blocks_for(end)); ++block) {
        table.push_back(block < seen_from ? kv::kNoBlock
                                          : kv::BlockId{first_id + block % blocks_each_[group]});
      }
    }
    return tables;
  }
  // As a plan wants them; `tables` must outlive the plan.
  static std::vector<std::span<const kv::BlockId>> spans(
      const std::vector<std::vector<kv::BlockId>>& tables) {
    return {tables.begin(), tables.end()};
  }

 private:
  const BackendInfo& info_;
  std::vector<std::uint32_t> blocks_each_;  // [group]
};

}  // namespace baton::backend
