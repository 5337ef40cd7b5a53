// A node's control thread: role loops, leases, Beats, the owner's end. Knows no model and touches
// no bulk data: it talks to the engine by messages and to other nodes through Transport.
//
//   Transport ─► run_transport ─┬► prefill role's inbox ─► run_prefill_role ─► engine mailbox
//   engine events (posted) ─────┼► decode role's inbox  ─► run_decode_role  ─► Transport
//   run_timers: tick() ─────────┴► owner (tokens, refusals, nodes) ─► router glue in apps/
//
// One node may run both roles and an owner: role is policy. A bad request, a bad frame or a lost
// peer ends that request, never a loop. All of it on one thread (the executor's).
#pragma once

#include "baton/base/bounded_queue.h"
#include "baton/handoff/options.h"
#include "baton/handoff/owner.h"
#include "baton/handoff/stats.h"
#include "baton/handoff/transport.h"
#include "baton/kv/layout.h"
#include "baton/message/engine.h"
#include "baton/message/node.h"
#include "baton/net/async_clock.h"

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>

#include <functional>
#include <memory>

namespace baton::handoff {

// The engine as seen from here: a mailbox, its events, its numbers. The coordinator sets the event
// queue's on_ready, so make it before the engine thread starts.
struct EngineLink {
  // The mailbox (BatchScheduler::post). False when full, for new work only. Thread: control.
  std::function<bool(message::EngineCommand&&)> post;
  BoundedQueue<message::EngineEvent>* events = nullptr;
  kv::KvLayout layout;
  std::function<message::NodeLoad()> load;  // Thread: called on the control thread
};

class ServingCoordinator {
 public:
  // transport null: a single node without peers. engine null: a router. Both, and the clock, must
  // outlive the coordinator; the engine's thread must have stopped before it is destroyed.
  ServingCoordinator(asio::any_io_executor control, CoordinatorOptions options,
                     Transport* transport, const EngineLink* engine, net::AsyncClock& clock);
  ~ServingCoordinator();
  ServingCoordinator(const ServingCoordinator&) = delete;
  ServingCoordinator& operator=(const ServingCoordinator&) = delete;

  // Everything below in one: returns after stop(), when every loop and send has ended.
  asio::awaitable<void> run();

  // The loops by themselves, for tests and for embedding: spawn each once on the control executor.
  // They end after stop(). Role loops need an engine.
  asio::awaitable<void> run_transport();
  asio::awaitable<void> run_prefill_role();
  asio::awaitable<void> run_decode_role();
  asio::awaitable<void> run_timers();

  // Looks at every deadline and sends Beats that are due, by clock.now(). run_timers calls it each
  // tick_ms. Thread: control.
  void tick();

  [[nodiscard]] Owner& owner();

  // Refuse new sequences (later), tell peers in Beats; what is there runs on. The engine's own
  // Drain is sent too. Thread: control.
  void begin_drain();
  // No sequence is held for any owner, and no attempt of ours is under way. Thread: control.
  [[nodiscard]] bool idle() const;
  // This node and that peer have a sequence in common. Thread: control.
  [[nodiscard]] bool busy_with(const NodeId& peer) const;

  // What is remembered beside the sequences that are there; all 0 a tombstone's life after the last
  // one ended. For audits. Thread: control.
  struct Remembered {
    std::size_t tombstones = 0;
    std::size_t kept_messages = 0;
    std::size_t watches = 0;
  };
  [[nodiscard]] Remembered remembered() const;

  // Aborts everything, tells the peers, ends the loops, shuts the transport down. Idempotent.
  void stop();

  [[nodiscard]] const HandoffStats& stats() const;  // readable from any thread

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace baton::handoff
