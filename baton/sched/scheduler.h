// Which sequence may run, and what each step computes: pure logic on counts. No model, no I/O, no
// clock ("now" is an argument), no block ids: the caller takes and gives back blocks as told.
//
// Admission takes room for all that a sequence can ever need, so whoever runs always finishes and
// nothing is preempted. (Sharing prefixes and preemption come with issue 4: admit() and finish()
// are their place.) The price: a large limit holds room that it may never use. Thread: the
// engine's.
#pragma once

#include "baton/base/clock.h"
#include "baton/base/ids.h"
#include "baton/base/result.h"
#include "baton/kv/layout.h"
#include "baton/sched/cost_model.h"

#include <compare>
#include <cstdint>
#include <map>
#include <span>
#include <unordered_map>
#include <vector>

namespace baton::sched {

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

  // Blocks that `tokens` rows take in that group. Window groups hold whole sequences until issue 4.
  [[nodiscard]] std::uint32_t blocks_needed(std::size_t group, std::int64_t tokens) const;
  // The most rows that one sequence can have when it is alone.
  [[nodiscard]] std::int64_t pool_tokens() const;

  // Checks without changing anything. Errors: kContextTooLong (no pool of ours can ever hold it;
  // says need and size), kOverloaded (waiting queue full; with a retry hint).
  [[nodiscard]] Status can_add(const Demand& demand) const;
  // Must have passed can_add; the key must be new.
  void add(const SequenceKey& key, const Demand& demand, TimePoint now);

  // Moves sequences from waiting to prefilling or reserved, by priority, then order of arrival,
  // while there is room. free_blocks: [group]. The caller takes blocks_needed(group, room_tokens)
  // of each group for each key returned.
  std::vector<SequenceKey> admit(std::span<const std::uint32_t> free_blocks);
  // Those that have waited past the queue deadline; the caller finishes them.
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
  // Order of admission: priority, then arrival.
  struct Place {
    std::int32_t priority = 0;
    std::uint64_t arrival = 0;
    auto operator<=>(const Place&) const = default;
  };
  struct Entry {
    Demand demand;
    State state = State::kWaiting;
    std::int32_t computed_tokens = 0;  // rows in the KV cache
    Place place;
    TimePoint arrived;
  };

  [[nodiscard]] bool fits(const Demand& demand, std::span<const std::uint32_t> free_blocks) const;
  [[nodiscard]] bool reservations_allow(const Demand& demand) const;
  void add_reserved_blocks(const Demand& demand);
  void drop_reserved_blocks(const Demand& demand);
  void plan_prefill(Batch& batch) const;

  SchedulerConfig config_;
  CostModel cost_;
  std::unordered_map<SequenceKey, Entry> entries_;
  std::map<Place, SequenceKey> waiting_;
  std::map<Place, SequenceKey> prefilling_;  // oldest first
  std::map<Place, SequenceKey> decoding_;
  std::vector<std::uint32_t> reserved_blocks_;  // [group] of reservations that wait for their KV
  std::uint32_t reserved_ = 0;
  std::uint32_t handing_off_ = 0;
  std::uint64_t next_arrival_ = 0;
};

}  // namespace baton::sched
