// Counters of handoffs and of the transport, for /metrics. Those of handoffs are written by the
// control thread; read by any. They never fall.
#pragma once

#include "baton/base/clock.h"

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace baton::handoff {

// How often something took how long. Thread: one writes, any reads.
struct DurationHistogram {
  // Upper bounds in seconds; from a small prompt on loopback to the longest deadline of a prefill.
  static constexpr std::array<double, 16> kBounds = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05,
                                                     0.1,   0.25,   0.5,   1.0,  2.5,   5.0,
                                                     10.0,  30.0,   60.0,  600.0};

  void observe(Duration duration) {
    const double seconds = std::chrono::duration<double>(duration).count();
    std::size_t bucket = 0;
    while (bucket < kBounds.size() && seconds > kBounds[bucket]) {
      ++bucket;
    }
    ++counts[bucket];
    sum_us += static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::microseconds>(duration).count());
  }

  // [bucket], not cumulative; the last one is above all bounds.
  std::array<std::atomic<std::uint64_t>, kBounds.size() + 1> counts{};
  std::atomic<std::uint64_t> sum_us{0};
};

// What moved KV. Thread: any writes, any reads.
struct TransportStats {
  struct Way {
    std::atomic<std::uint64_t> bytes_sent{0};      // tiles' bytes, of whole frames
    std::atomic<std::uint64_t> bytes_received{0};  // likewise, wanted or not
    std::atomic<std::int64_t> peers{0};            // engine nodes with which it was agreed
  };
  Way tcp;
  Way fabric;
  std::atomic<std::uint64_t> lanes_failed{0};  // connections that went back to TCP
};

struct HandoffStats {
  // By outcome, per side that took part: a handoff between two nodes counts once on each.
  std::atomic<std::uint64_t> ok{0};       // sender: acked (or ended on index 0); receiver: adopted
  std::atomic<std::uint64_t> failed{0};   // error, deadline, lost peer, corrupt frame
  std::atomic<std::uint64_t> aborted{0};  // the owner ended it
  std::atomic<std::uint64_t> local{0};    // prefilled and decoded here: no handoff
  std::atomic<std::uint64_t> bytes_sent{0};      // tiles' bytes
  std::atomic<std::uint64_t> bytes_received{0};  // verified or not
  // Frames with some layers of a last chunk, since the way was slow.
  std::atomic<std::uint64_t> layer_frames{0};

  std::atomic<std::uint64_t> protocol_errors{0};  // frames or messages that broke the protocol
  std::atomic<std::uint64_t> stale_messages{0};   // for dead or unknown sequences, dropped

  // Of handoffs that went well. Sender: from the Grant to the Ack of all. Receiver: from its Grant
  // to the Adopt. With the prefill in it, which runs meanwhile.
  DurationHistogram whole;
  // Sender only: from the end of the prefill to the Ack of all, so what the transfer costs the
  // client (and an Ack's way back).
  DurationHistogram exposed;

  // Gauges: sequences in a handoff's states now, on either side; sequences held in all.
  std::atomic<std::int64_t> active{0};
  std::atomic<std::int64_t> held{0};
};

}  // namespace baton::handoff
