// The half of ServingCoordinator that sorts what comes in: transport events, control messages,
// engine events. Each lands at one machine; none can end a loop.
#include "baton/base/check.h"
#include "baton/base/log.h"
#include "baton/handoff/convert.h"
#include "baton/handoff/coordinator_impl.h"

#include <utility>

namespace baton::handoff {
namespace {

namespace pb = wire::pb;

constexpr std::int64_t kRetryAfterMs = 1'000;  // about the time in which some sequences end

template <class... Cases>
struct Overloaded : Cases... {
  using Cases::operator()...;
};

}  // namespace

void ServingCoordinator::Impl::on_transport(TransportEvent event) {
  std::visit(Overloaded{
                 [&](PeerUp&& up) {
                   log::info("node {} is connected", up.info.id.value);
                   leases_.on_peer_up(up.info, up.block_tokens, clock_.now());
                   owner_.on_peer_up(up.info);
                   reports_.forget(up.info.id);
                   to_decode(std::move(up));
                 },
                 [&](PeerDown&& down) { on_peer_down(down); },
                 [&](PeerUnusable&& unusable) { owner_.on_peer_unusable(std::move(unusable)); },
                 [&](PeerForgotten&& gone) { owner_.on_peer_forgotten(std::move(gone)); },
                 [&](ControlReceived&& received) {
                   on_control(received.peer, received.key, std::move(received.message));
                 },
                 [&](BlocksReceived&& frame) { to_decode(std::move(frame)); },
                 [&](CommitReceived&& commit) { to_decode(std::move(commit)); },
             },
             std::move(event));
}

void ServingCoordinator::Impl::on_control(const NodeId& from, const SequenceKey& key,
                                          wire::Control message) {
  std::visit(
      Overloaded{
          [&](pb::Prefill&& prefill) {
            const NodeId decode_node{prefill.decode_node()};
            auto submit =
                admit(from, key, prefill.reply_to(), prefill.decode_node(), prefill.request());
            if (submit && decode_node.value.empty()) {
              active_.run_locally(*std::move(submit), from, clock_.now());
            } else if (submit) {
              to_prefill(PrefillRoleRequest{*std::move(submit), decode_node, from});
            }
          },
          [&](pb::Decode&& decode) {
            const NodeId prefill_node{decode.prefill_node()};
            auto submit =
                admit(from, key, decode.reply_to(), decode.prefill_node(), decode.request());
            if (submit && prefill_node.value.empty()) {
              active_.run_locally(*std::move(submit), from, clock_.now());
            } else if (submit) {
              to_decode(DecodeRoleHandoff{*std::move(submit), prefill_node, from});
            }
          },
          [&](pb::Grant&& grant) {
            to_prefill(GrantInput{from, key, std::move(grant)});
          },
          [&](pb::Ack&& ack) {
            to_prefill(AckInput{from, key, std::move(ack)});
          },
          [&](pb::Tokens&& tokens) { on_tokens(from, tokens); },
          [&](pb::Refused&& refused) { owner_.on_refused(from, refused_from_wire(key, refused)); },
          [&](pb::Finished&& finished) {
            owner_.on_finished(from, finished_from_wire(key, finished));
          },
          [&](pb::Abort&& abort) {
            on_abort({from, key, abort_from_wire(abort), true});
          },
          [&](pb::Beat&& beat) { on_beat(from, beat); },
          [&](pb::Cached&& cached) { owner_.on_cached(from, cached); },
      },
      std::move(message));
}

void ServingCoordinator::Impl::refuse(const NodeId& to, const SequenceKey& key, bool later,
                                      const Error& error) {
  control(to, key, refused_to_wire(later, error));
}

std::optional<message::Submit> ServingCoordinator::Impl::admit(const NodeId& from,
                                                               const SequenceKey& key,
                                                               const std::string& reply_to,
                                                               const std::string& counterpart,
                                                               const pb::Request& request) {
  if (tombstones_.covers(key) || prefill_.holds(key) || decode_.holds(key) || active_.holds(key)) {
    ++stats_.stale_messages;
    return std::nullopt;
  }
  const auto never = [&](const Error& error) {
    ++stats_.protocol_errors;
    refuse(from, key, false, error);
    return std::nullopt;
  };
  if (reply_to != from.value) {
    return never({ErrorCode::kProtocol, "reply_to must be the node that sends the request"});
  }
  if (counterpart == options_.self.value) {
    return never({ErrorCode::kProtocol, "a node cannot hand off to itself: leave the name empty"});
  }
  if (!engine_) {
    return never({ErrorCode::kProtocol, "this node has no engine"});
  }
  auto submit = request_from_wire(key, request);
  if (!submit) {
    return never(std::move(submit).error());
  }
  if (draining_) {
    refuse(from, key, true, {ErrorCode::kUnavailable, "the node is shutting down"});
    return std::nullopt;
  }
  if (prefill_.count() + decode_.count() + active_.count() >= options_.max_sequences) {
    refuse(from, key, true,
           {ErrorCode::kOverloaded, "the node holds too many sequences", {}, kRetryAfterMs});
    return std::nullopt;
  }
  if (key.epoch.value > 0) {
    on_abort({std::nullopt,
              {key.request, key.choice, {key.epoch.value - 1}},
              {ErrorCode::kCancelled, "a later attempt replaces this one"},
              true});
  }
  return *std::move(submit);
}

void ServingCoordinator::Impl::on_tokens(const NodeId& from, const pb::Tokens& tokens) {
  std::vector<message::Token> taken;
  for (const pb::Token& item : tokens.tokens()) {
    auto token = token_from_wire(item);
    if (token) {
      taken.push_back(*std::move(token));
    } else {
      ++stats_.protocol_errors;
    }
  }
  owner_.on_tokens(from, tokens.step(), std::move(taken));
}

void ServingCoordinator::Impl::on_beat(const NodeId& from, const pb::Beat& beat) {
  const std::vector<LostSequence> lost = leases_.on_beat(from, beat, clock_.now());
  if (const Peer* peer = leases_.find(from)) {
    owner_.on_load(from, peer->load, peer->draining);
    if (engine_) {
      reports_.on_beat(from, beat.cached_asks(), beat.cached_heard());
    }
  }
  for (const LostSequence& each : lost) {
    on_lost(each);
  }
}

void ServingCoordinator::Impl::on_abort(const AbortInput& abort) {
  tombstones_.add(abort.key, clock_.now());
  active_.on_abort(abort, clock_.now());
  to_prefill(abort);
  to_decode(abort);
}

void ServingCoordinator::Impl::on_peer_down(const PeerDown& down) {
  if (leases_.find(down.peer) == nullptr) {
    return;  // already judged dead by missing Beats
  }
  log::warn("node {} is gone: {}", down.peer.value, down.reason.message);
  leases_.on_peer_down(down.peer);
  owner_.on_peer_down(down.peer, down.reason);
  reports_.forget(down.peer);
  active_.on_peer_down(down.peer, clock_.now());
  to_prefill(down);
  to_decode(down);
}

void ServingCoordinator::Impl::on_lost(const LostSequence& lost) {
  log::warn("sequence {}: {}", to_string(lost.key), lost.reason.message);
  if (lost.kind == WatchKind::kOwnedLeg) {
    owner_.on_lost(lost.peer, lost.key, lost.reason);
    return;
  }
  if (lost.kind == WatchKind::kOwner) {
    active_.on_lost(lost, clock_.now());
  }
  to_prefill(lost);
  to_decode(lost);
}

void ServingCoordinator::Impl::drain_engine() {
  for (message::EngineEvent& event : engine_->events->drain()) {
    on_engine(std::move(event));
  }
  settle();
}

void ServingCoordinator::Impl::on_engine(message::EngineEvent event) {
  std::visit(
      Overloaded{
          [&](message::StepTokens&& step) { active_.on_step(std::move(step), clock_.now()); },
          [&](message::PrefillProgress&& progress) { to_prefill(std::move(progress)); },
          [&](message::PrefillDone&& done) { to_prefill(std::move(done)); },
          [&](message::Reserved&& reserved) { to_decode(std::move(reserved)); },
          [&](message::Refused&& refused) {
            active_.on_refused(refused, clock_.now());
            to_prefill(refused);
            to_decode(std::move(refused));
          },
          [&](message::Finished&& finished) {
            active_.on_finished(finished, clock_.now());
            to_prefill(finished);
            to_decode(std::move(finished));
          },
          [&](message::PrefixChanges&& changes) { reports_.on_changes(changes); },
          [&](message::Drained&&) { log::info("the engine is drained"); },
      },
      std::move(event));
}

}  // namespace baton::handoff
