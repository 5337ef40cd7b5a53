// The engine's mailbox and its events: all that crosses between the engine thread and the threads
// around it. The pool belongs to the engine thread; others get spans of blocks under a lease and
// give the lease back by message.
#pragma once

#include "baton/base/clock.h"
#include "baton/kv/layout.h"
#include "baton/message/node.h"
#include "baton/message/request.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <variant>
#include <vector>

namespace baton::message {

// Names one set of pinned blocks lent by the engine. Unique in the process.
struct LeaseId {
  std::uint64_t value = 0;
  auto operator<=>(const LeaseId&) const = default;
};

// Whether blocks of a prefill that goes on may still be taken back: the engine may, for others that
// need the room, until the borrower claims them; the borrower may read only what it claimed. One of
// the two wins, for good. Thread: any.
class LeaseClaim {
 public:
  // The borrower's. False: they were taken back, and come again with another lease.
  [[nodiscard]] bool claim() { return settle(State::kClaimed); }
  // The engine's. False: claimed, so they stay until the lease is released.
  [[nodiscard]] bool revoke() { return settle(State::kRevoked); }
  // The borrower's: it wants to hear of layers while the last chunk is computed.
  void want_layers() { wants_layers_.store(true, std::memory_order_relaxed); }
  [[nodiscard]] bool wants_layers() const { return wants_layers_.load(std::memory_order_relaxed); }

 private:
  enum class State : std::uint8_t { kOpen, kClaimed, kRevoked };
  bool settle(State wanted) {
    State now = State::kOpen;
    return state_.compare_exchange_strong(now, wanted) || now == wanted;
  }
  std::atomic<State> state_{State::kOpen};
  std::atomic<bool> wants_layers_{false};
};

struct LeasedBlock {
  kv::BlockId id;  // kNoBlock, without bytes: a block of a window group that nobody will see
  std::span<std::byte>
      bytes;  // the whole block, KvLayout's order; valid until the lease is released
};

// tables[group] lists the blocks of a sequence in order of position.
struct LeasedBlocks {
  LeaseId lease;
  std::vector<std::vector<LeasedBlock>> tables;
  std::shared_ptr<LeaseClaim> claim;  // null: claimed from the start
};

// Blocks [first, first + count) of a lease's tables[group].
struct BlockRange {
  std::uint32_t group = 0;
  std::uint32_t first = 0;
  std::uint32_t count = 0;
};

// ---- commands: any thread -> engine ----------------------------------------------------------
// Prefill and decode here. Answered by Token ... or Refused or Finished.
struct RunLocally {
  Submit submit;
};
// Prefill, sample one token, no decode step; answered by PrefillProgress ... PrefillDone, Refused
// or Finished.
struct PrefillForHandoff {
  Submit submit;
};
// The decode node has room for the KV of this prefill, but there is nothing yet that could be
// claimed: those whose decode node has none must not hold it up. Unknown keys are dropped.
struct Granted {
  SequenceKey key;
};
// Reserve blocks for a handoff (prompt + emitted + one block); answered by Reserved or Refused.
struct Reserve {
  Submit submit;
};
// The KV of a reserved sequence has arrived and was verified: it decodes from here. `first` are the
// tokens that the prefill node made, after submit.emitted. Token events repeat them.
// The lease ends with this message. Unknown keys are dropped.
struct Adopt {
  SequenceKey key;
  std::vector<Token> first;
  std::uint64_t kv_bytes = 0;
};
// Rows [0, tokens) of a reserved sequence are in its blocks and verified, the rest may follow:
// their whole tiles may be shared from now on, and outlive the handoff if it fails. Unknown keys
// are dropped.
struct KvArrived {
  SequenceKey key;
  std::int32_t tokens = 0;
};
// Ends a lease: the sender has its Ack, or a handoff failed. A reserved sequence whose lease is
// released is forgotten without an event. Idempotent; unknown leases are ignored.
struct Release {
  LeaseId lease;
};
// Some blocks of a lease are needed no more. Idempotent; unknown leases and blocks are ignored.
struct ReleaseBlocks {
  LeaseId lease;
  std::vector<BlockRange> blocks;
};
// Tell what is in the prefix cache: answered by PrefixChanges with all of it, and after each turn
// of the engine that changed something by another one.
struct WatchPrefixes {};
// Stop taking new work; run what is there. Answered by Drained.
struct Drain {};

using EngineCommand = std::variant<RunLocally, PrefillForHandoff, Granted, Reserve, Adopt,
                                   KvArrived, Release, ReleaseBlocks, Abort, WatchPrefixes, Drain>;

// ---- events: engine -> control thread ---------------------------------------------------------
// All tokens of one step. Also carries the first tokens of a prefill node.
struct StepTokens {
  std::uint64_t step = 0;  // the engine's step count
  std::vector<Token> tokens;
};
// A prefill for handoff has its blocks (what was cached is complete already), and again after each
// chunk but the last, and within the last one if the borrower wants layers: the first
// computed_tokens rows of them are complete, the others are being written. They stay until the
// lease is released, once claimed.
struct PrefillProgress {
  SequenceKey key;
  std::int32_t computed_tokens = 0;  // < prompt + emitted
  // For prompt + emitted; without tables: those of the last one that had some. The same lease with
  // tables again has grown.
  LeasedBlocks blocks;
  // Within the last chunk: [group] how many of its layers, from the first, have all rows; and how
  // long after the chunk began that was. Else empty.
  std::vector<std::uint32_t> layers = {};
  Duration elapsed{};
};
// Prompt computed and index emitted.size() sampled: all rows are in the blocks of the lease, which
// is now all that holds them. When first.finish != kNone the sequence is over, and its lease too
// unless it was claimed.
struct PrefillDone {
  SequenceKey key;
  std::vector<Token> first;    // one per choice
  std::int32_t kv_tokens = 0;  // prompt + emitted
};
struct Reserved {
  SequenceKey key;
  std::int32_t kv_tokens = 0;      // prompt + emitted: rows that must be there
  std::int32_t cached_tokens = 0;  // of them, here already: whole tiles, from the first on
  LeasedBlocks blocks;             // only tiles past the cached ones may be written
};
struct Drained {};

// PrefixChanges: of the first group that sees everything. A name may be added more than once; it is
// gone when it was removed as often.
using EngineEvent = std::variant<StepTokens, PrefillProgress, PrefillDone, Reserved, Refused,
                                 Finished, PrefixChanges, Drained>;

}  // namespace baton::message
