#include "baton/handoff/owner.h"

#include "baton/handoff/convert.h"
#include "baton/handoff/late.h"

#include <algorithm>
#include <utility>

namespace baton::handoff {
namespace {

// Bounded by the attempts' budgets of tokens; the number only has to be out of the way.
constexpr std::size_t kEventCapacity = 1U << 20U;

}  // namespace

Owner::Owner(asio::any_io_executor control, const CoordinatorOptions& options, Outbox& outbox,
             Leases& leases)
    : options_(options),
      outbox_(outbox),
      leases_(leases),
      events_(std::move(control), kEventCapacity) {
  if (!options_.has_owner) {
    events_.close();
  }
}

Status Owner::send_prefill(const NodeId& node, const message::Submit& submit,
                           const NodeId& decode_node, TimePoint now) {
  const LegRole role = decode_node.value.empty() ? LegRole::kLocal : LegRole::kPrefill;
  wire::pb::Prefill message;
  BATON_TRY(*message.mutable_request(), request_to_wire(submit));
  message.set_decode_node(decode_node.value);
  message.set_reply_to(options_.self.value);
  return add_leg(node, submit.key, std::move(message), role, now);
}

Status Owner::send_decode(const NodeId& node, const message::Submit& submit,
                          const NodeId& prefill_node, TimePoint now) {
  const LegRole role = prefill_node.value.empty() ? LegRole::kLocal : LegRole::kDecode;
  wire::pb::Decode message;
  BATON_TRY(*message.mutable_request(), request_to_wire(submit));
  message.set_prefill_node(prefill_node.value);
  message.set_reply_to(options_.self.value);
  return add_leg(node, submit.key, std::move(message), role, now);
}

Status Owner::add_leg(const NodeId& node, const SequenceKey& key, wire::Control message,
                      LegRole role, TimePoint now) {
  const auto found = attempts_.find(key);
  if (found == attempts_.end() && attempts_.size() >= options_.max_sequences) {
    return fail(ErrorCode::kOverloaded, "too many requests are under way");
  }
  if (find_leg(node, key) != nullptr ||
      (found != attempts_.end() && found->second.legs.size() > 1)) {
    return fail(ErrorCode::kInvalidArgument, "the attempt has this leg already");
  }
  BATON_TRY_VOID(outbox_.control(node, key, std::move(message)));
  attempts_[key].legs.push_back({node, role, false});
  leases_.watch(node, WatchKind::kOwnedLeg, key, false, options_.delivery_grace_ms, now);
  return {};
}

Owner::Leg* Owner::find_leg(const NodeId& node, const SequenceKey& key) {
  const auto found = attempts_.find(key);
  if (found == attempts_.end()) {
    return nullptr;
  }
  auto& legs = found->second.legs;
  const auto leg =
      std::find_if(legs.begin(), legs.end(), [&](const Leg& each) { return each.node == node; });
  return leg == legs.end() ? nullptr : &*leg;
}

void Owner::end_attempt(const SequenceKey& key, const NodeId& ended_by, const Error* reason) {
  const auto found = attempts_.find(key);
  if (found == attempts_.end()) {
    return;
  }
  for (const Leg& leg : found->second.legs) {
    leases_.unwatch(leg.node, WatchKind::kOwnedLeg, key);
    if (reason != nullptr && leg.node != ended_by) {
      outbox_.control(leg.node, key, abort_to_wire(*reason));
    }
  }
  attempts_.erase(found);
}

void Owner::abort(const SequenceKey& key, const Error& reason) {
  for (const SequenceKey& named : keys_named_by(attempts_, key)) {
    BATON_CELLS(count_cell(named, cells::OwnerEvent::kAbortAll));
    end_attempt(named, NodeId{}, &reason);
  }
}

void Owner::abort(const NodeId& node, const SequenceKey& key, const Error& reason) {
  for (const SequenceKey& named : keys_named_by(attempts_, key)) {
    BATON_CELLS(count_cell(named, cells::OwnerEvent::kAbortLeg));
    auto& legs = attempts_.at(named).legs;
    const auto removed = std::erase_if(legs, [&](const Leg& leg) { return leg.node == node; });
    if (removed > 0) {
      leases_.unwatch(node, WatchKind::kOwnedLeg, named);
      outbox_.control(node, named, abort_to_wire(reason));
    }
    const bool nothing_follows = std::all_of(legs.begin(), legs.end(), is_over);
    if (nothing_follows) {  // a prefill node may still hold KV for the leg that is gone
      end_attempt(named, NodeId{}, &reason);
    }
  }
}

std::vector<OwnerEvent> Owner::drain() {
  std::vector<OwnerEvent> events;
  while (auto event = events_.try_pop()) {
    events.push_back(*std::move(event));
  }
  return events;
}

bool Owner::take_token(const NodeId& from, const message::Token& token) {
  BATON_CELLS(count_cell(from, token.key,
                         token.finish == message::FinishReason::kNone
                             ? cells::OwnerEvent::kToken
                             : cells::OwnerEvent::kLastToken));
  Leg* leg = find_leg(from, token.key);
  if (leg == nullptr) {
    return false;
  }
  if (leg->role == LegRole::kPrefill) {
    // It may still be sending KV: it stays listed, but how that ends is the decode node's to tell.
    leases_.keep_listing_only(from, WatchKind::kOwnedLeg, token.key);
  } else if (leg->role == LegRole::kDecode) {
    begin_decoding(token.key);
  }
  leg->answered = true;
  return true;
}

void Owner::on_tokens(const NodeId& from, std::uint64_t step, std::vector<message::Token> tokens) {
  std::erase_if(tokens, [&](const message::Token& token) { return !take_token(from, token); });
  if (tokens.empty()) {
    return;
  }
  for (const message::Token& token : tokens) {
    if (token.finish != message::FinishReason::kNone) {
      end_attempt(token.key, from, nullptr);
    }
  }
  events_.push_unbounded(NodeTokens{from, step, std::move(tokens)});
}

// Its own index 0 may still be on the way, or lost with it.
void Owner::begin_decoding(const SequenceKey& key) {
  Attempt& attempt = attempts_.at(key);
  if (!std::exchange(attempt.decoding, true)) {
    for (Leg& leg : attempt.legs) {
      if (leg.role == LegRole::kPrefill) {
        leg.answered = true;
        leases_.keep_listing_only(leg.node, WatchKind::kOwnedLeg, key);
      }
    }
  }
}

bool Owner::is_end_of_attempt(const NodeId& node, const SequenceKey& key) {
  const Leg* leg = find_leg(node, key);
  if (leg == nullptr) {
    return false;
  }
  Attempt& attempt = attempts_.at(key);
  if (leg->role != LegRole::kPrefill || !attempt.decoding) {
    return true;
  }
  leases_.unwatch(node, WatchKind::kOwnedLeg, key);
  std::erase_if(attempt.legs, [&](const Leg& each) { return each.node == node; });
  return false;
}

void Owner::on_refused(const NodeId& from, message::Refused refused) {
  BATON_CELLS(count_cell(from, refused.key, cells::OwnerEvent::kRefused));
  take_refusal(from, std::move(refused));
}

void Owner::take_refusal(const NodeId& from, message::Refused refused) {
  if (is_end_of_attempt(from, refused.key)) {
    end_attempt(refused.key, from, &refused.error);
    events_.push_unbounded(NodeRefused{from, std::move(refused)});
  }
}

void Owner::on_finished(const NodeId& from, message::Finished finished) {
  BATON_CELLS(count_cell(from, finished.key, cells::OwnerEvent::kFinished));
  if (is_end_of_attempt(from, finished.key)) {
    end_attempt(finished.key, from, &finished.error);
    events_.push_unbounded(NodeFinished{from, std::move(finished)});
  }
}

void Owner::on_abort(const NodeId& from, const SequenceKey& key, const Error& reason) {
  for (const SequenceKey& named : keys_named_by(attempts_, key)) {
    BATON_CELLS(count_cell(from, named, cells::OwnerEvent::kAbort));
    // What it could not read, it will not read the next time either.
    take_refusal(from, {named, reason.code != ErrorCode::kProtocol, reason});
  }
}

void Owner::on_lost(const NodeId& node, const SequenceKey& key, const Error& reason) {
  BATON_CELLS(count_cell(node, key, cells::OwnerEvent::kLost));
  if (find_leg(node, key) != nullptr) {
    end_attempt(key, NodeId{}, &reason);
    events_.push_unbounded(NodeFinished{node, {key, message::FinishReason::kError, reason}});
  }
}

void Owner::on_peer_up(const message::NodeInfo& info) {
  if (options_.hear_cached) {
    hearings_[info.id] = {};
  }
  events_.push_unbounded(message::NodeUp{info});
}

void Owner::on_peer_down(const NodeId& peer, const Error& reason) {
  hearings_.erase(peer);
  events_.push_unbounded(message::NodeDown{peer, reason.message});
  std::vector<SequenceKey> lost;
  for (const auto& [key, attempt] : attempts_) {
    for (const Leg& leg : attempt.legs) {
      BATON_CELLS(if (leg.node == peer) { count_cell(peer, key, cells::OwnerEvent::kDown); });
      if (leg.node == peer && !is_over(leg)) {
        lost.push_back(key);
      }
    }
  }
  const Error error{ErrorCode::kPeerLost, "node " + peer.value + " is gone: " + reason.message};
  for (const SequenceKey& key : lost) {
    end_attempt(key, peer, &error);
    events_.push_unbounded(NodeFinished{peer, {key, message::FinishReason::kError, error}});
  }
}

void Owner::on_peer_unusable(PeerUnusable unusable) { events_.push_unbounded(std::move(unusable)); }

void Owner::on_peer_forgotten(PeerForgotten forgotten) {
  events_.push_unbounded(std::move(forgotten));
}

void Owner::on_load(const NodeId& node, const message::NodeLoad& load, bool draining) {
  events_.push_unbounded(NodeLoadChanged{node, load, draining});
}

void Owner::fill_beat(const NodeId& node, wire::pb::Beat& beat) const {
  if (const auto found = hearings_.find(node); found != hearings_.end()) {
    beat.set_cached_asks(found->second.asks);
    beat.set_cached_heard(found->second.next);
  }
}

void Owner::on_cached(const NodeId& node, const wire::pb::Cached& cached) {
  const auto found = hearings_.find(node);
  if (found == hearings_.end()) {
    return;  // nobody asked
  }
  Hearing& hearing = found->second;
  message::PrefixChanges changes;
  changes.restart = cached.number() == 0;
  if (cached.number() != 0 && cached.number() != hearing.next) {
    if (std::exchange(hearing.next, 0) != 0) {  // a gap: nothing of it can be relied on
      ++hearing.asks;
      changes.restart = true;
      events_.push_unbounded(NodePrefixes{node, std::move(changes)});
    }
    return;
  }
  hearing.next = cached.number() + 1;
  changes.added.assign(cached.added().begin(), cached.added().end());
  changes.removed.assign(cached.removed().begin(), cached.removed().end());
  events_.push_unbounded(NodePrefixes{node, std::move(changes)});
}

#ifdef BATON_FAILPOINTS

void Owner::count_cell(const SequenceKey& key, cells::OwnerEvent event) const {
  using State = cells::OwnerState;
  State state = State::kNone;
  if (const auto found = attempts_.find(key); found != attempts_.end()) {
    const Attempt& attempt = found->second;
    const auto is = [&](auto what) {
      return std::any_of(attempt.legs.begin(), attempt.legs.end(), what);
    };
    state = is([](const Leg& leg) { return leg.role == LegRole::kLocal; }) ? State::kAlone
            : attempt.decoding                                             ? State::kDecoding
            : is(is_over)                                                  ? State::kPrefilled
                                                                           : State::kAsked;
  }
  cells::owner().hit(state, event);
}

void Owner::count_cell(const NodeId& node, const SequenceKey& key, cells::OwnerEvent event) {
  const Leg* const leg = find_leg(node, key);
  const bool of_prefill = leg != nullptr && leg->role == LegRole::kPrefill;
  const auto place = static_cast<std::uint8_t>(event) + (of_prefill ? cells::kOfPrefill : 0);
  if (leg == nullptr) {
    cells::owner().hit(cells::OwnerState::kNone, event);  // whatever else the attempt is doing
  } else {
    count_cell(key, static_cast<cells::OwnerEvent>(place));
  }
}

#endif

void Owner::stop() {
  const Error reason{ErrorCode::kUnavailable, "the owner is shutting down"};
  while (!attempts_.empty()) {
    const SequenceKey key = attempts_.begin()->first;
    BATON_CELLS(count_cell(key, cells::OwnerEvent::kStop));
    end_attempt(key, NodeId{}, &reason);
  }
  events_.close();
}

}  // namespace baton::handoff
