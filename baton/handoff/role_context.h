// What the role state machines share on one node, and the inputs that both understand. Control
// thread only.
#pragma once

#include "baton/base/ids.h"
#include "baton/base/result.h"
#include "baton/handoff/late.h"
#include "baton/handoff/leases.h"
#include "baton/handoff/options.h"
#include "baton/handoff/outbox.h"
#include "baton/handoff/stats.h"
#include "baton/kv/layout.h"

#include <optional>

namespace baton::handoff {

struct RoleContext {
  const CoordinatorOptions& options;
  const kv::KvLayout& layout;
  Outbox& outbox;
  Leases& leases;
  Tombstones& tombstones;
  HandoffStats& stats;
};

// An end that came from outside. `from` is the peer that sent it; none: this node itself, because a
// higher epoch came (quiet) or because it is shutting down (owner and counterpart are told).
struct AbortInput {
  std::optional<NodeId> from;
  SequenceKey key;  // choice may be kAllChoices; epochs up to key.epoch
  Error reason;
  bool quiet = true;
};

enum class Outcome { kOk, kFailed, kAborted };

inline void record(HandoffStats& stats, Outcome outcome) {
  switch (outcome) {
    case Outcome::kOk:
      ++stats.ok;
      break;
    case Outcome::kFailed:
      ++stats.failed;
      break;
    case Outcome::kAborted:
      ++stats.aborted;
      break;
  }
}

}  // namespace baton::handoff
