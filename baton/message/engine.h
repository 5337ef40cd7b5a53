// The engine's mailbox and its events: all that crosses between the engine thread and the threads
// around it. The pool belongs to the engine thread; others get spans of blocks under a lease and
// give the lease back by message.
#pragma once

#include "baton/kv/layout.h"
#include "baton/message/request.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <variant>
#include <vector>

namespace baton::message {

// Names one set of pinned blocks lent by the engine. Unique in the process.
struct LeaseId {
  std::uint64_t value = 0;
  auto operator<=>(const LeaseId&) const = default;
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
};

// ---- commands: any thread -> engine ----------------------------------------------------------
// Prefill and decode here. Answered by Token ... or Refused or Finished.
struct RunLocally {
  Submit submit;
};
// Prefill, sample one token, no decode step; answered by PrefillDone, Refused or Finished.
struct PrefillForHandoff {
  Submit submit;
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
// Ends a lease: the sender has its Ack, or a handoff failed. A reserved sequence whose lease is
// released is forgotten without an event. Idempotent; unknown leases are ignored.
struct Release {
  LeaseId lease;
};
// Stop taking new work; run what is there. Answered by Drained.
struct Drain {};

using EngineCommand =
    std::variant<RunLocally, PrefillForHandoff, Reserve, Adopt, Release, Abort, Drain>;

// ---- events: engine -> control thread ---------------------------------------------------------
// All tokens of one step. Also carries the first tokens of a prefill node.
struct StepTokens {
  std::uint64_t step = 0;  // the engine's step count
  std::vector<Token> tokens;
};
// Prompt computed and index emitted.size() sampled. When first.finish != kNone, or every first
// token ended, there is no handoff: blocks.tables is empty and the lease is already over.
struct PrefillDone {
  SequenceKey key;
  std::vector<Token> first;    // one per choice
  std::int32_t kv_tokens = 0;  // tokens whose KV is in `blocks`: prompt + emitted
  LeasedBlocks blocks;
};
struct Reserved {
  SequenceKey key;
  std::int32_t kv_tokens = 0;  // tokens whose KV must arrive
  LeasedBlocks blocks;
};
struct Drained {};

using EngineEvent = std::variant<StepTokens, PrefillDone, Reserved, Refused, Finished, Drained>;

}  // namespace baton::message
