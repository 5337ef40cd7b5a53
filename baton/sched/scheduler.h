// Which sequence may run, and what each step computes: pure logic on counts. No model, no I/O, no
// clock ("now" is an argument), no block ids: the caller takes and gives back blocks as told.
//
// Admission takes room for what a sequence holds at first (prompt + emitted, and the next row);
// each grows by a block when it needs one. When the pool is full, the last in order gives its
// blocks back and waits: it is computed again later, with the same bits. Since the first in order
// is never preempted for another, and its whole need was checked at the door, whoever runs
// finishes.
//
// The order: arrival, shifted by priority. One step of priority is worth kAgeing of waiting, so a
// request of low priority passes fresher ones of high priority after a time, and none starves.
// Thread: the engine's.
#pragma once

#include "baton/base/clock.h"
#include "baton/base/ids.h"
#include "baton/base/result.h"
#include "baton/kv/layout.h"
#include "baton/sched/cost_model.h"

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

namespace baton::sched {

// What one step of priority is worth: about the length of an answer, so that an answer's worth of
// waiting lifts a request by one step.
inline constexpr Duration kAgeing = std::chrono::seconds(10);

enum class Kind : std::uint8_t {
  kLocal,    // prefill and decode here
  kHandoff,  // prefill here, then lend the blocks
  kReserve,  // prefilled elsewhere
};

enum class State : std::uint8_t { kWaiting, kPrefilling, kHandingOff, kReserved, kDecoding };

struct SchedulerConfig {
  kv::KvLayout layout;
  std::vector<std::uint32_t> group_blocks;  // pool size of each group
  std::int32_t max_num_seqs = 64;           // prefilling + decoding + reserved
  std::int32_t max_step_tokens = 0;         // rows of one step; >= max_num_seqs + one tile
  Duration max_step{};                      // --max-step-ms
  std::int32_t max_waiting = 1024;
  Duration queue_deadline{};
};

// What a sequence asks for.
struct Demand {
  Kind kind = Kind::kLocal;
  std::int32_t prefill_tokens = 0;  // prompt + emitted: rows to compute, or to arrive
  std::int32_t room_tokens = 0;     // KV rows that it can ever have; >= prefill_tokens
  std::int32_t priority = 0;        // lower first
};

// Of a sequence's table in one group: the blocks [first, end) that it holds; those before are gone.
struct BlockRange {
  std::uint32_t first = 0;
  std::uint32_t end = 0;
  [[nodiscard]] std::uint32_t count() const { return end - first; }
};

struct BatchItem {
  SequenceKey key;
  std::int32_t start = 0;   // first position
  std::int32_t tokens = 0;  // rows
  bool decode = false;
  bool samples = false;  // the last row's logits are drawn from
};
struct Batch {
  std::vector<BatchItem> items;  // decode rows first
  std::int32_t decode_rows = 0;
  std::int32_t prefill_rows = 0;
};

struct Counts {
  std::uint32_t waiting = 0;
  std::uint32_t prefilling = 0;
  std::uint32_t handing_off = 0;
  std::uint32_t reserved = 0;
  std::uint32_t decoding = 0;
};

class Scheduler {
 public:
  explicit Scheduler(SchedulerConfig config);

  // The most blocks of that group that a sequence of `tokens` rows holds at once.
  [[nodiscard]] std::uint32_t blocks_needed(std::size_t group, std::int64_t tokens) const;
  // What it takes when it is admitted with cached_tokens rows there already: room for all its rows
  // in full groups; in window groups all that it will hold at once, so that it moves on without
  // asking for more; of a reservation, for what will arrive.
  [[nodiscard]] BlockRange blocks_at_admission(std::size_t group, const Demand& demand,
                                               std::int32_t cached_tokens) const;
  // What a sequence that prefills or decodes needs for its next step.
  [[nodiscard]] BlockRange blocks_for_step(std::size_t group, const SequenceKey& key) const;
  // The most rows that one sequence can have when it is alone.
  [[nodiscard]] std::int64_t pool_tokens() const;

  // Checks without changing anything. Errors: kContextTooLong (no pool of ours can ever hold it;
  // says need and size), kOverloaded (waiting queue full; with a retry hint).
  [[nodiscard]] Status can_add(const Demand& demand) const;
  // Must have passed can_add; the key must be new.
  void add(const SequenceKey& key, const Demand& demand, TimePoint now);

  // The next sequence to be admitted: the first in order, if a seat is free. A reservation that
  // would make all of them hold more than half of the pool lets others pass that are none. What
  // does not fit otherwise holds back all behind it, or a large sequence would starve.
  [[nodiscard]] std::optional<SequenceKey> next_waiting() const;
  // Rows that need room at admission.
  [[nodiscard]] static std::int32_t admission_tokens(const Demand& demand);
  // [group]: free_blocks can be taken, new_blocks would be. Some room is left for those that run,
  // so that a newcomer is not sent away at once.
  [[nodiscard]] bool can_admit(std::span<const std::uint32_t> free_blocks,
                               std::span<const std::uint32_t> new_blocks) const;
  // waiting -> prefilling (from row cached_tokens < prefill_tokens) or reserved. The caller has
  // taken new_blocks ([group], of blocks_at_admission; needed for a reservation), and shares the
  // others.
  void admit(const SequenceKey& key, std::int32_t cached_tokens,
             std::vector<std::uint32_t> new_blocks = {});

  // The decoding ones, first in order first, then the prefilling ones.
  [[nodiscard]] std::vector<SequenceKey> running() const;
  // The last in order of those that run and are not pinned: who gives blocks back when there are
  // none.
  [[nodiscard]] std::optional<SequenceKey> last_running() const;
  // A prefill for another node whose blocks that node reads: it cannot give them back any more.
  void pin(const SequenceKey& key);
  // A prefill for another node, which has room for it now.
  void grant(const SequenceKey& key);
  // The first in order of the waiting ones that were granted.
  [[nodiscard]] std::optional<SequenceKey> first_granted() const;
  // The last in order of the prefills for other nodes, under way or done, that hold blocks and were
  // neither granted nor pinned: nobody waits for them yet.
  [[nodiscard]] std::optional<SequenceKey> last_ungranted() const;
  // prefilling or decoding -> waiting, in its old place; it never expires. The caller has given its
  // blocks back.
  void preempt(const SequenceKey& key);

  // Those that have waited past the queue deadline and never ran; the caller finishes them.
  [[nodiscard]] std::vector<SequenceKey> expired(TimePoint now) const;
  // When the next one expires. TimePoint::max() if none waits.
  [[nodiscard]] TimePoint next_deadline() const;

  // The next step. Empty when nothing can run.
  [[nodiscard]] Batch plan() const;
  // The step ran. A prefill that is complete moves on to decoding or handing_off.
  void step_done(const Batch& batch, Duration elapsed);
  // reserved -> decoding; its KV has prefill_tokens rows.
  void adopt(const SequenceKey& key);
  // Forgets a sequence in any state; the caller has given its blocks back.
  void finish(const SequenceKey& key);

  [[nodiscard]] bool contains(const SequenceKey& key) const { return entries_.contains(key); }
  [[nodiscard]] State state(const SequenceKey& key) const { return entries_.at(key).state; }
  [[nodiscard]] const Demand& demand(const SequenceKey& key) const {
    return entries_.at(key).demand;
  }
  // Rows of the sequence in the KV cache; 0 while it waits or is reserved.
  [[nodiscard]] std::int32_t computed_tokens(const SequenceKey& key) const {
    return entries_.at(key).computed_tokens;
  }
  [[nodiscard]] std::uint32_t reserved_blocks(std::size_t group) const {
    return reserved_blocks_[group];
  }
  [[nodiscard]] Counts counts() const;
  [[nodiscard]] bool has_work() const { return !prefilling_.empty() || !decoding_.empty(); }
  [[nodiscard]] const CostModel& cost_model() const { return cost_; }

 private:
  struct Place {
    std::int64_t rank_us = 0;   // arrival + priority * kAgeing
    std::uint64_t arrival = 0;  // in order of arrival
    auto operator<=>(const Place&) const = default;
  };
  struct Entry {
    Demand demand;
    State state = State::kWaiting;
    std::int32_t computed_tokens = 0;            // rows in the KV cache
    std::vector<std::uint32_t> reserved_blocks;  // [group] taken for a reservation
    Place place;
    TimePoint arrived;
    bool preempted = false;
    bool pinned = false;
    bool granted = false;
  };

  [[nodiscard]] BlockRange blocks_of(std::size_t group, std::int64_t first_query,
                                     std::int64_t rows) const;
  [[nodiscard]] static std::int32_t held_tokens(const Entry& entry);
  [[nodiscard]] std::uint32_t headroom(std::size_t group) const;
  [[nodiscard]] bool reservations_allow(const Demand& demand) const;
  void add_reserved_blocks(const Entry& entry);
  void drop_reserved_blocks(const Entry& entry);
  void plan_prefill(Batch& batch) const;

  SchedulerConfig config_;
  CostModel cost_;
  std::unordered_map<SequenceKey, Entry> entries_;
  std::map<Place, SequenceKey> waiting_;
  std::map<Place, SequenceKey> prefilling_;
  std::map<Place, SequenceKey> decoding_;
  std::vector<std::uint32_t> reserved_blocks_;  // [group] of reservations that wait for their KV
  std::uint32_t reserved_ = 0;
  std::uint32_t handing_off_ = 0;
  std::uint64_t next_arrival_ = 0;
};

}  // namespace baton::sched
