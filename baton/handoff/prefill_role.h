// The prefill role as a state machine: events and "now" in, calls of Outbox out. No time, no I/O of
// its own, so a fault at every frame can be tested. run_prefill_role (coordinator.h) feeds it.
//
//   Prefill ─► kPrefilling ── PrefillDone ─┬► kAwaitGrant ── Grant ─► kSending ─► kAwaitAck ─► done
//                   │                      └─ granted already ─────────►┘
//                   │ ended on index 0: Commit(finish) ─► done      ended while bytes leave:
//                   └ Refused, Finished ─► done                     any state ─► kEnding ─► done
//
// Frames leave from the Grant on, in kPrefilling too: each as soon as its rows are computed. Blocks
// are given back as they are acked. Every state has a deadline, and an Abort, a lost owner or a
// lost counterpart ends it; the lease on the blocks is given back exactly once, and never while the
// transport reads from them.
#pragma once

#include "baton/base/clock.h"
#include "baton/handoff/role_context.h"
#include "baton/handoff/send_handoff.h"
#include "baton/handoff/transport.h"
#include "baton/message/engine.h"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace baton::handoff {

// The work item of a prefill whose KV goes to decode_node.
struct PrefillRoleRequest {
  message::Submit submit;
  NodeId decode_node;
  NodeId reply_to;  // the owner: gets index 0
};
struct GrantInput {
  NodeId from;
  SequenceKey key;
  wire::pb::Grant grant;
};
struct AckInput {
  NodeId from;
  SequenceKey key;
  wire::pb::Ack ack;
};
// Outbox::send_frame came to its end.
struct FrameSent {
  SequenceKey key;
  std::uint64_t number = 0;
  Result<BulkSent> result;
};
// Outbox::send_commit came to its end.
struct CommitSent {
  SequenceKey key;
  Status status;
};

using PrefillInput = std::variant<PrefillRoleRequest, GrantInput, AckInput, AbortInput, PeerDown,
                                  LostSequence, FrameSent, CommitSent, message::PrefillProgress,
                                  message::PrefillDone, message::Refused, message::Finished>;

class PrefillRole {
 public:
  explicit PrefillRole(const RoleContext& context) : context_(context) {}

  void handle(PrefillInput input, TimePoint now);
  void tick(TimePoint now);
  // Peers to which bytes of a handoff that ended long ago are still under way.
  [[nodiscard]] std::vector<NodeId> stuck(TimePoint now) const;

  [[nodiscard]] bool holds(const SequenceKey& key) const { return entries_.contains(key); }
  [[nodiscard]] std::size_t count() const { return entries_.size(); }
  [[nodiscard]] std::size_t kept_count() const { return kept_.count(); }
  // Ends everything: owners and decode nodes are told. What the transport still reads follows.
  void stop(const Error& reason, TimePoint now);

 private:
  enum class State : std::uint8_t { kPrefilling, kAwaitGrant, kSending, kAwaitAck, kEnding };
  struct Entry {
    NodeId decode_node;
    NodeId reply_to;
    State state = State::kPrefilling;
    TimePoint deadline{};
    TimePoint link_deadline{};  // by then there is a connection to decode_node
    TimePoint granted_at{};
    TimePoint prefilled_at{};
    bool linked = false;
    std::string tokens_digest;
    std::int32_t kv_tokens = 0;        // prompt + emitted
    std::int32_t computed_tokens = 0;  // of them, complete in the blocks
    std::vector<wire::pb::TileRange> granted;
    bool has_grant = false;
    message::LeasedBlocks blocks;
    bool leased = false;                      // `blocks` are there
    std::optional<PayloadShipment> shipment;  // once granted, and the blocks claimed
    std::vector<message::Token> first;        // once the prefill is done
    bool commit_under_way = false;
    bool acked = false;  // the Ack may overtake the end of our own write
  };
  using Entries = std::map<SequenceKey, Entry>;

  void on(PrefillRoleRequest request, TimePoint now);
  void on(const GrantInput& grant, TimePoint now);
  void on(const AckInput& ack, TimePoint now);
  void on(const AbortInput& abort, TimePoint now);
  void on(const PeerDown& down, TimePoint now);
  void on(const LostSequence& lost, TimePoint now);
  void on(const FrameSent& sent, TimePoint now);
  void on(const CommitSent& sent, TimePoint now);
  void on(message::PrefillProgress progress, TimePoint now);
  void on(message::PrefillDone done, TimePoint now);
  void on(const message::Refused& refused, TimePoint now);
  void on(const message::Finished& finished, TimePoint now);

  // Sends what may leave: frames, and behind the last one the Commit.
  void try_send(Entries::iterator at, TimePoint now);
  // Claims the blocks of a granted sequence. False: not yet.
  bool try_claim(Entry& entry);
  // False: its blocks are not in the lease.
  bool send_frame(Entries::iterator at, const PayloadShipment::Frame& frame);
  void return_done_blocks(Entry& entry);
  void take_ranges(Entry& entry, const wire::pb::Ack& ack, TimePoint now);
  void lost_counterpart(Entries::iterator at, const Error& reason, TimePoint now);
  void end_acked(Entries::iterator at, TimePoint now);
  // Tells both others that it failed (later), then ends it.
  void fail_handoff(Entries::iterator at, const Error& reason, TimePoint now);
  void tell_decode_node(Entries::iterator at, const Error& reason);
  // The sequence is over here: the engine's part too, and the lease is given back, now or when the
  // transport is done with it.
  void end(Entries::iterator at, Outcome outcome, TimePoint now);
  void erase(Entries::iterator at);
  [[nodiscard]] wire::pb::Commit commit_of(const Entry& entry) const;

  // With BATON_FAILPOINTS only, see cells.h: which cells of the table the input is about to meet.
  void count_cells(const PrefillInput& input) const;
  void count_late(const SequenceKey& key, bool linked) const;

  RoleContext context_;
  Entries entries_;
  std::map<NodeId, double> seconds_per_byte_;  // of the ways to decode nodes that are there
  KeptMessages<GrantInput> kept_;
};

}  // namespace baton::handoff
