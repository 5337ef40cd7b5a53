// The prefill role between an engine and a decode node that both do as they may, in random order:
// blocks lent, taken back and lent again, window groups that grow, Grants early and late, layers of
// the last chunk, Acks, and ends at any moment. Only lent blocks are read, none that was given
// back, and each lease ends.
#include "baton/base/check.h"
#include "baton/handoff/prefill_role.h"
#include "baton/handoff/tile_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <utility>
#include <variant>
#include <vector>

namespace baton::handoff {
namespace {

const NodeId kOwner{"router"};
const NodeId kDecode{"d"};

kv::KvLayout layout_of(std::mt19937& random) {
  kv::KvLayout layout;
  layout.block_tokens = 32 << (random() % 3);
  const std::uint32_t groups = 1 + random() % 2;
  for (std::uint32_t i = 0; i < groups; ++i) {
    kv::KvGroup& group = layout.groups.emplace_back();
    group.layers.resize(1 + random() % 9);
    group.kv_heads = 1;
    group.head_dim = 32;
    group.dtype = kv::KvDtype::kBf16;
    if (i == 1 || random() % 3 == 0) {
      group.kind = kv::GroupKind::kWindow;
      group.window_tokens = 2 + static_cast<std::int32_t>(random() % 200);
    }
  }
  return layout;
}

// One sequence in the engine: what it lends, and what of it was given back.
struct Lease {
  std::shared_ptr<message::LeaseClaim> claim = std::make_shared<message::LeaseClaim>();
  std::vector<std::vector<message::LeasedBlock>> tables;   // as lent
  std::set<std::pair<std::size_t, std::size_t>> returned;  // (group, block)
  bool revoked = false;
  bool released = false;
};

class World final : public Outbox {
 public:
  explicit World(std::uint32_t seed) : random_(seed), layout_(layout_of(random_)) {
    options_.self = NodeId{"p"};
    options_.stream_kv = draw(5) != 0;
    options_.slow_way_us = draw(3) == 0 ? 3'000 : draw(2) == 0 ? 0 : 1;
    options_.min_frame_bytes = draw(2) == 0 ? 1 : 20'000;
    message::NodeInfo info;
    for (const NodeId& peer : {kOwner, kDecode}) {
      info.id = peer;
      leases_.on_peer_up(info, 64, now_);
    }
    for (std::size_t group = 0; group < layout_.groups.size(); ++group) {
      memory_.emplace_back(layout_.block_bytes(group) * kMostBlocks);
    }
  }

  // ---- what the role asks for -----------------------------------------------------------------
  Status control(const NodeId&, const SequenceKey&, wire::Control) override { return {}; }
  Status tokens(const NodeId&, std::uint64_t, std::vector<message::Token>) override { return {}; }
  bool engine(message::EngineCommand command) override {
    if (const auto* some = std::get_if<message::ReleaseBlocks>(&command)) {
      Lease& lease = lent_.at(some->lease.value);
      EXPECT_FALSE(lease.released);
      for (const message::BlockRange& range : some->blocks) {
        for (std::uint32_t i = 0; i < range.count; ++i) {
          EXPECT_TRUE(lease.returned.emplace(range.group, range.first + i).second);
          EXPECT_FALSE(is_read(some->lease.value, range.group, range.first + i));
        }
      }
    } else if (const auto* all = std::get_if<message::Release>(&command)) {
      Lease& lease = lent_.at(all->lease.value);
      lease.released = true;
      EXPECT_FALSE(std::ranges::any_of(
          under_way_, [&](const auto& each) { return each.lease == all->lease.value; }));
    } else if (std::holds_alternative<message::Abort>(command)) {
      aborted_ = true;
    }
    return true;
  }
  void send_frame(FrameJob job) override {
    ASSERT_FALSE(lent_.empty());
    const auto& [id, lease] = *lent_.rbegin();
    EXPECT_FALSE(lease.revoked || lease.released);
    EXPECT_FALSE(lease.claim->revoke());
    const wire::BlocksHeader& blocks = job.blocks;
    const auto per_block = static_cast<std::uint32_t>(layout_.tiles_per_block());
    std::vector<wire::pb::TileRange> range(1);
    range[0].set_group(blocks.group);
    range[0].set_first_tile(blocks.first_tile);
    range[0].set_tiles(blocks.tiles);
    ASSERT_TRUE(tables_cover(layout_, lease.tables, range)) << "not lent";
    const auto spans = collect_spans(layout_, lease.tables[blocks.group], blocks);
    EXPECT_EQ(job.tiles.size(), spans.size());
    EXPECT_EQ(job.tiles.front().data(), spans.front().data());
    for (std::uint32_t tile = 0; tile < blocks.tiles; ++tile) {
      EXPECT_FALSE(lease.returned.contains({blocks.group, (blocks.first_tile + tile) / per_block}));
    }
    const auto end = static_cast<std::int32_t>(blocks.first_tile + blocks.tiles) * kv::kTileTokens;
    EXPECT_TRUE(std::min(end, prompt_) <= computed_ ||
                blocks.first_layer + blocks.layers <= layers_[blocks.group]);
    EXPECT_TRUE(left_->mark(blocks));
    EXPECT_TRUE(options_.stream_kv || computed_ == prompt_);
    under_way_.push_back({id, std::move(job)});
  }
  void send_commit(const NodeId&, const SequenceKey&, wire::pb::Commit commit) override {
    ++commits_;
    if (commit.first(0).finish() == wire::pb::FINISH_NONE) {
      EXPECT_TRUE(left_->complete() && under_way_.empty());
      EXPECT_EQ(commit.payload_bytes(), ranges_bytes(layout_, granted_));
    }
  }

  // ---- one prompt -----------------------------------------------------------------------------
  void run(std::uint64_t id) {
    begin(id);
    lend();
    while (computed_ < prompt_ && !over()) {
      others(draw(4));
      if (role_.count() > 0 && draw(6) == 0 && lent_.rbegin()->second.claim->revoke()) {
        lent_.rbegin()->second.revoked = true;  // for those that came before
        computed_ = 0;
        others(draw(3));
        lend();
      }
      chunk();
    }
    if (!over()) {
      done();
    }
    for (int turn = 0; role_.count() > 0; ++turn) {
      ASSERT_LT(turn, 10'000) << "never ends";
      others(1);
    }
    EXPECT_TRUE(under_way_.empty());
    for (const auto& [number, lease] : lent_) {
      EXPECT_TRUE(lease.revoked || lease.released || (aborted_ && lease.claim->revoke()))
          << "lease " << number << " is kept";
    }
  }
  [[nodiscard]] std::uint64_t ok() const { return stats_.ok; }
  [[nodiscard]] std::uint64_t layer_frames() const { return stats_.layer_frames; }

 private:
  static constexpr std::int32_t kMostBlocks = 24;
  struct UnderWay {
    std::uint64_t lease;
    FrameJob job;
  };

  std::uint32_t draw(std::uint32_t below) { return static_cast<std::uint32_t>(random_() % below); }
  std::int32_t draw_tokens() {
    return static_cast<std::int32_t>(draw(static_cast<std::uint32_t>(prompt_)));
  }
  [[nodiscard]] bool over() const { return aborted_ || role_.count() == 0; }

  void begin(std::uint64_t id) {
    prompt_ = 1 + static_cast<std::int32_t>(draw(700));
    key_ = {{id, 0}, {0}, {0}};
    computed_ = 0;
    layers_.assign(layout_.groups.size(), 0);
    lent_.clear();
    aborted_ = false;
    commits_ = 0;
    has_granted_ = false;
    granted_ = tiles_lacking(layout_, prompt_,
                             draw_tokens() / 32 * 32 * static_cast<std::int32_t>(draw(2)));
    left_.emplace(layout_, granted_);
    arrived_.emplace(layout_, granted_);
    message::Submit submit;
    submit.key = key_;
    submit.prompt.assign(static_cast<std::size_t>(prompt_), 7);
    submit.max_tokens = 8;
    role_.handle(PrefillRoleRequest{submit, kDecode, kOwner}, now_);
  }

  // The blocks that there are before row `rows` is computed.
  void grow(Lease& lease, std::int32_t rows) {
    lease.tables.resize(layout_.groups.size());
    for (std::size_t group = 0; group < layout_.groups.size(); ++group) {
      const bool full = layout_.groups[group].kind == kv::GroupKind::kFull;
      const std::int32_t first =
          layout_.groups[group].tiles_needed(prompt_).begin / layout_.tiles_per_block();
      const std::int32_t there = layout_.blocks_for(full ? prompt_ : rows);
      const std::size_t bytes = layout_.block_bytes(group);
      auto& table = lease.tables[group];
      for (auto i = static_cast<std::int32_t>(table.size()); i < there; ++i) {
        const std::span<std::byte> block =
            std::span(memory_[group]).subspan(static_cast<std::size_t>(i) * bytes, bytes);
        table.push_back(i < first ? message::LeasedBlock{kv::kNoBlock, {}}
                                  : message::LeasedBlock{{static_cast<std::uint32_t>(i)}, block});
      }
    }
  }
  void announce(std::int32_t rows, bool with_blocks) {
    message::PrefillProgress progress{key_, computed_, {}};
    if (with_blocks) {
      auto& [id, lease] = *lent_.rbegin();
      grow(lease, rows);
      progress.blocks = {{id}, lease.tables, lease.claim};
    }
    role_.handle(std::move(progress), now_);
  }
  void lend() {
    lent_.emplace(next_lease_++, Lease{});
    computed_ = draw(3) == 0 ? draw_tokens() / 32 * 32 : 0;
    announce(computed_ + 1, true);
  }

  void chunk() {
    const std::int32_t rows = 32 * (1 + static_cast<std::int32_t>(draw(8)));
    const std::int32_t end = std::min(prompt_, computed_ + rows);
    const bool wants = lent_.rbegin()->second.claim->wants_layers();
    if (end < prompt_) {
      others(draw(3));
      if (!over()) {
        announce(end, true);  // first that it has grown
        computed_ = end;
        announce(end, false);
      }
      return;
    }
    announce(end, true);
    if (wants) {
      for (std::size_t group = 0; group < layers_.size(); ++group) {
        while (layers_[group] < layout_.groups[group].layers.size()) {
          ++layers_[group];
          message::PrefillProgress progress{key_, computed_, {}};
          progress.layers = layers_;
          progress.elapsed = std::chrono::milliseconds(5 * layers_[group]);
          role_.handle(std::move(progress), now_);
          others(draw(3));
        }
      }
    }
    computed_ = end;
  }
  void done() {
    message::Token token;
    token.key = key_;
    token.token = 9;
    token.finish = draw(12) == 0 ? message::FinishReason::kStop : message::FinishReason::kNone;
    role_.handle(message::PrefillDone{key_, {token}, prompt_}, now_);
  }

  // What happens at any time.
  void others(std::uint32_t count) {
    for (; count > 0 && role_.count() > 0; --count) {
      now_ += std::chrono::microseconds(draw(4'000));
      const std::uint32_t what = draw(100);
      if (what < 25) {
        grant();
      } else if (what < 70) {
        end_frame();
      } else if (what < 85) {
        ack(arrived_->take_complete());
      } else if (what < 97) {
        end_commit();
      } else if (what == 97 && draw(4) == 0) {
        role_.handle(AbortInput{kOwner, key_, {ErrorCode::kCancelled, "left"}}, now_);
      } else if (what == 98 && draw(8) == 0) {
        role_.handle(PeerDown{kDecode, {ErrorCode::kPeerLost, "gone"}}, now_);
      } else if (what == 99) {
        ack(granted_);  // a lie, or late
      }
    }
  }
  void grant() {
    if (!std::exchange(has_granted_, true)) {
      wire::pb::Grant message;
      message.mutable_ranges()->Assign(granted_.begin(), granted_.end());
      role_.handle(GrantInput{kDecode, key_, message}, now_);
    }
  }
  void end_frame() {
    if (under_way_.empty()) {
      return;
    }
    const auto which = under_way_.begin() + draw(static_cast<std::uint32_t>(under_way_.size()));
    const FrameJob job = which->job;
    under_way_.erase(which);
    EXPECT_TRUE(arrived_->mark(job.blocks));
    FrameSent sent{job.key, job.number, BulkSent{}};
    if (draw(200) == 0) {
      sent.result = fail(ErrorCode::kPeerLost, "reset");
    }
    role_.handle(std::move(sent), now_);
  }
  void ack(const std::vector<wire::pb::TileRange>& ranges) {
    wire::pb::Ack message;
    message.mutable_ranges()->Assign(ranges.begin(), ranges.end());
    role_.handle(AckInput{kDecode, key_, message}, now_);
  }
  void end_commit() {
    if (commits_ > 0 && role_.count() > 0) {
      --commits_;
      role_.handle(CommitSent{key_, {}}, now_);
      wire::pb::Ack all;
      all.set_all(true);
      role_.handle(AckInput{kDecode, key_, all}, now_);
    }
  }
  [[nodiscard]] bool is_read(std::uint64_t lease, std::uint32_t group, std::uint32_t block) const {
    const auto per_block = static_cast<std::uint32_t>(layout_.tiles_per_block());
    return std::ranges::any_of(under_way_, [&](const UnderWay& each) {
      const wire::BlocksHeader& blocks = each.job.blocks;
      return each.lease == lease && blocks.group == group &&
             block >= blocks.first_tile / per_block &&
             block <= (blocks.first_tile + blocks.tiles - 1) / per_block;
    });
  }

  std::mt19937 random_;
  kv::KvLayout layout_;
  CoordinatorOptions options_;
  Leases leases_{options_};
  Tombstones tombstones_;
  HandoffStats stats_;
  PrefillRole role_{RoleContext{options_, layout_, *this, leases_, tombstones_, stats_}};
  std::vector<std::vector<std::byte>> memory_;  // [group]
  TimePoint now_{std::chrono::seconds(1)};
  std::uint64_t next_lease_ = 1;

  SequenceKey key_;
  std::int32_t prompt_ = 0;
  std::int32_t computed_ = 0;
  std::vector<std::uint32_t> layers_;  // [group], of the last chunk
  std::map<std::uint64_t, Lease> lent_;
  std::vector<wire::pb::TileRange> granted_;
  bool has_granted_ = false;
  bool aborted_ = false;  // the engine was told
  int commits_ = 0;
  std::optional<TileCoverage> left_;
  std::optional<TileCoverage> arrived_;
  std::vector<UnderWay> under_way_;
};

TEST(prefill_role, what_holds_of_any_prompt) {
  std::uint64_t ok = 0;
  std::uint64_t layer_frames = 0;
  const std::uint64_t bugs = bug_count();
  for (std::uint32_t seed = 0; seed < 300 && !HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    World world(seed);
    for (std::uint64_t id = 1; id <= 6 && !HasFailure(); ++id) {
      world.run(id);
    }
    ok += world.ok();
    layer_frames += world.layer_frames();
  }
  EXPECT_EQ(bug_count(), bugs);
  EXPECT_GT(ok, 900U);
  EXPECT_GT(layer_frames, 1'000U);
}

}  // namespace
}  // namespace baton::handoff
