#include "apps/baton/owner_loop.h"

#include "baton/base/check.h"
#include "baton/base/log.h"

#include <chrono>
#include <iterator>
#include <utility>

namespace baton::app {
namespace {

// Deadlines are seconds, so a twentieth of a second is exact enough and costs nothing.
constexpr Duration kTick = std::chrono::milliseconds(50);

template <class... Cases>
struct Overloaded : Cases... {
  using Cases::operator()...;
};
template <class... Cases>
Overloaded(Cases...) -> Overloaded<Cases...>;

}  // namespace

OwnerLoop::OwnerLoop(asio::any_io_executor control, net::AsyncClock& clock,
                     router::RouterOptions options, engine::BatchScheduler* engine,
                     handoff::Owner* owner, Duration ping_interval)
    : control_(std::move(control)),
      clock_(clock),
      has_engine_(engine != nullptr),
      engine_(engine),
      owner_(owner),
      router_(std::move(options)),
      ping_interval_(ping_interval),
      last_ping_(clock.now()) {
  BATON_CHECK(has_engine_ != (owner != nullptr), "an owner loop has an engine or peers, not both");
  publish();
}

void OwnerLoop::start(std::vector<message::Submit> choices, std::string exactness_tag,
                      std::shared_ptr<RequestStream> stream) {
  asio::post(control_, [this, choices = std::move(choices), tag = std::move(exactness_tag),
                        stream = std::move(stream)]() mutable {
    begin(std::move(choices), tag, std::move(stream));
  });
}

void OwnerLoop::begin(std::vector<message::Submit> choices, const std::string& exactness_tag,
                      std::shared_ptr<RequestStream> stream) {
  BATON_CHECK(!choices.empty());
  const RequestId request = choices.front().key.request;
  router::Commands commands;
  streams_.emplace(request, stream);
  const Status started = router_.start(std::move(choices), clock_.now(), commands, exactness_tag);
  if (!started) {
    streams_.erase(request);
    stream->push_unbounded(Failed{started.error()});
    return;
  }
  carry_out(std::move(commands));
}

void OwnerLoop::client_gone(RequestId request) {
  asio::post(control_, [this, request] {
    router::Commands commands;
    streams_.erase(request);
    router_.client_gone(request, clock_.now(), commands);
    carry_out(std::move(commands));
  });
}

void OwnerLoop::stop_choice(RequestId request, Choice choice) {
  asio::post(control_, [this, request, choice] {
    router::Commands commands;
    router_.stop_choice(request, choice, clock_.now(), commands);
    carry_out(std::move(commands));
  });
}

router::Readiness OwnerLoop::readiness() const {
  std::lock_guard lock(published_mutex_);
  return readiness_;
}

std::vector<std::string> OwnerLoop::exactness_tags() const {
  std::lock_guard lock(published_mutex_);
  return exactness_tags_;
}

asio::awaitable<OwnerView> OwnerLoop::view() {
  co_return co_await asio::co_spawn(control_, copy_view(), asio::use_awaitable);
}

asio::awaitable<OwnerView> OwnerLoop::copy_view() {
  OwnerView view;
  view.now = clock_.now();
  for (const auto& [id, node] : router_.nodes().nodes()) {
    view.nodes.push_back(node);
  }
  const auto& requests = router_.history().requests();
  view.requests.assign(requests.begin(), requests.end());
  view.readiness = router_.readiness();
  co_return view;
}

void OwnerLoop::await_role(message::NodeRole role, const std::string& source) {
  router_.nodes().await_role(role, source);
  publish();
}

void OwnerLoop::expect_peer(message::NodeRole role, const std::string& address) {
  router_.nodes().expect(role, address);
  publish();
}

void OwnerLoop::retire_peer(const std::string& address) {
  router_.nodes().retire(address);
  publish();
}

void OwnerLoop::on_engine_event(message::EngineEvent&& event) {
  const NodeId local;  // empty: this process's own engine
  router::Commands commands;
  std::visit(
      Overloaded{[&](message::StepTokens& step) {
                   router_.on_tokens(local, std::move(step.tokens), clock_.now(), commands);
                 },
                 [&](message::Refused& refused) {
                   router_.on_refused(local, refused, clock_.now(), commands);
                 },
                 [&](message::Finished& finished) {
                   router_.on_finished(local, finished, clock_.now(), commands);
                 },
                 [](message::Drained&) {},
                 [](message::PrefixChanges&) { BATON_BUG("a single node watches its cache"); },
                 [](message::PrefillProgress&) { BATON_BUG("a single node made a handoff"); },
                 [](message::PrefillDone&) { BATON_BUG("a single node made a handoff"); },
                 [](message::Reserved&) { BATON_BUG("a single node reserved for a handoff"); }},
      event);
  carry_out(std::move(commands));
}

asio::awaitable<void> OwnerLoop::run_owner_events() {
  while (true) {
    auto event = co_await owner_->next();
    if (!event) {
      co_return;
    }
    on_owner_event(std::move(*event));
  }
}

void OwnerLoop::on_owner_event(handoff::OwnerEvent&& event) {
  router::Commands commands;
  const TimePoint now = clock_.now();
  std::visit(
      Overloaded{[&](handoff::NodeTokens& tokens) {
                   router_.on_tokens(tokens.node, std::move(tokens.tokens), now, commands);
                 },
                 [&](handoff::NodeRefused& refused) {
                   router_.on_refused(refused.node, refused.refused, now, commands);
                 },
                 [&](handoff::NodeFinished& finished) {
                   router_.on_finished(finished.node, finished.finished, now, commands);
                 },
                 [&](handoff::NodeLoadChanged& load) {
                   router_.on_node_load(load.node, load.load, load.draining, now);
                 },
                 [&](handoff::NodePrefixes& prefixes) {
                   router_.on_prefixes(prefixes.node, prefixes.changes);
                 },
                 [&](message::NodeUp& up) {
                   log::info("node {} at {} is up", up.info.id.value, up.info.address);
                   router_.on_node_up(up, now, commands);
                 },
                 [&](message::NodeDown& down) {
                   log::warn("node {} is down: {}", down.id.value, down.reason);
                   router_.on_node_down(down, now, commands);
                 },
                 [&](handoff::PeerUnusable& peer) {  // the transport has logged it
                   router_.nodes().unusable(peer.address, peer.error.message);
                 },
                 [&](handoff::PeerForgotten& peer) { router_.nodes().forget(peer.address); }},
      event);
  carry_out(std::move(commands));
  publish();
}

asio::awaitable<void> OwnerLoop::run_timers() {
  while (!stopped_) {
    co_await clock_.sleep_for(kTick);
    router::Commands commands;
    const TimePoint now = clock_.now();
    router_.tick(now, commands);
    carry_out(std::move(commands));
    publish();
    if (ping_interval_ > Duration::zero() && now - last_ping_ >= ping_interval_) {
      last_ping_ = now;
      for (auto& [request, stream] : streams_) {
        stream->push_unbounded(Ping{});
      }
    }
  }
}

void OwnerLoop::set_local_engine(bool ready, std::int32_t context_tokens) {
  local_context_tokens_ = context_tokens;
  router_.set_local_ready(ready);
  publish();
}

void OwnerLoop::begin_drain() {
  router_.set_draining();
  publish();
}

void OwnerLoop::fail_all(const Error& error) {
  router::Commands commands;
  auto streams = std::exchange(streams_, {});
  for (auto& [request, stream] : streams) {
    router_.client_gone(request, clock_.now(), commands);
    stream->push_unbounded(Failed{error});
  }
  carry_out(std::move(commands));
}

void OwnerLoop::publish() {
  context_tokens_ = has_engine_ ? local_context_tokens_ : router_.context_tokens();
  router::Readiness now = router_.readiness();
  std::vector<std::string> tags = router_.exactness_tags();
  std::lock_guard lock(published_mutex_);
  readiness_ = std::move(now);
  exactness_tags_ = std::move(tags);
}

void OwnerLoop::deliver(RequestId request, StreamEvent&& event, bool last) {
  const auto found = streams_.find(request);
  if (found == streams_.end()) {
    return;  // the client left
  }
  found->second->push_unbounded(std::move(event));
  if (last) {
    streams_.erase(found);
  }
}

void OwnerLoop::carry_out(router::Commands commands) {
  // A command that fails gives the router an event, whose commands follow those already there.
  while (!commands.empty()) {
    router::Commands more;
    for (router::Command& command : commands) {
      carry_out_one(std::move(command), more);
    }
    commands = std::move(more);
  }
}

void OwnerLoop::send_failed(const NodeId& node, const SequenceKey& key, const Error& error,
                            router::Commands& more) {
  if (owner_ != nullptr) {
    owner_->abort(key, error);  // the attempt's other leg, if it went out
  }
  const bool later =
      error.code != ErrorCode::kInvalidArgument && error.code != ErrorCode::kContextTooLong;
  router_.on_refused(node, {key, later, error}, clock_.now(), more);
}

void OwnerLoop::carry_out_one(router::Command&& command, router::Commands& more) {
  std::visit(
      Overloaded{
          [&](router::SendPrefill& send) {
            const Status sent =
                owner_->send_prefill(send.node, send.submit, send.decode_node, clock_.now());
            if (!sent) {
              send_failed(send.node, send.submit.key, sent.error(), more);
            }
          },
          [&](router::SendDecode& send) {
            const Status sent =
                owner_->send_decode(send.node, send.submit, send.prefill_node, clock_.now());
            if (!sent) {
              send_failed(send.node, send.submit.key, sent.error(), more);
            }
          },
          [&](router::RunLocal& run) {
            const SequenceKey key = run.submit.key;
            if (!engine_->post(message::RunLocally{std::move(run.submit)})) {
              send_failed(
                  {}, key,
                  {ErrorCode::kOverloaded, "the engine's mailbox is full; try again", "", 1'000},
                  more);
            }
          },
          [&](router::SendAbort& abort) {
            if (owner_ == nullptr) {
              (void)engine_->post(message::Abort{abort.key, abort.reason});
            } else {
              owner_->abort(abort.node, abort.key, abort.reason);
            }
          },
          [&](router::Deliver& token) {
            const RequestId request = token.token.key.request;
            deliver(request, Delivered{std::move(token.token), std::move(token.route)}, false);
          },
          [&](router::Fail& failed) { deliver(failed.request, Failed{failed.error}, true); },
          [&](router::Done& done) { deliver(done.request, Completed{}, true); }},
      command);
}

}  // namespace baton::app
