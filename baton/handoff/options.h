// Intervals and bounds of the handoff protocol, named as the flags that set them. Every wait of
// docs/protocol.md ends by one of these.
#pragma once

#include "baton/base/clock.h"
#include "baton/base/ids.h"

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace baton::handoff {

// Bulk frames: large enough that per-frame cost vanishes, small enough that an abort is seen soon.
inline constexpr std::size_t kMinFrameBytes = 256U << 10U;
inline constexpr std::size_t kMaxFrameBytes = 8U << 20U;

struct CoordinatorOptions {
  NodeId self;

  // A request that a node has not begun, a Grant or a Commit that has not come, a message that
  // came before its request: after this it is Refused(later) or forgotten.
  std::int64_t queue_deadline_ms = 60'000;
  // From the start of a prefill to its end, and so a decode node's wait for the Commit. Long: a
  // prompt of 100k tokens on one CPU socket takes minutes; a dead node is found by Beats.
  std::int64_t prefill_deadline_ms = 600'000;
  // From the end of the prefill (on a decode node: from the Commit) to the Ack. A 1M-token cache
  // over 1 Gbit/s takes longer: raise it.
  std::int64_t handoff_deadline_ms = 60'000;
  std::int64_t beat_interval_ms = 250;
  // No Beat for this long: the peer is dead.
  std::int64_t lease_ms = 3'000;
  // A sequence may stay unlisted this long after it was sent, if it was never listed (its message
  // may still be on the way).
  std::int64_t delivery_grace_ms = 1'000;
  // A node whose engine's turn count stands still this long is stuck. A turn is a step, or a look
  // at the mailbox once a second: longer than any step, and than a second.
  std::int64_t stall_ms = 5'000;
  // How often deadlines are looked at.
  std::int64_t tick_ms = 50;

  // False: nobody takes the owner's events here, so none are kept.
  bool has_owner = true;

  // The owner wants to hear what nodes have in their prefix caches.
  bool hear_cached = false;

  // KV leaves while the prompt is computed. False: only once it is, to see what that costs.
  bool stream_kv = true;

  // A decode node acks what has arrived whenever it is so much: often enough that the prefill node
  // gives blocks back while it sends, too seldom to cost anything.
  std::uint64_t ack_bytes = 4U << 20U;

  // Where frames are cut. Tests make them small, to have several of a small cache.
  std::size_t min_frame_bytes = kMinFrameBytes;

  // On the way to a decode node, what takes so long or longer is cut into parts that leave as soon
  // as they are complete: blocks at the end of the prompt into tiles, the last chunk into layers.
  // 0: everything is cut.
  std::int64_t slow_way_us = 3'000;

  // Sequences that a node holds for owners, and attempts that an owner has under way: half of what
  // a Beat can list (wire::kMaxHeld), since a node may do both with one peer.
  std::size_t max_sequences = 2'048;
};

inline Duration milliseconds(std::int64_t value_ms) { return std::chrono::milliseconds(value_ms); }

// Aborted epochs are remembered so that their late frames are dropped; longer than any frame can be
// on the way. Oldest first when full.
inline constexpr std::int64_t kTombstoneMs = 120'000;
inline constexpr std::size_t kMaxTombstones = 65'536;
// Messages kept for sequences whose request has not come yet (Grant, Commit).
inline constexpr std::size_t kMaxKeptMessages = 4'096;
inline constexpr std::size_t kMaxKeptBytes = 16U << 20U;

// Frames of one handoff that are being written or wait for it: two for each of the two bulk
// connections, so that none stands still while the control thread hears of an end; more when they
// are small. Not more, since an abort waits for them before the blocks are free.
inline constexpr std::size_t kFramesInFlight = 4;
inline constexpr std::size_t kBytesInFlight = 4U << 20U;
// 65,536 frames of 256 KiB are 16 GiB: more than any one sequence here.
inline constexpr std::uint64_t kMaxHandoffFrames = 65'536;

}  // namespace baton::handoff
