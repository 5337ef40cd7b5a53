// The decode role by itself, with what it sends recorded: what arrives in one turn of the role is
// handled in order, so an end that follows a Commit meets a sequence that was just adopted.
#include "baton/handoff/decode_role.h"

#include "baton/handoff/convert.h"
#include "baton/handoff/tile_plan.h"
#include "baton/wire/codec.h"
#include "baton/wire/digest.h"

#include <gtest/gtest.h>

#include <utility>
#include <variant>
#include <vector>

namespace baton::handoff {
namespace {

const NodeId kOwner{"router"};
const NodeId kPrefill{"p"};
const SequenceKey kKey{{1, 2}, {0}, {1}};
constexpr std::int32_t kPromptTokens = 40;

struct RecordedOutbox final : Outbox {
  Status control(const NodeId&, const SequenceKey&, wire::Control) override { return {}; }
  Status tokens(const NodeId&, std::uint64_t, std::vector<message::Token>) override { return {}; }
  bool engine(message::EngineCommand command) override {
    commands.push_back(std::move(command));
    return true;
  }
  void send_frame(FrameJob) override {}
  void send_commit(const NodeId&, const SequenceKey&, wire::pb::Commit) override {}

  template <class T>
  [[nodiscard]] int count() const {
    int found = 0;
    for (const message::EngineCommand& command : commands) {
      found += std::holds_alternative<T>(command) ? 1 : 0;
    }
    return found;
  }
  std::vector<message::EngineCommand> commands;
};

kv::KvLayout small_layout() {
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

struct Fixture {
  Fixture() {
    options.self = NodeId{"d"};
    for (const NodeId& peer : {kOwner, kPrefill}) {
      message::NodeInfo info;
      info.id = peer;
      leases.on_peer_up(info, 64, now);
    }
  }

  // Up to the state in which only the Commit is missing.
  void receive_blocks() {
    message::Submit submit;
    submit.key = kKey;
    submit.prompt.assign(kPromptTokens, 7);
    submit.max_tokens = 8;
    role.handle(DecodeRoleHandoff{submit, kPrefill, kOwner}, now);
    message::Reserved reserved;
    reserved.key = kKey;
    reserved.kv_tokens = kPromptTokens;
    reserved.blocks.lease = {5};
    reserved.blocks.tables = {{{kv::BlockId{0}, std::span(memory)}}};
    role.handle(std::move(reserved), now);

    wire::HandoffDigest digest;
    const auto ranges = tiles_needed(layout, kPromptTokens);
    std::uint64_t bytes = 0;
    std::uint64_t sequence = 0;
    for (const wire::BlocksHeader& blocks : plan_frames(layout, ranges, 1, 1 << 20)) {
      BlocksReceived frame{kPrefill, kKey, blocks, sequence++, {}, frame_bytes(layout, blocks), {}};
      wire::FrameHeader header;
      header.type = wire::FrameType::kBlocks;
      header.key = kKey;
      frame.header = wire::encode_header(header);
      digest.add(frame.header);
      bytes += frame.payload_bytes;
      role.handle(frame, now);
    }
    commit.set_frames(sequence);
    commit.set_payload_bytes(bytes);
    commit.set_digest(digest.value());
    commit.set_kv_tokens(kPromptTokens);
    commit.set_tokens_digest(wire::tokens_digest(submit.prompt, {}));
    message::Token token;
    token.key = kKey;
    token.token = 9;
    *commit.add_first() = token_to_wire(token);
  }
  // As a role loop sees it: the Commit and what came right behind it.
  void commit_and_then(DecodeInput input) {
    receive_blocks();
    role.handle(CommitReceived{kPrefill, kKey, commit}, now);
    role.handle(std::move(input), now);
  }

  CoordinatorOptions options;
  kv::KvLayout layout = small_layout();
  RecordedOutbox outbox;
  Leases leases{options};
  Tombstones tombstones;
  HandoffStats stats;
  RoleContext context{options, layout, outbox, leases, tombstones, stats};
  ReservationTable table{layout, [](const SequenceKey&) {}};
  ActiveSequences active{context};
  DecodeRole role{context, table, active};
  std::vector<std::byte> memory{layout.block_bytes(0)};
  wire::pb::Commit commit;
  TimePoint now{};
};

TEST(decode_role, adopts_what_arrived_whole) {
  Fixture f;
  f.receive_blocks();
  f.role.handle(CommitReceived{kPrefill, kKey, f.commit}, f.now);
  EXPECT_EQ(f.outbox.count<message::Adopt>(), 1);
  EXPECT_EQ(f.outbox.count<message::Abort>(), 0);
  EXPECT_TRUE(f.active.holds(kKey));
}

TEST(decode_role, an_abort_right_behind_the_commit_ends_the_adopted_sequence) {
  Fixture f;
  f.commit_and_then(AbortInput{kOwner, kKey, {ErrorCode::kCancelled, "gone"}, true});
  EXPECT_EQ(f.outbox.count<message::Adopt>(), 1);
  EXPECT_EQ(f.outbox.count<message::Abort>(), 1);
  EXPECT_FALSE(f.active.holds(kKey));
}

TEST(decode_role, the_owner_lost_right_behind_the_commit_ends_the_adopted_sequence) {
  Fixture gone;
  gone.commit_and_then(PeerDown{kOwner, {ErrorCode::kPeerLost, "reset"}});
  EXPECT_EQ(gone.outbox.count<message::Abort>(), 1);
  EXPECT_FALSE(gone.active.holds(kKey));

  Fixture forgotten;
  LostSequence lost;
  lost.peer = kOwner;
  lost.kind = WatchKind::kOwner;
  lost.key = kKey;
  forgotten.commit_and_then(lost);
  EXPECT_EQ(forgotten.outbox.count<message::Abort>(), 1);
  EXPECT_FALSE(forgotten.active.holds(kKey));
}

TEST(decode_role, the_prefill_node_lost_behind_its_commit_changes_nothing) {
  Fixture f;
  f.commit_and_then(PeerDown{kPrefill, {ErrorCode::kPeerLost, "reset"}});
  EXPECT_EQ(f.outbox.count<message::Abort>(), 0);
  EXPECT_TRUE(f.active.holds(kKey));
}

}  // namespace
}  // namespace baton::handoff
