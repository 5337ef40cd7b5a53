// Counters of handoffs, for /metrics. Written by the control thread, read by any. Never fall.
#pragma once

#include <atomic>
#include <cstdint>

namespace baton::handoff {

struct HandoffStats {
  // By outcome, per side that took part: a handoff between two nodes counts once on each.
  std::atomic<std::uint64_t> ok{0};       // sender: acked (or ended on index 0); receiver: adopted
  std::atomic<std::uint64_t> failed{0};   // error, deadline, lost peer, corrupt frame
  std::atomic<std::uint64_t> aborted{0};  // the owner ended it
  std::atomic<std::uint64_t> local{0};    // prefilled and decoded here: no handoff
  std::atomic<std::uint64_t> bytes_sent{0};      // tiles' bytes
  std::atomic<std::uint64_t> bytes_received{0};  // verified or not

  std::atomic<std::uint64_t> protocol_errors{0};  // frames or messages that broke the protocol
  std::atomic<std::uint64_t> stale_messages{0};   // for dead or unknown sequences, dropped

  // Gauges: sequences in a handoff's states now, on either side; sequences held in all.
  std::atomic<std::int64_t> active{0};
  std::atomic<std::int64_t> held{0};
};

}  // namespace baton::handoff
