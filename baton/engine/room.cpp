// Who has blocks: admission, growth, preemption. sched says who is next and who goes; here blocks
// are taken, shared and given back.
#include "baton/base/check.h"
#include "baton/base/log.h"
#include "baton/engine/batch_scheduler.h"

#include <algorithm>
#include <utility>

namespace baton::engine {

// Of that many blocks, all free or made free by forgetting what is cached. The caller has counted.
std::vector<kv::BlockRef> BatchScheduler::take_blocks(std::size_t group, std::uint32_t count) {
  while (pools_[group]->free_blocks() < count && index_.evict()) {
  }
  auto blocks = pools_[group]->try_take(count);
  BATON_CHECK(blocks.has_value(), "no room for {} blocks in group {}", count, group);
  return *std::move(blocks);
}

void BatchScheduler::admit() {
  while (const auto key = scheduler_.next_waiting()) {
    Sequence& sequence = *sequences_.at(*key);
    kv::PrefixHit hit = find_prefix(sequence);
    bool admitted = try_admit(sequence, hit);
    if (!admitted && hit.partial_tiles > 0) {
      // The block that would be copied from may be the very one that is needed.
      hit.tiles -= std::exchange(hit.partial_tiles, 0);
      hit.partial.clear();
      admitted = try_admit(sequence, hit);
    }
    if (!admitted) {
      return;
    }
  }
}

bool BatchScheduler::try_admit(Sequence& sequence, const kv::PrefixHit& hit) {
  const SequenceKey key = sequence.key();
  const sched::Demand demand = scheduler_.demand(key);
  const auto shared = static_cast<std::uint32_t>(hit.blocks.size());
  const std::int32_t cached_tokens = hit.tiles * kv::kTileTokens;
  std::vector<std::uint32_t> room;
  std::vector<std::uint32_t> more;
  std::vector<sched::BlockRange> ranges;
  for (std::size_t group = 0; group < pools_.size(); ++group) {
    ranges.push_back(scheduler_.blocks_at_admission(group, demand, cached_tokens));
    more.push_back(ranges[group].end - std::max(ranges[group].first, shared));
    const kv::BlockPool& pool = *pools_[group];
    // What is cached can be taken, but not what this sequence itself wants to keep.
    std::uint32_t wanted = 0;
    for (const std::vector<kv::BlockId>& column : hit.blocks) {
      wanted += pool.references(column[group]) == 0 ? 1 : 0;
    }
    wanted += hit.partial_tiles > 0 && pool.references(hit.partial[group]) == 0 ? 1 : 0;
    room.push_back(pool.free_blocks() + pool.cached_blocks() - wanted);
  }
  if (!scheduler_.can_admit(room, more)) {
    return false;
  }
  std::vector<std::vector<kv::BlockRef>> held(
      pools_.size());  // [group], before anything is evicted
  std::vector<kv::BlockRef> copied_from;
  for (std::size_t group = 0; group < pools_.size(); ++group) {
    for (const std::vector<kv::BlockId>& column : hit.blocks) {
      held[group].push_back(pools_[group]->take_kept(column[group]));
    }
    if (hit.partial_tiles > 0) {
      copied_from.push_back(pools_[group]->take_kept(hit.partial[group]));
    }
  }
  for (std::size_t group = 0; group < pools_.size(); ++group) {
    kv::BlockTable& table = sequence.tables.emplace_back();
    if (held[group].empty()) {
      table.skip(ranges[group].first);
    }
    table.append(std::move(held[group]));
    table.append(take_blocks(group, more[group]));
    if (hit.partial_tiles > 0) {
      copy_tiles(group, copied_from[group].id(), table.ids()[shared], hit.partial_tiles);
    }
  }
  sequence.indexed_tiles = hit.tiles;
  if (sequence.cached_tokens < 0) {
    sequence.cached_tokens =
        std::min(cached_tokens, static_cast<std::int32_t>(sequence.request.prompt.size()) - 1);
  }
  stats_.prompt_tokens_cached.fetch_add(static_cast<std::uint64_t>(cached_tokens),
                                        std::memory_order_relaxed);
  index_.touch(sequence.tables[0].ids().first(shared));
  scheduler_.admit(key, cached_tokens);
  if (demand.kind == sched::Kind::kReserve) {
    message::Reserved reserved;
    reserved.key = key;
    reserved.kv_tokens = demand.prefill_tokens;
    reserved.blocks = lend(sequence, demand.prefill_tokens);
    sequence.events->push_unbounded(std::move(reserved));
  }
  return true;
}

// Each decoding sequence needs a row in this step, a prefilling one room in its window groups. First
// in order first: who takes the last block is who came first, and who gives back is the last.
void BatchScheduler::grow_running() {
  for (const SequenceKey& key : scheduler_.running()) {
    if (scheduler_.state(key) == sched::State::kWaiting) {
      continue;  // gave its blocks back a moment ago
    }
    while (!try_grow(*sequences_.at(key))) {
      const auto last = scheduler_.last_running();
      BATON_CHECK(last.has_value(), "{} runs", to_string(key));
      preempt(*last);
      if (*last == key) {
        break;
      }
    }
  }
}

// For its next step.
bool BatchScheduler::try_grow(Sequence& sequence) {
  for (std::size_t group = 0; group < pools_.size(); ++group) {
    kv::BlockTable& table = sequence.tables[group];
    const std::size_t needed = scheduler_.blocks_for_step(group, sequence.key()).end;
    if (table.block_count() >= needed) {
      continue;
    }
    const auto more = static_cast<std::uint32_t>(needed - table.block_count());
    if (pools_[group]->free_blocks() + pools_[group]->cached_blocks() < more) {
      return false;
    }
    table.append(take_blocks(group, more));
  }
  return true;
}

// After a step: what no query to come can see goes, and what the next step needs of it comes back at
// once, before anybody else takes it.
void BatchScheduler::advance_windows(Sequence& sequence) {
  if (!info_.layout.has_windows()) {
    return;
  }
  for (std::size_t group = 0; group < pools_.size(); ++group) {
    sequence.tables[group].release_first(scheduler_.blocks_for_step(group, sequence.key()).first);
  }
  static_cast<void>(try_grow(sequence));  // else grow_running() makes room
}

// What is complete of its KV stays in the index while there is room, so its second prefill is often
// short.
void BatchScheduler::preempt(const SequenceKey& key) {
  const SequenceKey copy = key;
  log::debug("{} gives its blocks back", to_string(copy));
  drop_tables(*sequences_.at(copy));
  scheduler_.preempt(copy);
  stats_.preemptions.fetch_add(1, std::memory_order_relaxed);
}

void BatchScheduler::drop_tables(Sequence& sequence) {
  if (!sequence.tables.empty()) {
    index_.touch(sequence.tables[0].ids());
  }
  sequence.tables.clear();
  sequence.indexed_tiles = 0;
}

}  // namespace baton::engine
