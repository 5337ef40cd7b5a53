// The decode role by itself, with what it sends recorded: what arrives in one turn of the role is
// handled in order, so an end that follows a Commit meets a sequence that was just adopted.
#include "baton/handoff/decode_role.h"

#include "baton/handoff/convert.h"
#include "baton/handoff/role_table_util.h"
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
  Status control(const NodeId&, const SequenceKey&, wire::Control message) override {
    messages.push_back(std::move(message));
    return {};
  }
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
  // Of the given kind, in order.
  template <class T, class Variant>
  static std::vector<T> pick(const std::vector<Variant>& from) {
    std::vector<T> found;
    for (const Variant& each : from) {
      if (const auto* item = std::get_if<T>(&each)) {
        found.push_back(*item);
      }
    }
    return found;
  }
  std::vector<message::EngineCommand> commands;
  std::vector<wire::Control> messages;
};

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
  kv::KvLayout layout = role_table::layout();
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

// A prompt of 300 tokens, 10 tiles in 5 blocks, of which the first tiles may be cached here.
struct Streamed : Fixture {
  explicit Streamed(std::int32_t cached_tokens = 0) {
    options.ack_bytes = 2 * tile_bytes;
    message::Submit submit;
    submit.key = kKey;
    submit.prompt.assign(300, 7);
    submit.max_tokens = 8;
    role.handle(DecodeRoleHandoff{submit, kPrefill, kOwner}, now);
    message::Reserved reserved;
    reserved.key = kKey;
    reserved.kv_tokens = 300;
    reserved.cached_tokens = cached_tokens;
    reserved.blocks.lease = {5};
    reserved.blocks.tables.resize(1);
    blocks.resize(5 * layout.block_bytes(0));
    for (std::uint32_t i = 0; i < 5; ++i) {
      reserved.blocks.tables[0].push_back(
          {kv::BlockId{i},
           std::span(blocks).subspan(i * layout.block_bytes(0), layout.block_bytes(0))});
    }
    role.handle(std::move(reserved), now);
  }
  void receive(std::uint32_t first_tile, std::uint32_t tiles, Status status = {}) {
    const wire::BlocksHeader header{0, 0, 1, 0, 1, first_tile, tiles, 64};
    BlocksReceived frame{kPrefill, kKey, header, next++, {}, frame_bytes(layout, header), status};
    role.handle(frame, now);
  }
  // The prefill has ended; it was of 300 times this token.
  void say_commit(TokenId prompt_token) {
    commit.set_kv_tokens(300);
    commit.set_frames(10);
    commit.set_payload_bytes(10 * tile_bytes);
    commit.set_tokens_digest(wire::tokens_digest(std::vector<TokenId>(300, prompt_token), {}));
    message::Token token;
    token.key = kKey;
    *commit.add_first() = token_to_wire(token);
    role.handle(CommitReceived{kPrefill, kKey, commit}, now);
  }
  // (first tile, tiles) of each range that was acked.
  [[nodiscard]] std::vector<std::pair<std::uint32_t, std::uint32_t>> acked() const {
    std::vector<std::pair<std::uint32_t, std::uint32_t>> ranges;
    for (const auto& ack : RecordedOutbox::pick<wire::pb::Ack>(outbox.messages)) {
      for (const auto& range : ack.ranges()) {
        ranges.emplace_back(range.first_tile(), range.tiles());
      }
    }
    return ranges;
  }
  [[nodiscard]] std::vector<std::int32_t> kept() const {
    std::vector<std::int32_t> tokens;
    for (const auto& kept : RecordedOutbox::pick<message::KvArrived>(outbox.commands)) {
      tokens.push_back(kept.tokens);
    }
    return tokens;
  }
  const std::uint64_t tile_bytes = layout.groups[0].tile_bytes();
  std::vector<std::byte> blocks;
  std::uint64_t next = 0;
};

using Ranges = std::vector<std::pair<std::uint32_t, std::uint32_t>>;

TEST(decode_role, grants_what_it_lacks) {
  for (const std::int32_t cached : {0, 96, 288}) {
    const Streamed f(cached);
    const auto grants = RecordedOutbox::pick<wire::pb::Grant>(f.outbox.messages);
    ASSERT_EQ(grants.size(), 1U);
    ASSERT_EQ(grants[0].ranges_size(), 1);
    EXPECT_EQ(grants[0].ranges(0).first_tile(), static_cast<std::uint32_t>(cached / 32));
    EXPECT_EQ(grants[0].ranges(0).first_tile() + grants[0].ranges(0).tiles(), 10U);
  }
}

TEST(decode_role, acks_ranges_and_keeps_what_has_no_gap) {
  Streamed f(32);
  f.receive(1, 1);
  EXPECT_TRUE(f.acked().empty());  // too little
  f.receive(4, 2);
  EXPECT_EQ(f.acked(), (Ranges{{1, 1}, {4, 2}}));
  EXPECT_EQ(f.kept(), std::vector<std::int32_t>{64});
  f.receive(2, 2);
  EXPECT_EQ(f.acked(), (Ranges{{1, 1}, {4, 2}, {2, 2}}));
  EXPECT_EQ(f.kept(), (std::vector<std::int32_t>{64, 192}));
  EXPECT_EQ(f.outbox.count<message::Adopt>(), 0);
}

// However it ends, what came whole and without a gap is worth keeping; the lease ends after that.
TEST(decode_role, what_arrived_is_kept_when_the_handoff_fails) {
  for (const int how : {0, 1, 2}) {
    Streamed f;
    f.receive(0, 1);
    f.receive(2, 1);
    EXPECT_EQ(f.kept(), std::vector<std::int32_t>{32});
    f.receive(1, 1);
    if (how == 0) {
      f.role.handle(PeerDown{kPrefill, {ErrorCode::kPeerLost, "reset"}}, f.now);
    } else if (how == 1) {
      f.role.handle(AbortInput{kOwner, kKey, {ErrorCode::kCancelled, "gone"}, true}, f.now);
    } else {
      f.receive(3, 1, fail(ErrorCode::kCorruptFrame, "CRC"));
    }
    EXPECT_EQ(f.kept(), (std::vector<std::int32_t>{32, 96})) << how;
    EXPECT_TRUE(std::holds_alternative<message::Release>(f.outbox.commands.back())) << how;
  }
}

TEST(decode_role, nothing_is_kept_of_who_breaks_the_protocol) {
  Streamed f;
  f.receive(0, 1);
  f.receive(0, 1);  // again
  EXPECT_TRUE(f.kept().empty());
  EXPECT_EQ(f.outbox.count<message::Release>(), 1);
}

// The KV of other tokens would be found by every later prompt.
TEST(decode_role, nothing_is_kept_of_who_computed_something_else) {
  Streamed f;
  f.receive(0, 1);
  f.say_commit(8);
  EXPECT_TRUE(f.kept().empty());
  EXPECT_EQ(f.outbox.count<message::Release>(), 1);
}

// Bytes of an ended handoff that never land: the connection has to go.
TEST(decode_role, names_the_peer_whose_bytes_do_not_land) {
  Streamed f;
  f.receive(0, 1);
  ASSERT_TRUE(f.table.accept(kPrefill, kKey, {0, 0, 1, 0, 1, 1, 1, 64}));
  f.role.handle(AbortInput{kOwner, kKey, {ErrorCode::kCancelled, "gone"}, true}, f.now);
  f.now += milliseconds(f.options.handoff_deadline_ms - 1);
  EXPECT_TRUE(f.role.stuck(f.now).empty());
  f.now += milliseconds(1);
  EXPECT_EQ(f.role.stuck(f.now), std::vector<NodeId>{kPrefill});
}

// The prefill may take long after its first tiles came; once the Commit is there, no more.
TEST(decode_role, waits_for_the_prefill_and_then_for_the_tiles) {
  Streamed f;
  f.receive(0, 1);
  f.now += milliseconds(f.options.prefill_deadline_ms - 1);
  f.role.tick(f.now);
  EXPECT_EQ(f.role.count(), 1U);
  f.say_commit(7);
  f.now += milliseconds(f.options.handoff_deadline_ms - 1);
  f.role.tick(f.now);
  EXPECT_EQ(f.role.count(), 1U);
  f.now += milliseconds(1);
  f.role.tick(f.now);
  EXPECT_EQ(f.role.count(), 0U);
}

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
