// Counters of the owner, for /metrics. Written by the control thread, read by any.
#pragma once

#include <atomic>
#include <cstdint>

namespace baton::router {

struct Stats {
  // completed + failed + aborted + active = accepted, always.
  std::atomic<std::uint64_t> accepted{0};
  std::atomic<std::uint64_t> completed{0};
  std::atomic<std::uint64_t> failed{0};
  std::atomic<std::uint64_t> aborted{0};   // the client left
  std::atomic<std::uint64_t> rejected{0};  // start() refused; not in accepted
  std::atomic<std::uint64_t> active{0};    // gauge
  std::atomic<std::uint64_t> resumed{0};   // of the accepted ones: answers begun elsewhere

  std::atomic<std::uint64_t> tokens_delivered{0};
  std::atomic<std::uint64_t> retries{0};            // new epochs before index 0
  std::atomic<std::uint64_t> replays{0};            // new epochs with emitted tokens
  std::atomic<std::uint64_t> local_fallbacks{0};    // attempts on one node for want of a pair
  std::atomic<std::uint64_t> nodes_shunned{0};      // times that a node's breaker opened
  std::atomic<std::uint64_t> prefixes_reported{0};  // gauge: names in the caches of all nodes
  std::atomic<std::uint64_t> duplicates_dropped{0};
  std::atomic<std::uint64_t> dead_epochs_dropped{0};
  std::atomic<std::uint64_t> mismatches{0};  // a duplicate with another token: a bug
};

}  // namespace baton::router
