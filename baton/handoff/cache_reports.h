// A node's end of block events: what its prefix cache holds by the engine's word, and what of it
// each owner that asked has not been told yet. An owner is told all at first, then what changed,
// one bounded frame a tick, as long as it says that it hears them; what changed twice meanwhile is
// said once, as it is then. When more changed than there is, all is told anew. docs/protocol.md,
// section 6. Control thread only.
#pragma once

#include "baton/base/ids.h"
#include "baton/handoff/outbox.h"
#include "baton/message/node.h"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <unordered_map>
#include <unordered_set>

namespace baton::handoff {

class CacheReports {
 public:
  explicit CacheReports(Outbox& outbox) : outbox_(outbox) {}

  // What the Beat of an owner says. asks: 0: tell it nothing, another value than before: tell it
  // all; the engine is not asked before the first one. heard: number of the frame it waits for.
  void on_beat(const NodeId& owner, std::uint64_t asks, std::uint64_t heard);
  void on_changes(const message::PrefixChanges& changes);  // the engine's
  void forget(const NodeId& owner) { readers_.erase(owner); }
  // At each tick: a frame to each owner that has something to hear.
  void send();

 private:
  struct Reader {
    std::uint64_t asks = 0;
    std::uint64_t number = 0;                // of its next frame
    std::unordered_set<PrefixName> changed;  // since it was told of them
    std::deque<std::size_t> unheard;         // names in each frame that may be on its way
    std::size_t unheard_names = 0;
  };
  void restart(Reader& reader) const;
  void note(PrefixName name);

  Outbox& outbox_;
  bool watching_ = false;                               // the engine was asked
  bool known_ = false;                                  // and has answered
  std::unordered_map<PrefixName, std::uint32_t> held_;  // -> how often
  std::map<NodeId, Reader> readers_;
};

}  // namespace baton::handoff
