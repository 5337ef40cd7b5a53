// The engine's counters and gauges, written by the engine thread, read by any (metrics,
// heartbeats). Gauges are renewed at each step's end and also before the engine goes to sleep, so
// that they are true when everyone has left. Each value is exact; a reader may see two of them a
// moment apart.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace baton::engine {

// Every accepted sequence ends in exactly one of these: their sum is `accepted` when idle.
enum class EndReason : std::uint8_t {
  kStop,       // end token or stop id
  kLength,     // token limit
  kAborted,    // Abort, cancel flag or stop()
  kError,      // the backend failed it
  kHandedOff,  // prefilled here, its KV was taken (lease released)
  kReleased,   // a reservation whose lease was released before Adopt
  kExpired,    // waited past the queue deadline: Refused later
};
inline constexpr std::size_t kEndReasons = 7;

struct GroupGauges {
  std::atomic<std::uint32_t> total_blocks{0};
  std::atomic<std::uint32_t> free_blocks{0};
  std::atomic<std::uint32_t> used_blocks{0};  // owned by running sequences or leased
  std::atomic<std::uint32_t> reserved_blocks{
      0};  // part of used: reservations that wait for their KV
  std::atomic<std::uint32_t> cached_blocks{
      0};  // unreferenced but kept: can be taken like free ones
};

struct EngineStats {
  explicit EngineStats(std::size_t count)
      : groups(std::make_unique<GroupGauges[]>(count)), group_count(count) {}

  // Counters: never fall.
  std::atomic<std::uint64_t> step_count{0};
  std::atomic<std::uint64_t> turn_count{0};  // the loop turns at least once a second, or is stuck
  std::atomic<std::uint64_t> prompt_tokens_computed{0};  // rows run in prefill chunks
  std::atomic<std::uint64_t> prompt_tokens_cached{0};    // rows not run: the prefix cache had them
  std::atomic<std::uint64_t> preemptions{0};  // sequences that gave their blocks back for a while
  std::atomic<std::uint64_t> tokens_generated{0};  // drawn here; adopted ones are not
  std::atomic<std::uint64_t> accepted{0};
  std::atomic<std::uint64_t> refused{0};  // by a guard or a full queue
  std::array<std::atomic<std::uint64_t>, kEndReasons> ended{};

  // Gauges.
  std::atomic<std::uint32_t> running{0};      // prefilling, decoding
  std::atomic<std::uint32_t> waiting{0};      // for room, both kinds
  std::atomic<std::uint32_t> handing_off{0};  // prefilled, lease out
  std::atomic<std::uint32_t> reserved{0};     // room given, KV not here yet
  std::atomic<std::uint32_t> leases{0};
  std::atomic<bool> draining{false};
  // Clock::now() of the loop's last turn; the loop wakes each second, so an old one means stuck.
  std::atomic<std::int64_t> last_turn_ns{0};
  // Clock::now() since which the first in order finds no block and nobody was admitted; 0: not so.
  std::atomic<std::int64_t> no_room_since_ns{0};
  const std::unique_ptr<GroupGauges[]> groups;  // [group_count]
  const std::size_t group_count;

  [[nodiscard]] std::uint64_t ended_as(EndReason reason) const {
    return ended[static_cast<std::size_t>(reason)].load(std::memory_order_relaxed);
  }
};

}  // namespace baton::engine
