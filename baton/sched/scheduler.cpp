#include "baton/sched/scheduler.h"

#include "baton/base/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

namespace baton::sched {

namespace {

// What a client is told to wait when the queue is full: some sequences end each second.
constexpr std::int64_t kRetryHintMs = 1000;

// One free block for each so many running sequences that may still grow: with none, a newcomer,
// last in order, would be preempted at once; with one each, a pool of large blocks would stand half
// empty. They grow at different times.
constexpr std::uint32_t kGrowersPerFreeBlock = 4;

std::int64_t microseconds(Duration duration) {
  return std::chrono::duration_cast<std::chrono::microseconds>(duration).count();
}

// The first multiple of a tile after `position`.
std::int32_t next_tile_border(std::int32_t position) {
  return (position / kv::kTileTokens + 1) * kv::kTileTokens;
}

}  // namespace

Scheduler::Scheduler(SchedulerConfig config)
    : config_(std::move(config)), reserved_blocks_(config_.group_blocks.size(), 0) {
  BATON_CHECK(config_.group_blocks.size() == config_.layout.groups.size(), "{} pools, {} groups",
              config_.group_blocks.size(), config_.layout.groups.size());
  BATON_CHECK(config_.max_num_seqs >= 1 &&
                  config_.max_step_tokens >= config_.max_num_seqs + kv::kTileTokens,
              "a step of {} rows cannot hold {} sequences and a tile", config_.max_step_tokens,
              config_.max_num_seqs);
}

std::uint32_t Scheduler::blocks_needed(std::size_t group, std::int64_t tokens) const {
  return static_cast<std::uint32_t>(
      config_.layout.blocks_held(group, tokens, config_.max_step_tokens));
}

// A window group that holds one window and chunk has room for a sequence of any length.
std::int64_t Scheduler::pool_tokens() const {
  constexpr std::int64_t kAnyLength = std::numeric_limits<std::int32_t>::max();
  std::int64_t tokens = kAnyLength;
  for (std::size_t group = 0; group < config_.group_blocks.size(); ++group) {
    const std::uint32_t blocks = config_.group_blocks[group];
    if (blocks < blocks_needed(group, kAnyLength)) {
      tokens = std::min(tokens, std::int64_t{blocks} * config_.layout.block_tokens);
    }
  }
  return tokens;
}

// Blocks with the rows before `rows` that a query at first_query or later sees.
BlockRange Scheduler::blocks_of(std::size_t group, std::int64_t first_query,
                                std::int64_t rows) const {
  const std::int64_t first = config_.layout.groups[group].first_visible(first_query);
  return {static_cast<std::uint32_t>(first / config_.layout.block_tokens),
          static_cast<std::uint32_t>(config_.layout.blocks_for(rows))};
}

BlockRange Scheduler::blocks_at_admission(std::size_t group, const Demand& demand,
                                          std::int32_t cached_tokens) const {
  const std::int32_t rows = admission_tokens(demand);
  if (demand.kind == Kind::kReserve) {
    return blocks_of(group, demand.prefill_tokens, rows);
  }
  BlockRange range = blocks_of(group, cached_tokens, rows);
  range.end = std::min(range.end, range.first + blocks_needed(group, rows));
  return range;
}

BlockRange Scheduler::blocks_for_step(std::size_t group, const SequenceKey& key) const {
  const Entry& entry = entries_.at(key);
  return entry.state == State::kDecoding
             ? blocks_of(group, entry.computed_tokens, entry.computed_tokens + 1)
             : blocks_at_admission(group, entry.demand, entry.computed_tokens);
}

Status Scheduler::can_add(const Demand& demand) const {
  for (std::size_t group = 0; group < config_.group_blocks.size(); ++group) {
    const std::uint32_t needed = blocks_needed(group, demand.room_tokens);
    const std::uint32_t blocks = config_.group_blocks[group];
    if (needed > blocks) {
      return fail(
          ErrorCode::kContextTooLong,
          fmt::format("prompt and limit need {} KV cache tokens ({} blocks of {}), the pool "
                      "holds {} ({} blocks)",
                      demand.room_tokens, needed, config_.layout.block_tokens,
                      static_cast<std::int64_t>(blocks) * config_.layout.block_tokens, blocks),
          "max_tokens");
    }
  }
  if (waiting_.size() >= static_cast<std::size_t>(config_.max_waiting)) {
    return fail(Error{ErrorCode::kOverloaded,
                      fmt::format("{} requests wait already: try again later", waiting_.size()),
                      {},
                      kRetryHintMs});
  }
  return {};
}

void Scheduler::add(const SequenceKey& key, const Demand& demand, TimePoint now) {
  Entry entry;
  entry.demand = demand;
  entry.place = {microseconds(now.time_since_epoch()) + demand.priority * microseconds(kAgeing),
                 next_arrival_++};
  entry.arrived = now;
  waiting_.emplace(entry.place, key);
  const bool is_new = entries_.emplace(key, entry).second;
  BATON_CHECK(is_new, "sequence {} added twice", to_string(key));
}

std::int32_t Scheduler::admission_tokens(const Demand& demand) {
  return std::min(demand.prefill_tokens + 1, demand.room_tokens);
}

// Rows that a running sequence has room for, at least.
std::int32_t Scheduler::held_tokens(const Entry& entry) {
  return std::min(std::max(entry.demand.prefill_tokens, entry.computed_tokens) + 1,
                  entry.demand.room_tokens);
}

std::uint32_t Scheduler::headroom(std::size_t group) const {
  std::uint32_t growers = 0;
  for (const auto* running : {&prefilling_, &decoding_}) {
    for (const auto& [place, key] : *running) {
      const Entry& entry = entries_.at(key);
      growers +=
          blocks_needed(group, entry.demand.room_tokens) > blocks_needed(group, held_tokens(entry))
              ? 1
              : 0;
    }
  }
  return (growers + kGrowersPerFreeBlock - 1) / kGrowersPerFreeBlock;
}

bool Scheduler::can_admit(std::span<const std::uint32_t> free_blocks,
                          std::span<const std::uint32_t> new_blocks) const {
  for (std::size_t group = 0; group < free_blocks.size(); ++group) {
    if (new_blocks[group] + headroom(group) > free_blocks[group]) {
      return false;
    }
  }
  return true;
}

// Reservations that wait for their KV hold at most half of the pool, so that a prefill node that is
// slow, or many of them, cannot stop this node's own work. One alone may hold more: else a long one
// would wait for ever.
bool Scheduler::reservations_allow(const Demand& demand) const {
  if (reserved_ == 0) {
    return true;
  }
  for (std::size_t group = 0; group < reserved_blocks_.size(); ++group) {
    if (reserved_blocks_[group] + blocks_at_admission(group, demand, 0).count() >
        config_.group_blocks[group] / 2) {
      return false;
    }
  }
  return true;
}

void Scheduler::add_reserved_blocks(const Entry& entry) {
  ++reserved_;
  for (std::size_t group = 0; group < reserved_blocks_.size(); ++group) {
    reserved_blocks_[group] += entry.reserved_blocks[group];
  }
}

void Scheduler::drop_reserved_blocks(const Entry& entry) {
  --reserved_;
  for (std::size_t group = 0; group < reserved_blocks_.size(); ++group) {
    reserved_blocks_[group] -= entry.reserved_blocks[group];
  }
}

std::optional<SequenceKey> Scheduler::next_waiting() const {
  const std::size_t seats = prefilling_.size() + decoding_.size() + reserved_;
  if (seats >= static_cast<std::size_t>(config_.max_num_seqs)) {
    return std::nullopt;
  }
  bool reservations_held_back = false;
  for (const auto& [place, key] : waiting_) {
    const Demand& demand = entries_.at(key).demand;
    if (demand.kind != Kind::kReserve) {
      return key;
    }
    reservations_held_back = reservations_held_back || !reservations_allow(demand);
    if (!reservations_held_back) {
      return key;
    }
  }
  return std::nullopt;
}

void Scheduler::admit(const SequenceKey& key, std::int32_t cached_tokens,
                      std::vector<std::uint32_t> new_blocks) {
  Entry& entry = entries_.at(key);
  BATON_CHECK(entry.state == State::kWaiting && cached_tokens < entry.demand.prefill_tokens,
              "{} admitted with {} of {} tokens", to_string(key), cached_tokens,
              entry.demand.prefill_tokens);
  waiting_.erase(entry.place);
  if (entry.demand.kind == Kind::kReserve) {
    entry.state = State::kReserved;
    entry.reserved_blocks = std::move(new_blocks);
    BATON_CHECK(entry.reserved_blocks.size() == reserved_blocks_.size(), "{} of {} groups",
                entry.reserved_blocks.size(), reserved_blocks_.size());
    add_reserved_blocks(entry);
  } else {
    entry.state = State::kPrefilling;
    entry.computed_tokens = cached_tokens;
    prefilling_.emplace(entry.place, key);
  }
}

std::vector<SequenceKey> Scheduler::running() const {
  std::vector<SequenceKey> keys;
  keys.reserve(decoding_.size() + prefilling_.size());
  for (const auto* running : {&decoding_, &prefilling_}) {
    for (const auto& [place, key] : *running) {
      keys.push_back(key);
    }
  }
  return keys;
}

std::optional<SequenceKey> Scheduler::last_running() const {
  const auto last =
      std::find_if(prefilling_.rbegin(), prefilling_.rend(),
                   [this](const auto& each) { return !entries_.at(each.second).pinned; });
  if (last == prefilling_.rend()) {
    return decoding_.empty() ? std::nullopt : std::optional(decoding_.rbegin()->second);
  }
  const bool prefilling_is_last = decoding_.empty() || last->first > decoding_.rbegin()->first;
  return prefilling_is_last ? last->second : decoding_.rbegin()->second;
}

void Scheduler::pin(const SequenceKey& key) {
  Entry& entry = entries_.at(key);
  BATON_CHECK(entry.state == State::kPrefilling || entry.state == State::kHandingOff,
              "{} has nothing to be read", to_string(key));
  entry.pinned = true;
}

void Scheduler::grant(const SequenceKey& key) {
  Entry& entry = entries_.at(key);
  BATON_CHECK(entry.demand.kind == Kind::kHandoff, "{} stays here", to_string(key));
  entry.granted = true;
}

std::optional<SequenceKey> Scheduler::first_granted() const {
  for (const auto& [place, key] : waiting_) {
    if (entries_.at(key).granted) {
      return key;
    }
  }
  return std::nullopt;
}

std::optional<SequenceKey> Scheduler::last_ungranted() const {
  std::optional<SequenceKey> last;
  Place place;
  for (const auto& [key, entry] : entries_) {
    const bool holds = entry.state == State::kPrefilling || entry.state == State::kHandingOff;
    if (holds && entry.demand.kind == Kind::kHandoff && !entry.granted && !entry.pinned &&
        (!last || place < entry.place)) {
      last = key;
      place = entry.place;
    }
  }
  return last;
}

void Scheduler::preempt(const SequenceKey& key) {
  Entry& entry = entries_.at(key);
  BATON_CHECK(entry.state == State::kPrefilling || entry.state == State::kDecoding,
              "{} does not run", to_string(key));
  if (entry.state == State::kDecoding) {
    decoding_.erase(entry.place);
    entry.demand.prefill_tokens = entry.computed_tokens + 1;  // and the token drawn last
  } else {
    prefilling_.erase(entry.place);
  }
  if (entry.demand.kind == Kind::kReserve) {
    entry.demand.kind = Kind::kLocal;  // what came by handoff is computed here next time
  }
  entry.computed_tokens = 0;
  entry.state = State::kWaiting;
  entry.preempted = true;
  waiting_.emplace(entry.place, key);
}

std::vector<SequenceKey> Scheduler::expired(TimePoint now) const {
  std::vector<SequenceKey> keys;
  for (const auto& [place, key] : waiting_) {
    const Entry& entry = entries_.at(key);
    if (!entry.preempted && now - entry.arrived >= config_.queue_deadline) {
      keys.push_back(key);
    }
  }
  return keys;
}

TimePoint Scheduler::next_deadline() const {
  TimePoint next = TimePoint::max();
  for (const auto& [place, key] : waiting_) {
    const Entry& entry = entries_.at(key);
    if (!entry.preempted) {
      next = std::min(next, entry.arrived + config_.queue_deadline);
    }
  }
  return next;
}

Batch Scheduler::plan() const {
  Batch batch;
  for (const auto& [place, key] : decoding_) {
    batch.items.push_back({key, entries_.at(key).computed_tokens, 1, true, true});
    ++batch.decode_rows;
  }
  plan_prefill(batch);
  return batch;
}

void Scheduler::plan_prefill(Batch& batch) const {
  const bool has_decodes = batch.decode_rows > 0;
  Duration available =
      cost_.step_budget(config_.max_step, has_decodes) - cost_.decode_cost(has_decodes);
  for (const auto& [place, key] : prefilling_) {
    const Entry& entry = entries_.at(key);
    const std::int32_t start = entry.computed_tokens;
    const std::int32_t end = entry.demand.prefill_tokens;
    const std::int32_t rows_left = config_.max_step_tokens - batch.decode_rows - batch.prefill_rows;
    std::int32_t rows = std::min(cost_.rows_within(available, start), rows_left);
    if (start + rows < end) {
      rows = (start + rows) / kv::kTileTokens * kv::kTileTokens - start;
    } else {
      rows = end - start;
    }
    if (rows <= 0 && batch.prefill_rows == 0) {
      rows = std::min(end, next_tile_border(start)) - start;  // the oldest never starves
    }
    if (rows <= 0) {
      break;
    }
    batch.items.push_back({key, start, rows, false, start + rows == end});
    batch.prefill_rows += rows;
    CostModel::PrefillWork work;
    work.add(start, rows);
    available -= cost_.prefill_cost(work);
  }
}

void Scheduler::step_done(const Batch& batch, Duration elapsed) {
  CostModel::PrefillWork work;
  for (const BatchItem& item : batch.items) {
    if (!item.decode) {
      work.add(item.start, item.tokens);
    }
    const auto found = entries_.find(item.key);
    if (found == entries_.end()) {
      continue;
    }
    Entry& entry = found->second;
    entry.computed_tokens += item.tokens;
    if (entry.state == State::kPrefilling && entry.computed_tokens == entry.demand.prefill_tokens) {
      prefilling_.erase(entry.place);
      if (entry.demand.kind == Kind::kHandoff) {
        entry.state = State::kHandingOff;
        ++handing_off_;
      } else {
        entry.state = State::kDecoding;
        decoding_.emplace(entry.place, item.key);
      }
    }
  }
  cost_.observe(batch.decode_rows, work, elapsed);
}

void Scheduler::adopt(const SequenceKey& key) {
  Entry& entry = entries_.at(key);
  BATON_CHECK(entry.state == State::kReserved, "{} is not reserved", to_string(key));
  drop_reserved_blocks(entry);
  entry.computed_tokens = entry.demand.prefill_tokens;
  entry.state = State::kDecoding;
  decoding_.emplace(entry.place, key);
}

void Scheduler::finish(const SequenceKey& key) {
  const auto found = entries_.find(key);
  BATON_CHECK(found != entries_.end(), "{} is unknown", to_string(key));
  const Entry& entry = found->second;
  switch (entry.state) {
    case State::kWaiting:
      waiting_.erase(entry.place);
      break;
    case State::kPrefilling:
      prefilling_.erase(entry.place);
      break;
    case State::kHandingOff:
      --handing_off_;
      break;
    case State::kReserved:
      drop_reserved_blocks(entry);
      break;
    case State::kDecoding:
      decoding_.erase(entry.place);
      break;
  }
  entries_.erase(found);
}

Counts Scheduler::counts() const {
  Counts counts;
  counts.waiting = static_cast<std::uint32_t>(waiting_.size());
  counts.prefilling = static_cast<std::uint32_t>(prefilling_.size());
  counts.handing_off = handing_off_;
  counts.reserved = reserved_;
  counts.decoding = static_cast<std::uint32_t>(decoding_.size());
  return counts;
}

}  // namespace baton::sched
