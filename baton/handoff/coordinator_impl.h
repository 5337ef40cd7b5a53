// The inside of ServingCoordinator: sorts what comes from peers, the engine and the clock to the
// role machines, the leases and the owner, and carries out what they decide. Control thread only,
// except where said.
#pragma once

#include "baton/handoff/active_sequences.h"
#include "baton/handoff/cache_reports.h"
#include "baton/handoff/coordinator.h"
#include "baton/handoff/decode_role.h"
#include "baton/handoff/prefill_role.h"
#include "baton/handoff/role_context.h"
#include "baton/net/async_event.h"
#include "baton/net/task_group.h"

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace baton::handoff {

class ServingCoordinator::Impl final : public Outbox, public std::enable_shared_from_this<Impl> {
 public:
  Impl(asio::any_io_executor control, CoordinatorOptions options, Transport* transport,
       const EngineLink* engine, net::AsyncClock& clock);
  ~Impl() override;
  void connect();  // needs shared_from_this

  asio::awaitable<void> run();
  asio::awaitable<void> run_transport();
  asio::awaitable<void> run_prefill_role();
  asio::awaitable<void> run_decode_role();
  asio::awaitable<void> run_timers();
  void tick();
  void begin_drain();
  void stop();
  [[nodiscard]] bool idle() const;
  [[nodiscard]] bool busy_with(const NodeId& peer) const { return leases_.watches(peer); }
  [[nodiscard]] Remembered remembered() const;
  Owner& owner() { return owner_; }
  [[nodiscard]] const HandoffStats& stats() const { return stats_; }
  [[nodiscard]] TimePoint now() const { return clock_.now(); }

  // ---- Outbox --------------------------------------------------------------------------------
  Status control(const NodeId& to, const SequenceKey& key, wire::Control message) override;
  Status tokens(const NodeId& to, std::uint64_t step, std::vector<message::Token> tokens) override;
  bool engine(message::EngineCommand command) override;
  void send_frame(FrameJob job) override;
  void send_commit(const NodeId& to, const SequenceKey& key, wire::pb::Commit commit) override;

 private:
  void on_transport(TransportEvent event);
  void on_control(const NodeId& from, const SequenceKey& key, wire::Control message);
  void on_beat(const NodeId& from, const wire::pb::Beat& beat);
  void on_tokens(const NodeId& from, const wire::pb::Tokens& tokens);
  void on_peer_down(const PeerDown& down);
  // Its connections are closed; what was shared with it ends as if they had broken.
  void give_up(const NodeId& peer, const std::string& why);
  void on_lost(const LostSequence& lost);
  void on_abort(const AbortInput& abort);
  void on_engine(message::EngineEvent event);
  void drain_engine();

  // The checks that Prefill and Decode share; nothing when the request was refused or is stale.
  std::optional<message::Submit> admit(const NodeId& from, const SequenceKey& key,
                                       const std::string& reply_to, const std::string& counterpart,
                                       const wire::pb::Request& request);
  void refuse(const NodeId& to, const SequenceKey& key, bool later, const Error& error);

  asio::awaitable<void> frame_task(FrameJob job);
  asio::awaitable<void> commit_task(NodeId to, SequenceKey key, wire::pb::Commit commit);
  // A router has no roles: what is meant for them is dropped.
  void to_prefill(PrefillInput input) {
    if (engine_) {
      prefill_inbox_.push_unbounded(std::move(input));
    }
  }
  void to_decode(DecodeInput input) {
    if (engine_) {
      decode_inbox_.push_unbounded(std::move(input));
    }
  }
  void settle();  // gauges; ends the loops once everything is over

  const asio::any_io_executor executor_;
  const CoordinatorOptions options_;
  Transport* const transport_;
  const std::optional<EngineLink> engine_;
  const kv::KvLayout layout_;
  net::AsyncClock& clock_;

  HandoffStats stats_;
  Leases leases_;
  Tombstones tombstones_;
  RoleContext context_;
  Owner owner_;
  CacheReports reports_;
  ActiveSequences active_;
  ReservationTable table_;
  PrefillRole prefill_;
  DecodeRole decode_;
  // Bounded by what feeds them: one transport event at a time, and events of admitted sequences.
  net::AsyncQueue<PrefillInput> prefill_inbox_;
  net::AsyncQueue<DecodeInput> decode_inbox_;
  net::TaskGroup tasks_;
  net::AsyncEvent ended_;
  TimePoint last_tick_{};
  bool draining_ = false;
  bool stopping_ = false;
};

}  // namespace baton::handoff
