// The decode role as a state machine: events and "now" in, calls of Outbox out. No time, no I/O of
// its own. run_decode_role (coordinator.h) feeds it.
//
//   Decode ─► kReserving ── Reserved: Grant ─► kReceiving ── all verified ─► kLanding ─► Ack, Adopt
//                 │                                │ ▲ Blocks: Ack of ranges, KvArrived
//                 │ Commit(finish) ─► done         │ corrupt, lost, abort (active_sequences) └
//                 Refused ─► done                └► kClosing ── no byte in flight ─► Release, done
//
// Only tiles that this node lacks are granted. What arrived whole is worth something even if the
// rest never comes: the engine keeps it, and the next epoch finds it as it finds any prefix. A
// reserved block is given back only when no byte is in flight to it. Each epoch has its own blocks:
// none ever has two writers.
#pragma once

#include "baton/base/clock.h"
#include "baton/handoff/active_sequences.h"
#include "baton/handoff/recv_handoff.h"
#include "baton/handoff/reservation_table.h"
#include "baton/handoff/role_context.h"
#include "baton/handoff/transport.h"
#include "baton/message/engine.h"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace baton::handoff {

// The decode side's coordination data of a request whose KV comes from prefill_node: budget and
// sampling are in `submit`, the output stream goes to reply_to.
struct DecodeRoleHandoff {
  message::Submit submit;
  NodeId prefill_node;
  NodeId reply_to;
};
// The last byte in flight to a closed reservation has landed.
struct ReservationIdle {
  SequenceKey key;
};

using DecodeInput = std::variant<DecodeRoleHandoff, BlocksReceived, CommitReceived, AbortInput,
                                 PeerUp, PeerDown, LostSequence, ReservationIdle, message::Reserved,
                                 message::Refused, message::Finished>;

class DecodeRole {
 public:
  DecodeRole(const RoleContext& context, ReservationTable& table, ActiveSequences& active)
      : context_(context), table_(table), active_(active) {}

  void handle(DecodeInput input, TimePoint now);
  void tick(TimePoint now);
  // Peers from which bytes of a handoff that ended long ago are still coming.
  [[nodiscard]] std::vector<NodeId> stuck(TimePoint now) const;

  [[nodiscard]] bool holds(const SequenceKey& key) const { return entries_.contains(key); }
  [[nodiscard]] std::size_t count() const { return entries_.size(); }
  [[nodiscard]] std::size_t kept_count() const { return kept_.count(); }
  // Ends everything: owners and prefill nodes are told. Blocks with bytes in flight follow.
  void stop(const Error& reason, TimePoint now);

 private:
  enum class State : std::uint8_t { kReserving, kReceiving, kLanding, kClosing };
  struct Entry {
    NodeId prefill_node;
    NodeId reply_to;
    State state = State::kReserving;
    TimePoint deadline{};
    TimePoint link_deadline{};  // for a Grant that waits for a connection to prefill_node
    bool granted = false;
    TimePoint granted_at{};
    PayloadExpectation expected;
    message::LeaseId lease;
    std::int32_t cached_tokens = 0;  // were here before: whole tiles
    std::vector<wire::pb::TileRange> ranges;
    std::optional<PayloadReceipt> receipt;
    std::uint64_t acked_bytes = 0;      // of receipt->received_bytes()
    std::vector<message::Token> first;  // the Commit's
  };
  using Entries = std::map<SequenceKey, Entry>;

  void on(DecodeRoleHandoff handoff, TimePoint now);
  void on(const BlocksReceived& frame, TimePoint now);
  void on(const CommitReceived& commit, TimePoint now);
  void on(const AbortInput& abort, TimePoint now);
  void on(const PeerUp& up, TimePoint now);
  void on(const PeerDown& down, TimePoint now);
  void on(const LostSequence& lost, TimePoint now);
  void on(const ReservationIdle& idle, TimePoint now);
  void on(message::Reserved reserved, TimePoint now);
  void on(const message::Refused& refused, TimePoint now);
  void on(const message::Finished& finished, TimePoint now);

  void send_grant(Entries::iterator at, TimePoint now);
  void take_commit(Entries::iterator at, const wire::pb::Commit& commit, TimePoint now);
  void take_receipt(Entries::iterator at, const Result<bool>& complete, TimePoint now);
  void ack_arrived(Entries::iterator at);
  void keep_arrived(Entries::iterator at);
  void adopt(Entries::iterator at, TimePoint now);
  // Tells both others that it failed (later), then ends it.
  void fail_handoff(Entries::iterator at, const Error& reason, TimePoint now);
  void tell_prefill_node(Entries::iterator at, const Error& reason);
  // The handoff is over without a sequence: gives the lease back, now or when all bytes landed.
  void end(Entries::iterator at, Outcome outcome, TimePoint now);
  void unwatch(Entries::iterator at);

  // With BATON_FAILPOINTS only, see cells.h: which cells of the table the input is about to meet.
  void count_cells(const DecodeInput& input) const;
  void count_late(const SequenceKey& key, const Error& error) const;

  RoleContext context_;
  ReservationTable& table_;
  ActiveSequences& active_;
  Entries entries_;
  KeptMessages<CommitReceived> kept_;
};

}  // namespace baton::handoff
