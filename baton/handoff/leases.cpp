#include "baton/handoff/leases.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>

namespace baton::handoff {
namespace {

// Two Beats in a row: one may have been on its way when the message was delivered.
constexpr int kAbsencesToLose = 2;

SequenceKey held_key(const wire::pb::Held& held) {
  return {{held.request_high(), held.request_low()}, {held.choice()}, {held.epoch()}};
}

}  // namespace

void Leases::on_peer_up(const message::NodeInfo& info, std::int32_t block_tokens, TimePoint now) {
  Entry& entry = peers_[info.id];
  entry = Entry{};
  entry.peer.info = info;
  entry.peer.block_tokens = block_tokens;
  entry.last_beat = now;
  entry.last_turn = now;
}

void Leases::on_peer_down(const NodeId& peer) {
  peers_.erase(peer);
  watches_.erase(peer);
}

const Peer* Leases::find(const NodeId& peer) const {
  const auto found = peers_.find(peer);
  return found == peers_.end() ? nullptr : &found->second.peer;
}

std::vector<NodeId> Leases::peers() const {
  std::vector<NodeId> ids;
  ids.reserve(peers_.size());
  for (const auto& [id, entry] : peers_) {
    ids.push_back(id);
  }
  return ids;
}

void Leases::watch(const NodeId& peer, WatchKind kind, const SequenceKey& key, bool certain,
                   std::int64_t grace_ms, TimePoint now) {
  if (peer == options_.self) {
    return;  // what runs here is seen directly
  }
  Watch watch;
  watch.since = now;
  watch.listed = certain;
  watch.certain_from = now + milliseconds(grace_ms);
  watches_[peer][{key, kind}] = watch;
}

Leases::Watch* Leases::find_watch(const NodeId& peer, WatchKind kind, const SequenceKey& key) {
  const auto of_peer = watches_.find(peer);
  if (of_peer == watches_.end()) {
    return nullptr;
  }
  const auto found = of_peer->second.find({key, kind});
  return found == of_peer->second.end() ? nullptr : &found->second;
}

void Leases::keep_listing_only(const NodeId& peer, WatchKind kind, const SequenceKey& key) {
  if (Watch* watch = find_watch(peer, kind, key)) {
    watch->counts = false;
  }
}

void Leases::unwatch(const NodeId& peer, WatchKind kind, const SequenceKey& key) {
  const auto of_peer = watches_.find(peer);
  if (of_peer == watches_.end()) {
    return;
  }
  of_peer->second.erase({key, kind});
  if (of_peer->second.empty()) {
    watches_.erase(of_peer);
  }
}

std::size_t Leases::watch_count() const {
  std::size_t count = 0;
  for (const auto& [peer, watches] : watches_) {
    count += watches.size();
  }
  return count;
}

std::vector<LostSequence> Leases::on_beat(const NodeId& peer, const wire::pb::Beat& beat,
                                          TimePoint now) {
  const auto found = peers_.find(peer);
  if (found == peers_.end()) {
    return {};
  }
  Entry& entry = found->second;
  entry.last_beat = now;
  if (beat.turn_count() != entry.peer.load.turn_count) {
    entry.last_turn = now;
  }
  entry.peer.load = {beat.running(),      beat.waiting(),    beat.free_blocks(),
                     beat.total_blocks(), beat.step_count(), beat.turn_count()};
  entry.peer.draining = beat.draining();

  std::vector<LostSequence> lost;
  const auto of_peer = watches_.find(peer);
  if (of_peer == watches_.end()) {
    return lost;
  }
  std::unordered_set<SequenceKey> held;
  for (const wire::pb::Held& item : beat.held()) {
    held.insert(held_key(item));
  }
  for (auto& [id, watch] : of_peer->second) {
    if (held.contains(id.first)) {
      watch.listed = true;
      watch.absences = 0;
    } else if (watch.counts && (watch.listed || now >= watch.certain_from)) {
      if (++watch.absences >= kAbsencesToLose) {
        watch.counts = false;  // reported once; whoever handles it unwatches
        lost.push_back({peer, id.first, id.second,
                        Error{ErrorCode::kPeerLost,
                              fmt::format("node {} no longer has the sequence", peer.value)}});
      }
    }
  }
  return lost;
}

std::vector<LostSequence> Leases::stalled(TimePoint now) {
  std::vector<LostSequence> lost;
  for (auto& [peer, watches] : watches_) {
    const auto found = peers_.find(peer);
    if (found == peers_.end()) {
      continue;
    }
    for (auto& [id, watch] : watches) {
      if (id.second != WatchKind::kOwnedLeg || !watch.counts) {
        continue;
      }
      const TimePoint since = std::max(found->second.last_turn, watch.since);
      if (now - since >= milliseconds(options_.stall_ms)) {
        watch.counts = false;
        lost.push_back({peer, id.first, id.second,
                        Error{ErrorCode::kDeadlineExceeded,
                              fmt::format("the engine of node {} stood still for {} ms", peer.value,
                                          options_.stall_ms)}});
      }
    }
  }
  return lost;
}

std::vector<NodeId> Leases::take_dead(TimePoint now) {
  std::vector<NodeId> dead;
  for (const auto& [id, entry] : peers_) {
    if (now - entry.last_beat >= milliseconds(options_.lease_ms)) {
      dead.push_back(id);
    }
  }
  return dead;
}

void Leases::forgive(TimePoint now) {
  for (auto& [id, entry] : peers_) {
    entry.last_beat = now;
    entry.last_turn = now;
  }
}

bool Leases::take_beat_due(TimePoint now) {
  if (now < next_beat_) {
    return false;
  }
  next_beat_ = now + milliseconds(options_.beat_interval_ms);
  return true;
}

wire::pb::Beat Leases::beat_for(const NodeId& peer, const message::NodeLoad& load,
                                bool draining) const {
  wire::pb::Beat beat;
  beat.set_running(load.running);
  beat.set_waiting(load.waiting);
  beat.set_free_blocks(load.free_blocks);
  beat.set_total_blocks(load.total_blocks);
  beat.set_step_count(load.step_count);
  beat.set_turn_count(load.turn_count);
  beat.set_draining(draining);
  const auto of_peer = watches_.find(peer);
  if (of_peer == watches_.end()) {
    return beat;
  }
  SequenceKey previous;
  bool any = false;
  for (const auto& [id, watch] : of_peer->second) {
    const SequenceKey& key = id.first;
    if (any && key == previous) {
      continue;  // watched for two reasons, listed once
    }
    wire::pb::Held* held = beat.add_held();
    held->set_request_high(key.request.high);
    held->set_request_low(key.request.low);
    held->set_choice(key.choice.value);
    held->set_epoch(key.epoch.value);
    previous = key;
    any = true;
  }
  return beat;
}

}  // namespace baton::handoff
