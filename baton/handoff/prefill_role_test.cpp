// The prefill role by itself, with what it sends recorded: frames that leave while the engine
// computes, Grants that come early or late, blocks that are given back once and never too soon.
#include "baton/handoff/prefill_role.h"

#include "baton/handoff/tile_plan.h"
#include "baton/wire/digest.h"

#include <gtest/gtest.h>

#include <utility>
#include <variant>
#include <vector>

namespace baton::handoff {
namespace {

const NodeId kOwner{"router"};
const NodeId kDecode{"d"};
const SequenceKey kKey{{1, 2}, {0}, {0}};
constexpr std::int32_t kPromptTokens = 300;  // 10 tiles, 5 blocks

struct RecordedOutbox final : Outbox {
  Status control(const NodeId& to, const SequenceKey&, wire::Control message) override {
    (to == kOwner ? to_owner : to_decode).push_back(std::move(message));
    return {};
  }
  Status tokens(const NodeId&, std::uint64_t, std::vector<message::Token>) override {
    ++token_frames;
    return {};
  }
  bool engine(message::EngineCommand command) override {
    commands.push_back(std::move(command));
    return true;
  }
  void send_frame(FrameJob job) override { frames.push_back(std::move(job)); }
  void send_commit(const NodeId&, const SequenceKey&, wire::pb::Commit commit) override {
    commits.push_back(std::move(commit));
  }
  template <class T>
  [[nodiscard]] std::vector<T> all() const {
    std::vector<T> found;
    for (const message::EngineCommand& command : commands) {
      if (const auto* item = std::get_if<T>(&command)) {
        found.push_back(*item);
      }
    }
    return found;
  }
  [[nodiscard]] std::size_t released_blocks() const {
    std::size_t blocks = 0;
    for (const auto& some : all<message::ReleaseBlocks>()) {
      for (const message::BlockRange& range : some.blocks) {
        blocks += range.count;
      }
    }
    return blocks;
  }
  std::vector<wire::Control> to_owner;
  std::vector<wire::Control> to_decode;
  std::vector<message::EngineCommand> commands;
  std::vector<FrameJob> frames;
  std::vector<wire::pb::Commit> commits;
  int token_frames = 0;
};

// A frame is a block of 256 KiB.
kv::KvLayout layout() {
  kv::KvLayout result;
  result.block_tokens = 64;
  kv::KvGroup group;
  group.layers = {0, 1, 2, 3};
  group.kv_heads = 4;
  group.head_dim = 32;
  group.dtype = kv::KvDtype::kF32;
  result.groups.push_back(group);
  return result;
}

struct Fixture {
  Fixture() {
    options.self = NodeId{"p"};
    for (const NodeId& peer : {kOwner, kDecode}) {
      message::NodeInfo info;
      info.id = peer;
      leases.on_peer_up(info, 64, now);
    }
    message::Submit submit;
    submit.key = kKey;
    submit.prompt.assign(kPromptTokens, 7);
    submit.max_tokens = 8;
    role.handle(PrefillRoleRequest{submit, kDecode, kOwner}, now);
  }
  void grant(std::uint32_t cached_tiles = 0) {
    wire::pb::Grant message;
    for (const auto& range :
         tiles_lacking(own, kPromptTokens, static_cast<std::int32_t>(cached_tiles * 32))) {
      *message.add_ranges() = range;
    }
    role.handle(GrantInput{kDecode, key, message}, now);
  }
  // The engine gives blocks, of which some rows are complete.
  std::shared_ptr<message::LeaseClaim> lend(std::uint64_t lease, std::int32_t computed) {
    message::PrefillProgress progress;
    progress.key = key;
    progress.computed_tokens = computed;
    progress.blocks.lease = {lease};
    progress.blocks.claim = std::make_shared<message::LeaseClaim>();
    const std::size_t bytes = own.block_bytes(0);
    progress.blocks.tables.resize(1);
    for (std::uint32_t i = 0; i < 5; ++i) {
      progress.blocks.tables[0].push_back(
          {kv::BlockId{i}, std::span(memory).subspan(i * bytes, bytes)});
    }
    auto claim = progress.blocks.claim;
    role.handle(std::move(progress), now);
    return claim;
  }
  // Another prompt for the same decode node, granted and lent: whether its layers are wanted.
  bool begin_next(std::uint64_t id, std::int32_t computed_tokens) {
    message::Submit submit;
    submit.key = {{id, 0}, {0}, {0}};
    submit.prompt.assign(kPromptTokens, 7);
    submit.max_tokens = 8;
    role.handle(PrefillRoleRequest{submit, kDecode, kOwner}, now);
    key = submit.key;
    grant();
    return lend(id, computed_tokens)->wants_layers();
  }
  void computed(std::int32_t tokens) {
    role.handle(message::PrefillProgress{kKey, tokens, {}}, now);
  }
  void done(message::FinishReason finish = message::FinishReason::kNone) {
    message::Token token;
    token.key = kKey;
    token.token = 9;
    token.finish = finish;
    role.handle(message::PrefillDone{kKey, {token}, kPromptTokens}, now);
  }
  void sent(std::uint64_t number, bool well = true) {
    FrameSent answer{kKey, number, BulkSent{}};
    if (!well) {
      answer.result = fail(ErrorCode::kPeerLost, "reset");
    }
    role.handle(std::move(answer), now);
  }
  void ack(std::uint32_t first, std::uint32_t tiles) {
    wire::pb::Ack message;
    auto* range = message.add_ranges();
    range->set_first_tile(first);
    range->set_tiles(tiles);
    role.handle(AckInput{kDecode, kKey, message}, now);
  }
  void ack_all() {
    wire::pb::Ack message;
    message.set_all(true);
    role.handle(AckInput{kDecode, kKey, message}, now);
  }

  CoordinatorOptions options;
  kv::KvLayout own = layout();
  RecordedOutbox outbox;
  Leases leases{options};
  Tombstones tombstones;
  HandoffStats stats;
  RoleContext context{options, own, outbox, leases, tombstones, stats};
  PrefillRole role{context};
  std::vector<std::byte> memory{5 * own.block_bytes(0)};
  SequenceKey key = kKey;
  TimePoint now{};
};

TEST(prefill_role, frames_leave_while_the_engine_computes) {
  Fixture f;
  f.grant();
  f.lend(5, 0);
  EXPECT_EQ(f.outbox.frames.size(), 0U);
  f.computed(128);
  ASSERT_EQ(f.outbox.frames.size(), 2U);
  EXPECT_EQ(f.outbox.frames[1].blocks.first_tile, 2U);
  EXPECT_EQ(f.outbox.frames[1].tiles.size(), 1U);  // a whole block is one span
  EXPECT_EQ(f.outbox.frames[1].tiles[0].data(), f.memory.data() + f.own.block_bytes(0));
  f.computed(256);
  EXPECT_EQ(f.outbox.frames.size(), 4U);
  for (std::uint64_t number = 0; number < 4; ++number) {
    f.sent(number);
  }
  EXPECT_TRUE(f.outbox.commits.empty());
  f.done();
  EXPECT_EQ(f.outbox.token_frames, 1);
  EXPECT_EQ(f.outbox.frames.size(), 5U);
  EXPECT_TRUE(f.outbox.commits.empty());  // a frame is under way
  f.sent(4);
  ASSERT_EQ(f.outbox.commits.size(), 1U);
  EXPECT_EQ(f.outbox.commits[0].frames(), 5U);
  EXPECT_EQ(f.outbox.commits[0].payload_bytes(), f.own.handoff_bytes(kPromptTokens));
  f.role.handle(CommitSent{kKey, {}}, f.now);
  f.ack_all();
  EXPECT_EQ(f.outbox.all<message::Release>().size(), 1U);
  EXPECT_EQ(f.outbox.all<message::Abort>().size(), 0U);
  EXPECT_EQ(f.role.count(), 0U);
  EXPECT_EQ(f.stats.ok, 1U);
  EXPECT_EQ(f.stats.whole.counts[0], 1U);
}

// Layers of the last chunk leave while it is computed where the way is slow; the time that Acks
// take tells.
TEST(prefill_role, on_a_slow_way_layers_leave_while_the_last_chunk_is_computed) {
  for (const bool slow : {false, true}) {
    Fixture f;
    f.options.slow_way_us = slow ? 0 : 3'000;
    f.grant();
    const auto claim = f.lend(5, 0);
    EXPECT_EQ(claim->wants_layers(), slow);
    f.computed(256);
    const std::size_t before = f.outbox.frames.size();
    for (std::uint64_t number = 0; number < before; ++number) {
      f.sent(number);
    }
    const auto layers = [&](std::uint32_t count) {
      message::PrefillProgress progress{kKey, 256, {}};
      progress.layers = {count};
      progress.elapsed = std::chrono::milliseconds(4 * count);
      f.role.handle(std::move(progress), f.now);
    };
    layers(1);
    EXPECT_EQ(f.outbox.frames.size(), before + (slow ? 1 : 0));
    layers(3);
    EXPECT_EQ(f.outbox.frames.size(), before + (slow ? 3 : 0));
    f.done();
    EXPECT_EQ(f.outbox.frames.size(), before + (slow ? 4 : 1));
    TileCoverage coverage(f.own, tiles_needed(f.own, kPromptTokens));
    for (const FrameJob& job : f.outbox.frames) {
      EXPECT_TRUE(coverage.mark(job.blocks));
    }
    EXPECT_TRUE(coverage.complete());
    EXPECT_EQ(f.stats.layer_frames, slow ? 4U : 0U);
  }
}

// Two frames whose Acks take 20 ms: of the next prompt the last blocks go by the tile, and layers
// are wanted. When that node has gone nothing is known of the way.
TEST(prefill_role, a_slow_way_is_known_by_its_acks) {
  Fixture f;
  f.grant();
  f.lend(5, 0);
  f.computed(64);
  f.sent(0);
  f.now += std::chrono::milliseconds(20);
  f.ack(0, 2);
  EXPECT_TRUE(f.begin_next(9, 0));
  f.role.handle(PeerDown{kDecode, {ErrorCode::kPeerLost, "gone"}}, f.now);
  EXPECT_FALSE(f.begin_next(10, 0));
}

// Nor is an Ack that names what was acked before.
TEST(prefill_role, an_ack_of_nothing_new_says_nothing_of_the_way) {
  Fixture f;
  const auto ack = [&](const SequenceKey& key) {
    wire::pb::Ack message;
    message.add_ranges()->set_tiles(2);
    f.role.handle(AckInput{kDecode, key, message}, f.now);
  };
  EXPECT_FALSE(f.begin_next(9, 64));
  const SequenceKey slow = f.key;
  f.now += std::chrono::milliseconds(200);  // the machine was busy
  ack(slow);
  EXPECT_TRUE(f.begin_next(10, 64));
  f.now += std::chrono::microseconds(200);  // and is no longer: 1.3 GB/s
  ack(f.key);
  EXPECT_FALSE(f.begin_next(11, 64));
  for (int i = 0; i < 8; ++i) {
    ack(slow);
  }
  EXPECT_FALSE(f.begin_next(12, 64));
}

TEST(prefill_role, layers_are_not_wanted_when_told_to_wait_for_the_end) {
  Fixture f;
  f.options.stream_kv = false;
  f.options.slow_way_us = 0;
  const auto claim = f.lend(5, 0);
  f.grant();
  f.computed(256);
  EXPECT_FALSE(claim->wants_layers());
}

TEST(prefill_role, nothing_leaves_before_the_end_when_told_so) {
  Fixture f;
  f.options.stream_kv = false;
  f.grant();
  f.lend(5, 0);
  f.computed(256);
  EXPECT_TRUE(f.outbox.frames.empty());
  f.done();
  EXPECT_EQ(f.outbox.token_frames, 1);
  std::size_t number = 0;
  for (; number < f.outbox.frames.size(); ++number) {
    f.sent(number);
  }
  EXPECT_EQ(number, 5U);
  ASSERT_EQ(f.outbox.commits.size(), 1U);
  EXPECT_EQ(f.outbox.commits[0].payload_bytes(), f.own.handoff_bytes(kPromptTokens));
}

TEST(prefill_role, a_grant_that_comes_late_finds_everything) {
  for (const bool after_the_end : {false, true}) {
    Fixture f;
    f.lend(5, 64);  // a cached prefix
    f.computed(192);
    if (after_the_end) {
      f.done();
      EXPECT_EQ(f.outbox.token_frames, 1);  // index 0 waits for nobody
    }
    EXPECT_TRUE(f.outbox.frames.empty());
    f.grant();
    EXPECT_EQ(f.outbox.frames.size(), after_the_end ? 5U : 3U);
  }
}

TEST(prefill_role, a_cached_prefix_leaves_before_anything_is_computed) {
  Fixture f;
  f.grant();
  f.lend(5, 192);
  EXPECT_EQ(f.outbox.frames.size(), 3U);
}

TEST(prefill_role, sends_only_what_is_lacking) {
  Fixture f;
  f.grant(5);
  f.lend(5, 192);
  ASSERT_EQ(f.outbox.frames.size(), 1U);
  EXPECT_EQ(f.outbox.frames[0].blocks.first_tile, 5U);
  EXPECT_EQ(f.outbox.released_blocks(), 2U);  // those before it are not read at all
}

// Until the Grant the engine may take the blocks back; what it lends then is used.
TEST(prefill_role, blocks_that_were_taken_back_come_again) {
  Fixture f;
  const auto first = f.lend(5, 0);
  f.computed(128);
  EXPECT_TRUE(first->revoke());
  f.grant();
  EXPECT_TRUE(f.outbox.frames.empty());
  const auto second = f.lend(6, 64);
  EXPECT_EQ(f.outbox.frames.size(), 1U);
  EXPECT_FALSE(second->revoke());
  f.done();
  for (std::uint64_t number = 0; number < 5; ++number) {
    f.sent(number);
  }
  f.role.handle(CommitSent{kKey, {}}, f.now);
  f.ack_all();
  const auto released = f.outbox.all<message::Release>();
  ASSERT_EQ(released.size(), 1U);
  EXPECT_EQ(released[0].lease.value, 6U);
}

TEST(prefill_role, blocks_are_returned_when_sent_and_acked) {
  Fixture f;
  f.grant();
  f.lend(5, 256);
  ASSERT_EQ(f.outbox.frames.size(), 4U);
  f.ack(0, 2);
  EXPECT_EQ(f.outbox.released_blocks(), 0U);  // our write has not ended
  f.sent(0);
  EXPECT_EQ(f.outbox.released_blocks(), 1U);
  f.sent(1);
  f.ack(2, 2);
  EXPECT_EQ(f.outbox.released_blocks(), 2U);
  EXPECT_TRUE(f.outbox.all<message::Release>().empty());
  wire::pb::Ack wild;
  wild.add_ranges()->set_first_tile(1'000'000);
  f.role.handle(AckInput{kDecode, kKey, wild}, f.now);
  f.role.handle(AckInput{kOwner, kKey, wild}, f.now);
  EXPECT_EQ(f.stats.protocol_errors, 2U);
}

// Ended while bytes leave: the engine stops at once, the blocks stay until the last write ended.
TEST(prefill_role, an_end_waits_for_the_bytes_under_way) {
  for (const int how : {0, 1, 2, 3}) {
    Fixture f;
    f.grant();
    f.lend(5, 128);
    ASSERT_EQ(f.outbox.frames.size(), 2U);
    if (how == 0) {
      f.role.handle(AbortInput{kOwner, kKey, {ErrorCode::kCancelled, "gone"}, true}, f.now);
    } else if (how == 1) {
      f.role.handle(PeerDown{kDecode, {ErrorCode::kPeerLost, "reset"}}, f.now);
    } else if (how == 2) {
      f.sent(0, false);  // one write failed
    } else {
      f.done(message::FinishReason::kStop);
      EXPECT_EQ(f.outbox.commits.size(), 1U);
    }
    EXPECT_EQ(f.outbox.all<message::Abort>().size(), how == 3 ? 0U : 1U);
    EXPECT_TRUE(f.outbox.all<message::Release>().empty()) << how;
    f.computed(192);  // was under way
    EXPECT_EQ(f.outbox.frames.size(), 2U);
    if (how != 2) {
      f.sent(0);
    }
    EXPECT_TRUE(f.outbox.all<message::Release>().empty()) << how;
    f.sent(1, false);
    EXPECT_EQ(f.outbox.all<message::Release>().size(), 1U) << how;
    EXPECT_EQ(f.role.count(), 0U);
  }
}

TEST(prefill_role, blocks_that_come_after_the_end_are_given_back) {
  Fixture f;
  f.role.handle(AbortInput{kOwner, kKey, {ErrorCode::kCancelled, "gone"}, true}, f.now);
  EXPECT_EQ(f.role.count(), 0U);
  f.lend(5, 0);
  EXPECT_EQ(f.outbox.all<message::Release>().size(), 1U);
  f.computed(64);
  EXPECT_EQ(f.outbox.all<message::Release>().size(), 1U);
}

TEST(prefill_role, a_grant_for_other_tiles_ends_the_handoff) {
  Fixture f;
  f.lend(5, 128);
  wire::pb::Grant wild;
  wild.add_ranges()->set_tiles(11);
  f.role.handle(GrantInput{kDecode, kKey, wild}, f.now);
  EXPECT_EQ(f.role.count(), 0U);
  EXPECT_TRUE(f.outbox.frames.empty());
  EXPECT_EQ(f.outbox.to_owner.size(), 1U);
  EXPECT_EQ(f.outbox.to_decode.size(), 1U);
}

// A decode node that expects other tokens would keep tiles that every later prompt with them finds.
TEST(prefill_role, a_grant_for_other_tokens_ends_the_handoff) {
  Fixture f;
  f.lend(5, 128);
  wire::pb::Grant grant;
  *grant.add_ranges() = tiles_lacking(f.own, kPromptTokens, 0).front();
  grant.set_tokens_digest(wire::tokens_digest(std::vector<TokenId>(kPromptTokens, 8), {}));
  f.role.handle(GrantInput{kDecode, kKey, grant}, f.now);
  EXPECT_EQ(f.role.count(), 0U);
  EXPECT_TRUE(f.outbox.frames.empty());
  EXPECT_EQ(f.outbox.to_owner.size(), 1U);
  EXPECT_EQ(f.outbox.to_decode.size(), 1U);
}

}  // namespace
}  // namespace baton::handoff
