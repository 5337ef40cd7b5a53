// Glue on the control thread between the router's state machine and the world: it feeds the router
// with events (from the owner's end of the handoff protocol, or from this process's own engine) and
// carries out its commands. HTTP handlers meet it through RequestStream, a queue per request.
// Single node and router differ only in which of `engine` and `owner` is given.
#pragma once

#include "baton/engine/batch_scheduler.h"
#include "baton/handoff/owner.h"
#include "baton/net/async_clock.h"
#include "baton/net/async_event.h"
#include "baton/router/router.h"

#include "apps/baton/cluster_view.h"
#include <atomic>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <variant>
#include <vector>

namespace baton::app {

// What a handler hears of its request, in order. Failed and Completed are the last.
struct Delivered {
  message::Token token;
  router::Route route;
};
struct Failed {
  Error error;
};
struct Completed {};
struct ClientLeft {};  // pushed by the handler's own client_gone callback
struct Ping {};        // nothing happened for a while: keep proxies from cutting the stream
using StreamEvent = std::variant<Delivered, Failed, Completed, ClientLeft, Ping>;

// Bounded by the token limit of the request: the queue itself has no bound of its own.
using RequestStream = net::AsyncQueue<StreamEvent>;

class OwnerLoop {
 public:
  // engine: this process's own (single node), or null. owner: the protocol's end (router), or null.
  // ping_interval: of the pings to every stream, 0: none.
  OwnerLoop(asio::any_io_executor control, net::AsyncClock& clock, router::RouterOptions options,
            engine::BatchScheduler* engine, handoff::Owner* owner, Duration ping_interval);

  // ---- any thread -----------------------------------------------------------------------------
  // Starts a request; every outcome, a refusal too, arrives on `stream`. An answer that was begun
  // elsewhere names its exactness tag, others leave it empty.
  void start(std::vector<message::Submit> choices, std::string exactness_tag,
             std::shared_ptr<RequestStream> stream);
  void client_gone(RequestId request);
  void stop_choice(RequestId request, Choice choice);
  [[nodiscard]] router::Readiness readiness() const;  // as of the last tick or node event
  [[nodiscard]] std::vector<std::string> exactness_tags() const;  // of the nodes, at that time
  [[nodiscard]] std::int32_t context_tokens() const { return context_tokens_; }
  [[nodiscard]] const router::Stats& stats() const { return router_.stats(); }
  // Resumes on the caller's executor. Never, once the control loop has ended: its coroutine is then
  // destroyed with its own loop.
  asio::awaitable<OwnerView> view();

  // ---- the control thread ---------------------------------------------------------------------
  // See cluster::NodeTable.
  void await_role(message::NodeRole role, const std::string& source);
  void expect_peer(message::NodeRole role, const std::string& address);
  void retire_peer(const std::string& address);
  // Events of the own engine.
  void on_engine_event(message::EngineEvent&& event);
  // Deadlines, pings, readiness; until stop().
  asio::awaitable<void> run_timers();
  // Owner events, until the owner stops. Only with an owner.
  asio::awaitable<void> run_owner_events();
  void set_local_engine(bool ready, std::int32_t context_tokens);
  void begin_drain();
  [[nodiscard]] std::size_t active() const { return router_.active(); }
  void fail_all(const Error& error);
  void stop() { stopped_ = true; }

 private:
  void begin(std::vector<message::Submit> choices, const std::string& exactness_tag,
             std::shared_ptr<RequestStream> stream);
  void carry_out(router::Commands commands);
  void carry_out_one(router::Command&& command, router::Commands& more);
  void send_failed(const NodeId& node, const SequenceKey& key, const Error& error,
                   router::Commands& more);
  void deliver(RequestId request, StreamEvent&& event, bool last);
  void on_owner_event(handoff::OwnerEvent&& event);
  asio::awaitable<OwnerView> copy_view();
  void publish();

  asio::any_io_executor control_;
  net::AsyncClock& clock_;
  const bool has_engine_;
  engine::BatchScheduler* engine_;
  handoff::Owner* owner_;
  router::Router router_;
  std::unordered_map<RequestId, std::shared_ptr<RequestStream>> streams_;
  std::int32_t local_context_tokens_ = 0;
  const Duration ping_interval_;
  TimePoint last_ping_{};
  bool stopped_ = false;

  std::atomic<std::int32_t> context_tokens_{0};
  mutable std::mutex published_mutex_;
  router::Readiness readiness_;
  std::vector<std::string> exactness_tags_;
};

}  // namespace baton::app
