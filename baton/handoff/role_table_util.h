// For the tests that put every event to every state of a role machine: a node whose role keeps
// books of leases and frames.
#pragma once

#include "baton/handoff/cells.h"
#include "baton/handoff/outbox.h"
#include "baton/handoff/role_context.h"
#include "baton/handoff/tile_plan.h"
#include "baton/handoff/transport.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <set>
#include <utility>
#include <variant>
#include <vector>

namespace baton::handoff::role_table {

#ifdef BATON_FAILPOINTS
inline constexpr bool kCounted = true;
#else
inline constexpr bool kCounted = false;  // the tables are not filled
#endif

inline const NodeId kOwner{"router"};
inline const NodeId kOther{"the other node"};
inline const NodeId kStranger{"stranger"};
inline const SequenceKey kKey{{1, 2}, {0}, {1}};
inline const Error kWhy{ErrorCode::kPeerLost, "why"};
inline constexpr std::int32_t kPromptTokens = 100;  // 4 tiles, 2 blocks

inline kv::KvLayout layout() {
  kv::KvLayout result;
  result.block_tokens = 64;
  kv::KvGroup group;
  group.layers = {0};
  group.kv_heads = 1;
  group.head_dim = 8;
  group.dtype = kv::KvDtype::kF32;
  result.groups.push_back(group);
  return result;
}

inline message::Token token(message::FinishReason finish = message::FinishReason::kNone) {
  message::Token made;
  made.key = kKey;
  made.token = 9;
  made.finish = finish;
  return made;
}

inline message::Submit submit() {
  message::Submit made;
  made.key = kKey;
  made.prompt.assign(kPromptTokens, 7);
  made.max_tokens = 8;
  return made;
}

// What the role did: the books of leases and frames.
struct Books final : Outbox {
  Status control(const NodeId&, const SequenceKey&, wire::Control) override { return {}; }
  Status tokens(const NodeId&, std::uint64_t, std::vector<message::Token>) override { return {}; }
  bool engine(message::EngineCommand command) override {
    if (const auto* release = std::get_if<message::Release>(&command)) {
      give_back(release->lease.value);
    } else if (std::holds_alternative<message::Adopt>(command)) {
      give_back(kDecodeLease);
    }
    return true;
  }
  void send_frame(FrameJob job) override { frames.insert(job.number); }
  void send_commit(const NodeId&, const SequenceKey&, wire::pb::Commit) override { ++commits; }

  void give_back(std::uint64_t lease) {
    EXPECT_TRUE(lent.contains(lease)) << "lease " << lease << " was given back twice, or not lent";
    const bool in_use = !frames.empty() || (landing && lease == kDecodeLease);
    EXPECT_FALSE(in_use) << "blocks in use were given back";
    lent.erase(lease);
  }

  static constexpr std::uint64_t kDecodeLease = 5;
  std::set<std::uint64_t> lent;
  std::set<std::uint64_t> frames;  // under way
  int commits = 0;                 // under way
  bool landing = false;            // bytes are on their way to reserved blocks
};

struct Node {
  Node() {
    for (const NodeId& peer : {kOwner, kOther}) {
      message::NodeInfo info;
      info.id = peer;
      leases.on_peer_up(info, 64, now);
    }
  }
  std::vector<std::vector<message::LeasedBlock>> tables() {
    const std::size_t bytes = own.block_bytes(0);
    std::vector<std::vector<message::LeasedBlock>> made(1);
    for (std::uint32_t block = 0; block < 2; ++block) {
      made[0].push_back({kv::BlockId{block}, std::span(memory).subspan(block * bytes, bytes)});
    }
    return made;
  }
  CoordinatorOptions options;
  kv::KvLayout own = layout();
  Books books;
  Leases leases{options};
  Tombstones tombstones;
  HandoffStats stats;
  RoleContext context{options, own, books, leases, tombstones, stats};
  std::vector<std::byte> memory{std::vector<std::byte>(2 * own.block_bytes(0))};
  TimePoint now{};
};

inline LostSequence lost(const NodeId& peer, WatchKind kind) { return {peer, kKey, kind, kWhy}; }

inline AbortInput abort_by(std::optional<NodeId> from) {
  return {std::move(from), kKey, kWhy, true};
}

// The events that mean the same to both roles: what ends a sequence from outside.
template <class Role, class Event>
void meet_end(Role& role, Event event, TimePoint now) {
  switch (event) {
    case Event::kAbortOwner:
      role.handle(abort_by(kOwner), now);
      return;
    case Event::kAbortCounterpart:
      role.handle(abort_by(kOther), now);
      return;
    case Event::kAbortSelf:
      role.handle(abort_by(std::nullopt), now);
      return;
    case Event::kOwnerDown:
      role.handle(PeerDown{kOwner, kWhy}, now);
      return;
    case Event::kCounterpartDown:
      role.handle(PeerDown{kOther, kWhy}, now);
      return;
    case Event::kOwnerLost:
      role.handle(lost(kOwner, WatchKind::kOwner), now);
      return;
    case Event::kCounterpartLost:
      role.handle(lost(kOther, WatchKind::kCounterpart), now);
      return;
    case Event::kRefused:
      role.handle(message::Refused{kKey, true, kWhy}, now);
      return;
    case Event::kFinished:
      role.handle(message::Finished{kKey, message::FinishReason::kError, kWhy}, now);
      return;
    default:
      ADD_FAILURE() << "no event that ends a sequence: " << static_cast<int>(event);
  }
}

}  // namespace baton::handoff::role_table
