// What others can see of the engine, and the proof that no block is lost.
#include "baton/base/check.h"
#include "baton/engine/batch_scheduler.h"

#include <algorithm>
#include <cstddef>

namespace baton::engine {

namespace {

#ifdef BATON_DCHECK_ON
constexpr bool kPoisonFreedBlocks = true;
#else
constexpr bool kPoisonFreedBlocks = false;
#endif
// All ones is a NaN in f32, f16 and bf16, and a NaN scale in q8_0.
constexpr std::byte kPoison{0xFF};

}  // namespace

// A block that is read after it was freed, or before it was written, must not pass for real KV.
void BatchScheduler::poison(std::size_t group, kv::BlockId block) {
  if (kPoisonFreedBlocks) {
    const std::span<std::byte> bytes = backend_.block_bytes(group, block);
    std::fill(bytes.begin(), bytes.end(), kPoison);
  }
}

// The end of every cycle: room that came free is given out, gauges are true before any sleep.
void BatchScheduler::settle() {
  admit();
  if (!journal_.added.empty() || !journal_.removed.empty()) {
    report_prefixes(false);
  }
  publish_gauges();
  if (draining_ && !drained_sent_ && idle()) {
    drained_sent_ = true;
    events_.push_unbounded(message::Drained{});
  }
#ifdef BATON_DCHECK_ON
  if (sequences_.empty()) {
    check_integrity();
  }
#endif
}

void BatchScheduler::publish_gauges() {
  constexpr auto kRelaxed = std::memory_order_relaxed;
  const sched::Counts counts = scheduler_.counts();
  stats_.running.store(counts.prefilling + counts.decoding, kRelaxed);
  stats_.waiting.store(counts.waiting, kRelaxed);
  stats_.handing_off.store(counts.handing_off, kRelaxed);
  stats_.reserved.store(counts.reserved, kRelaxed);
  stats_.leases.store(static_cast<std::uint32_t>(leases_.size()), kRelaxed);
  stats_.draining.store(draining_, kRelaxed);
  stats_.last_turn_ns.store(clock_.now().time_since_epoch().count(), kRelaxed);
  for (std::size_t group = 0; group < pools_.size(); ++group) {
    GroupGauges& gauges = stats_.groups[group];
    gauges.total_blocks.store(pools_[group]->total_blocks(), kRelaxed);
    gauges.free_blocks.store(pools_[group]->free_blocks(), kRelaxed);
    gauges.used_blocks.store(pools_[group]->owned_blocks(), kRelaxed);
    gauges.reserved_blocks.store(scheduler_.reserved_blocks(group), kRelaxed);
    gauges.cached_blocks.store(pools_[group]->cached_blocks(), kRelaxed);
  }
}

void BatchScheduler::check_integrity() const {
  for (std::size_t group = 0; group < pools_.size(); ++group) {
    indexes_[group]->check_integrity();
    const kv::BlockPool& pool = *pools_[group];
    pool.check_integrity();
    std::vector<std::uint32_t> known(pool.total_blocks(), 0);
    for (const auto& [key, sequence] : sequences_) {
      if (sequence->tables.empty()) {
        continue;  // waiting, or its blocks are lent only
      }
      for (const kv::BlockId block : sequence->tables[group].ids()) {
        if (block != kv::kNoBlock) {
          ++known[block.value];
        }
      }
    }
    for (const auto& [id, lease] : leases_) {
      for (const kv::BlockRef& ref : lease.refs[group]) {
        if (!ref.empty()) {
          ++known[ref.id().value];
        }
      }
    }
    for (std::uint32_t block = 0; block < known.size(); ++block) {
      BATON_CHECK(known[block] == pool.references(kv::BlockId{block}),
                  "block {} of group {}: {} references, {} known", block, group,
                  pool.references(kv::BlockId{block}), known[block]);
    }
  }
}

}  // namespace baton::engine
