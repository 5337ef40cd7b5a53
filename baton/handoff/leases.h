// Who is alive, and who still has what. Beats go both ways between every pair of nodes and list the
// (request, choice, epoch)s that both have to do with; what a peer no longer lists, it has lost.
// Pure: events and "now" in, findings out. Control thread only.
#pragma once

#include "baton/base/clock.h"
#include "baton/base/ids.h"
#include "baton/base/result.h"
#include "baton/handoff/options.h"
#include "baton/message/node.h"
#include "baton/wire/messages.pb.h"

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace baton::handoff {

// Why this node and a peer have a sequence in common, seen from here.
enum class WatchKind : std::uint8_t {
  kOwnedLeg,     // we own it, the peer runs a leg
  kOwner,        // the peer owns it, we run a leg
  kCounterpart,  // the peer is the other end of the handoff
};

struct LostSequence {
  NodeId peer;
  SequenceKey key;
  WatchKind kind = WatchKind::kOwner;
  Error reason;  // kPeerLost: no longer listed; kDeadlineExceeded: its engine stands still
};

struct Peer {
  message::NodeInfo info;
  std::int32_t block_tokens = 0;
  message::NodeLoad load;
  bool draining = false;
};

class Leases {
 public:
  explicit Leases(const CoordinatorOptions& options) : options_(options) {}

  void on_peer_up(const message::NodeInfo& info, std::int32_t block_tokens, TimePoint now);
  void on_peer_down(const NodeId& peer);
  [[nodiscard]] const Peer* find(const NodeId& peer) const;  // null unless up
  [[nodiscard]] std::vector<NodeId> peers() const;

  // From now on the key is listed in Beats to the peer. `certain`: the peer surely has it (its
  // message came to us over the ordered connection), so absence counts at once; otherwise only
  // after it was listed once, or after `grace_ms`. Of a kOwnedLeg the peer's engine may not stand
  // still either.
  void watch(const NodeId& peer, WatchKind kind, const SequenceKey& key, bool certain,
             std::int64_t grace_ms, TimePoint now);
  // Goes on listing it, but its absence means nothing any more.
  void keep_listing_only(const NodeId& peer, WatchKind kind, const SequenceKey& key);
  void unwatch(const NodeId& peer, WatchKind kind, const SequenceKey& key);
  [[nodiscard]] std::size_t watch_count() const;
  // Whether this node and the peer have any sequence in common.
  [[nodiscard]] bool watches(const NodeId& peer) const { return watches_.contains(peer); }

  // What the Beat of a peer tells. Unknown peers' Beats are dropped.
  std::vector<LostSequence> on_beat(const NodeId& peer, const wire::pb::Beat& beat, TimePoint now);
  // Sequences on peers whose engines stand still.
  std::vector<LostSequence> stalled(TimePoint now);
  // Peers without a Beat for lease_ms; they are forgotten here.
  std::vector<NodeId> take_dead(TimePoint now);

  // This process stood still for a while: what came meanwhile is not read yet, so nobody is judged.
  void forgive(TimePoint now);

  // True when Beats are due; the caller then sends beat_for() to each of peers().
  bool take_beat_due(TimePoint now);
  [[nodiscard]] wire::pb::Beat beat_for(const NodeId& peer, const message::NodeLoad& load,
                                        bool draining) const;

 private:
  struct Watch {
    bool counts = true;  // absence means loss, and so does an engine that stands still
    TimePoint since{};
    bool listed = false;       // was listed once, or surely known
    int absences = 0;          // Beats in a row
    TimePoint certain_from{};  // from then on absence counts, listed or not
  };
  using WatchId = std::pair<SequenceKey, WatchKind>;
  struct Entry {
    Peer peer;
    TimePoint last_beat{};
    TimePoint last_turn{};  // of its engine
  };
  Watch* find_watch(const NodeId& peer, WatchKind kind, const SequenceKey& key);

  const CoordinatorOptions& options_;
  std::map<NodeId, Entry> peers_;
  std::map<NodeId, std::map<WatchId, Watch>> watches_;
  TimePoint next_beat_{};
};

}  // namespace baton::handoff
