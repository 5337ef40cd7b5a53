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
  while (pools_[group]->free_blocks() < count && indexes_[group]->evict()) {
  }
  auto blocks = pools_[group]->try_take(count);
  BATON_CHECK(blocks.has_value(), "no room for {} blocks in group {}", count, group);
  return *std::move(blocks);
}

void BatchScheduler::admit() {
  bool has_room = true;
  bool admitted = false;
  while (const auto key = has_room ? scheduler_.next_waiting() : std::nullopt) {
    // A prefill that nobody has room for would be sent away again for a granted one that waits.
    const auto granted = scheduler_.first_granted();
    const bool gives_way =
        granted && *granted != *key && scheduler_.demand(*key).kind == sched::Kind::kHandoff;
    has_room = (!gives_way && admit_one(*key)) || admit_granted(*key);
    admitted = admitted || has_room;
  }
  std::atomic<std::int64_t>& since = stats_.no_room_since_ns;
  if (has_room) {
    since.store(0, std::memory_order_relaxed);
  } else if (admitted || since.load(std::memory_order_relaxed) == 0) {
    since.store(clock_.now().time_since_epoch().count(), std::memory_order_relaxed);
  }
}

bool BatchScheduler::admit_one(const SequenceKey& key) {
  Sequence& sequence = *sequences_.at(key);
  const kv::SequenceHit hit = find_prefix(sequence);
  // The block that would be copied from may be the very one that is needed.
  return try_admit(sequence, hit) ||
         (hit.has_partial() && try_admit(sequence, whole_blocks_of(sequence, hit)));
}

// A prefill whose decode node holds room for it waits for none whose decode node has no room: that
// one may be waiting for what this one will free there (decision 013). What runs here for itself is
// not passed otherwise.
bool BatchScheduler::admit_granted(const SequenceKey& held_up) {
  const auto granted = scheduler_.first_granted();
  if (!granted || (scheduler_.demand(held_up).kind == sched::Kind::kLocal &&
                   !scheduler_.last_ungranted().has_value())) {
    return false;
  }
  while (!admit_one(*granted)) {
    if (!give_back_ungranted()) {
      return false;
    }
  }
  return true;
}

// Frees the blocks of the last prefill that no decode node has room for. One that is done already
// ends, and its owner asks again: with the token that it has, and with what is still cached here.
bool BatchScheduler::give_back_ungranted() {
  while (const auto last = scheduler_.last_ungranted()) {
    if (!take_back(*sequences_.at(*last))) {
      scheduler_.pin(*last);  // granted just now
      continue;
    }
    if (scheduler_.state(*last) == sched::State::kPrefilling) {
      return try_preempt(*last);
    }
    end_with_event(
        *last, EndReason::kError,
        Error{ErrorCode::kOverloaded, "another prefill needed its room, its decode node had none"});
    return true;
  }
  return false;
}

namespace {

// Of a group's hit only the blocks from first_block on.
void skip_blocks(kv::SequenceHit::Group& found, std::uint32_t first_block) {
  const auto wanted = static_cast<std::int32_t>(first_block);
  const std::int32_t skip =
      std::clamp(wanted - found.first_block, 0, static_cast<std::int32_t>(found.blocks.size()));
  found.blocks.erase(found.blocks.begin(), found.blocks.begin() + skip);
  found.first_block += skip;
  if (found.first_block + static_cast<std::int32_t>(found.blocks.size()) < wanted) {
    found.partial = kv::kNoBlock;
    found.partial_tiles = {};
  }
}

}  // namespace

bool BatchScheduler::try_admit(Sequence& sequence, kv::SequenceHit hit) {
  const SequenceKey key = sequence.key();
  const sched::Demand demand = scheduler_.demand(key);
  const std::int32_t cached_tokens = hit.tiles * kv::kTileTokens;
  std::vector<std::uint32_t> room;
  std::vector<std::uint32_t> more;
  std::vector<sched::BlockRange> ranges;  // those that it is to have
  for (std::size_t group = 0; group < pools_.size(); ++group) {
    const kv::BlockPool& pool = *pools_[group];
    ranges.push_back(scheduler_.blocks_at_admission(group, demand, cached_tokens));
    kv::SequenceHit::Group& found = hit.groups[group];
    skip_blocks(found, ranges[group].first);  // a reservation needs its own last window only
    // What is cached can be taken, but not what this sequence itself wants to keep.
    std::uint32_t wanted = 0;
    for (const kv::BlockId block : found.blocks) {
      wanted += pool.references(block) == 0 ? 1 : 0;
    }
    wanted += found.partial != kv::kNoBlock && pool.references(found.partial) == 0 ? 1 : 0;
    room.push_back(pool.free_blocks() + pool.cached_blocks() - wanted);
    more.push_back(ranges[group].count() - static_cast<std::uint32_t>(found.blocks.size()));
  }
  if (!scheduler_.can_admit(room, more)) {
    return false;
  }
  fill_tables(sequence, hit, ranges);
  sequence.indexed_tiles = hit.tiles;
  scheduler_.admit(key, cached_tokens, more);
  if (demand.kind == sched::Kind::kReserve) {
    message::Reserved reserved;
    reserved.key = key;
    reserved.kv_tokens = demand.prefill_tokens;
    reserved.cached_tokens = cached_tokens;
    reserved.blocks = lend(sequence, nullptr);
    sequence.events->push_unbounded(std::move(reserved));
    return true;
  }
  if (sequence.cached_tokens < 0) {
    sequence.cached_tokens =
        std::min(cached_tokens, static_cast<std::int32_t>(sequence.request.prompt.size()) - 1);
  }
  stats_.prompt_tokens_cached.fetch_add(static_cast<std::uint64_t>(cached_tokens),
                                        std::memory_order_relaxed);
  if (demand.kind == sched::Kind::kHandoff) {
    Result<message::LeasedBlocks> blocks = extract_sequence_handoff(key);
    BATON_CHECK(blocks.has_value(), "{} was admitted a moment ago", to_string(key));
    announce_progress(sequence, *std::move(blocks), cached_tokens);
  }
  return true;
}

// What the cache has is held before anything is evicted for the rest.
void BatchScheduler::fill_tables(Sequence& sequence, const kv::SequenceHit& hit,
                                 std::span<const sched::BlockRange> ranges) {
  const sched::Demand& demand = scheduler_.demand(sequence.key());
  const std::int32_t begins_at =
      demand.kind == sched::Kind::kReserve ? demand.prefill_tokens : hit.tiles * kv::kTileTokens;
  sequence.first_tiles.clear();
  std::vector<kv::BlockRef> copied_from(pools_.size());
  for (std::size_t group = 0; group < pools_.size(); ++group) {
    const kv::SequenceHit::Group& found = hit.groups[group];
    std::vector<kv::BlockRef> held;
    for (const kv::BlockId block : found.blocks) {
      held.push_back(pools_[group]->take_kept(block));
    }
    if (found.partial != kv::kNoBlock) {
      copied_from[group] = pools_[group]->take_kept(found.partial);
    }
    kv::BlockTable& table = sequence.tables.emplace_back();
    table.skip(ranges[group].first);
    table.append(std::move(held));
    indexes_[group]->touch(table.ids());
    sequence.first_tiles.push_back(info_.layout.groups[group].tiles_needed(begins_at).begin);
  }
  for (std::size_t group = 0; group < pools_.size(); ++group) {
    kv::BlockTable& table = sequence.tables[group];
    const std::size_t held = table.block_count();
    table.append(take_blocks(group, ranges[group].end - static_cast<std::uint32_t>(held)));
    if (!copied_from[group].empty()) {
      copy_tiles(group, copied_from[group].id(), table.ids()[held],
                 hit.groups[group].partial_tiles);
    }
  }
}

// Each decoding sequence needs a row in this step, a prefilling one room in its window groups.
// First in order first: who takes the last block is who came first, and who gives back is the last.
void BatchScheduler::grow_running() {
  for (const SequenceKey& key : scheduler_.running()) {
    if (scheduler_.state(key) == sched::State::kWaiting) {
      continue;  // gave its blocks back a moment ago
    }
    while (!try_grow(*sequences_.at(key))) {
      const auto last = scheduler_.last_running();
      if (!last.has_value()) {  // each is read by another node, this one too
        if (give_back_ungranted()) {
          continue;
        }
        end_with_event(key, EndReason::kError,
                       Error{ErrorCode::kOverloaded, "no room to go on with the handoff"});
        break;
      }
      if (!try_preempt(*last)) {
        scheduler_.pin(*last);
      } else if (*last == key) {
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

// After a step: what no query to come can see goes, and what the next step needs of it comes back
// at once, before anybody else takes it.
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
// short. False when another node is reading its blocks.
bool BatchScheduler::try_preempt(const SequenceKey& key) {
  Sequence& sequence = *sequences_.at(key);
  if (!take_back(sequence)) {
    return false;
  }
  log::debug("{} gives its blocks back", to_string(key));
  drop_tables(sequence);
  scheduler_.preempt(key);
  stats_.preemptions.fetch_add(1, std::memory_order_relaxed);
  return true;
}

void BatchScheduler::drop_tables(Sequence& sequence) {
  for (std::size_t group = 0; group < sequence.tables.size(); ++group) {
    indexes_[group]->touch(sequence.tables[group].ids());
  }
  sequence.tables.clear();
  sequence.indexed_tiles = 0;
}

}  // namespace baton::engine
