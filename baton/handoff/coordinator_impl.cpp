#include "baton/handoff/coordinator_impl.h"

#include "baton/base/check.h"
#include "baton/base/log.h"
#include "baton/handoff/convert.h"
#include "baton/handoff/send_handoff.h"

#include <limits>
#include <utility>

namespace baton::handoff {
namespace {

constexpr std::size_t kInboxCapacity = std::numeric_limits<std::size_t>::max();

tl::unexpected<Error> shutting_down() {
  return fail(ErrorCode::kUnavailable, "the node is shutting down");
}

}  // namespace

ServingCoordinator::Impl::Impl(asio::any_io_executor control, CoordinatorOptions options,
                               Transport* transport, const EngineLink* engine,
                               net::AsyncClock& clock)
    : executor_(control),
      options_(std::move(options)),
      transport_(transport),
      engine_(engine == nullptr ? std::nullopt : std::optional<EngineLink>(*engine)),
      layout_(engine == nullptr ? kv::KvLayout{} : engine->layout),
      clock_(clock),
      leases_(options_),
      context_{options_, layout_, *this, leases_, tombstones_, stats_},
      owner_(control, options_, *this, leases_),
      reports_(*this),
      active_(context_),
      table_(layout_,
             [this](const SequenceKey& key) {
               // Thread: the transport's; it has stopped before this object goes. The queue wakes
               // the control thread.
               decode_inbox_.push_unbounded(ReservationIdle{key});
             }),
      prefill_(context_),
      decode_(context_, table_, active_),
      prefill_inbox_(control, kInboxCapacity),
      decode_inbox_(control, kInboxCapacity),
      tasks_(control),
      ended_(control),
      last_tick_(clock.now()) {
  if (transport_ != nullptr) {
    transport_->set_bulk_sink(engine_ ? &table_ : nullptr);
  }
}

ServingCoordinator::Impl::~Impl() = default;

void ServingCoordinator::Impl::connect() {
  if (engine_) {
    engine_->events->set_on_ready([weak = weak_from_this(), executor = executor_] {
      asio::post(executor, [weak] {
        if (const auto self = weak.lock()) {
          self->drain_engine();
        }
      });
    });
  }
}

// ---- loops
// ---------------------------------------------------------------------------------------

asio::awaitable<void> ServingCoordinator::Impl::run() {
  tasks_.spawn(run_timers());
  if (transport_ != nullptr) {
    tasks_.spawn(run_transport());
  }
  if (engine_) {
    tasks_.spawn(run_prefill_role());
    tasks_.spawn(run_decode_role());
  }
  co_await ended_.wait();
  if (transport_ != nullptr) {
    co_await transport_->stopped();
  }
  tasks_.stop();
  co_await tasks_.wait_empty();
}

asio::awaitable<void> ServingCoordinator::Impl::run_transport() {
  while (true) {
    auto event = co_await transport_->next();
    if (!event) {
      if (!stopping_) {
        log::error("the transport ended: {}", event.error().message);
      }
      co_return;
    }
    on_transport(*std::move(event));
    settle();
  }
}

asio::awaitable<void> ServingCoordinator::Impl::run_prefill_role() {
  while (auto input = co_await prefill_inbox_.pop()) {
    prefill_.handle(*std::move(input), clock_.now());
    settle();
  }
}

asio::awaitable<void> ServingCoordinator::Impl::run_decode_role() {
  while (auto input = co_await decode_inbox_.pop()) {
    decode_.handle(*std::move(input), clock_.now());
    settle();
  }
}

asio::awaitable<void> ServingCoordinator::Impl::run_timers() {
  while (!prefill_inbox_.closed()) {
    co_await clock_.sleep_for(milliseconds(options_.tick_ms));
    tick();
  }
}

void ServingCoordinator::Impl::tick() {
  const TimePoint now = clock_.now();
  // We stood still ourselves, not the peers. A tick that came in time says nothing of the kind,
  // however short a lease is.
  const Duration late = now - last_tick_ - milliseconds(options_.tick_ms);
  if (late > milliseconds(options_.lease_ms) / 2) {
    leases_.forgive(now);
  }
  last_tick_ = now;
  if (transport_ != nullptr && leases_.take_beat_due(now)) {
    const message::NodeLoad load = engine_ ? engine_->load() : message::NodeLoad{};
    for (const NodeId& peer : leases_.peers()) {
      wire::pb::Beat beat = leases_.beat_for(peer, load, draining_);
      owner_.fill_beat(peer, beat);
      control(peer, SequenceKey{}, std::move(beat));
    }
  }
  for (const NodeId& peer : leases_.take_dead(now)) {
    give_up(peer, fmt::format("no Beat from {} for {} ms", peer.value, options_.lease_ms));
  }
  for (const LostSequence& lost : leases_.stalled(now)) {
    on_lost(lost);
  }
  reports_.send();
  tombstones_.expire(now);
  prefill_.tick(now);
  decode_.tick(now);
  for (const std::vector<NodeId>& peers : {prefill_.stuck(now), decode_.stuck(now)}) {
    for (const NodeId& peer : peers) {  // blocks must not wait for a link that drips
      give_up(peer, fmt::format("bytes of an ended handoff with {} are under way for {} ms",
                                peer.value, options_.handoff_deadline_ms));
    }
  }
  settle();
}

void ServingCoordinator::Impl::give_up(const NodeId& peer, const std::string& why) {
  if (leases_.find(peer) == nullptr) {
    return;  // gone already
  }
  const Error reason{ErrorCode::kPeerLost, why};
  transport_->disconnect(peer, reason);
  on_peer_down({peer, reason});
}

void ServingCoordinator::Impl::begin_drain() {
  if (!draining_) {
    draining_ = true;
    if (engine_) {
      engine(message::Drain{});
    }
  }
}

bool ServingCoordinator::Impl::idle() const {
  return prefill_.count() + decode_.count() + active_.count() + owner_.active_attempts() == 0 &&
         prefill_inbox_.depth() + decode_inbox_.depth() == 0;
}

ServingCoordinator::Remembered ServingCoordinator::Impl::remembered() const {
  return {tombstones_.count(), prefill_.kept_count() + decode_.kept_count(), leases_.watch_count()};
}

void ServingCoordinator::Impl::stop() {
  if (stopping_) {
    return;
  }
  stopping_ = true;
  draining_ = true;
  const TimePoint now = clock_.now();
  const Error reason{ErrorCode::kUnavailable, "the node is shutting down"};
  owner_.stop();
  active_.stop(reason, now);
  prefill_.stop(reason, now);
  decode_.stop(reason, now);
  if (transport_ != nullptr) {
    transport_->shutdown();
  }
  settle();
}

void ServingCoordinator::Impl::settle() {
  const auto in_handoff = static_cast<std::int64_t>(prefill_.count() + decode_.count());
  stats_.active.store(in_handoff, std::memory_order_relaxed);
  stats_.held.store(in_handoff + static_cast<std::int64_t>(active_.count()),
                    std::memory_order_relaxed);
  if (stopping_ && in_handoff == 0) {
    prefill_inbox_.close();
    decode_inbox_.close();
    ended_.set();
  }
}

// ---- Outbox
// --------------------------------------------------------------------------------------

Status ServingCoordinator::Impl::control(const NodeId& to, const SequenceKey& key,
                                         wire::Control message) {
  if (to == options_.self) {
    asio::post(executor_, [weak = weak_from_this(), key, taken = std::move(message)]() mutable {
      if (const auto self = weak.lock()) {
        self->on_control(self->options_.self, key, std::move(taken));
        self->settle();
      }
    });
    return {};
  }
  if (transport_ == nullptr) {
    return fail(ErrorCode::kPeerLost, "this node has no peers");
  }
  return transport_->send_control(to, key, std::move(message));
}

Status ServingCoordinator::Impl::tokens(const NodeId& to, std::uint64_t step,
                                        std::vector<message::Token> tokens) {
  if (to != options_.self) {
    const SequenceKey key = tokens.front().key;
    return control(to, key, tokens_to_wire(step, tokens));
  }
  // Posted like every message to ourselves, so that their order is kept.
  asio::post(executor_, [weak = weak_from_this(), step, taken = std::move(tokens)]() mutable {
    if (const auto self = weak.lock()) {
      self->owner_.on_tokens(self->options_.self, step, std::move(taken));
    }
  });
  return {};
}

bool ServingCoordinator::Impl::engine(message::EngineCommand command) {
  return engine_ && engine_->post(std::move(command));
}

void ServingCoordinator::Impl::send_frame(FrameJob job) {
  const SequenceKey key = job.key;
  const std::uint64_t number = job.number;
  if (tasks_.spawn(frame_task(std::move(job))).value == 0) {
    to_prefill(FrameSent{key, number, shutting_down()});
  }
}

asio::awaitable<void> ServingCoordinator::Impl::frame_task(FrameJob job) {
  FrameSent sent{job.key, job.number, BulkSent{}};
  sent.result =
      co_await send_handoff_payload(*transport_, layout_, std::move(job), stats_.bytes_sent);
  to_prefill(std::move(sent));
}

void ServingCoordinator::Impl::send_commit(const NodeId& to, const SequenceKey& key,
                                           wire::pb::Commit commit) {
  if (tasks_.spawn(commit_task(to, key, std::move(commit))).value == 0) {
    to_prefill(CommitSent{key, shutting_down()});
  }
}

asio::awaitable<void> ServingCoordinator::Impl::commit_task(NodeId to, SequenceKey key,
                                                            wire::pb::Commit commit) {
  CommitSent sent{key, {}};
  sent.status = co_await send_handoff_payload(*transport_, std::move(to), key, std::move(commit));
  to_prefill(std::move(sent));
}

}  // namespace baton::handoff
