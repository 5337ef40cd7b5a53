// For the tests that put every event to every state of a role machine: a node whose role keeps
// books of leases and frames.
#pragma once

#include "baton/handoff/cells.h"
#include "baton/handoff/outbox.h"
#include "baton/handoff/role_context.h"
#include "baton/handoff/tile_plan.h"

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

}  // namespace baton::handoff::role_table
