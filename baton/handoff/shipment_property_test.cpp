// Payloads of random shapes and Grants, whose frames end and are acked in random order while chunks
// and layers of the last chunk become complete: each granted (layer, head, tile) leaves once and
// never before it is complete, and each block is given back once and never while it is read.
#include "baton/handoff/options.h"
#include "baton/handoff/send_handoff.h"
#include "baton/handoff/tile_plan.h"
#include "baton/wire/digest.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <random>
#include <utility>

namespace baton::handoff {
namespace {

using wire::pb::TileRange;

class Draw {
 public:
  explicit Draw(std::uint32_t seed) : random_(seed) {}
  // Of [from, to].
  std::uint32_t number(std::uint32_t from, std::uint32_t to) {
    return std::uniform_int_distribution<std::uint32_t>(from, to)(random_);
  }
  bool one_in(std::uint32_t n) { return number(1, n) == 1; }
  template <class T>
  T one_of(std::initializer_list<T> values) {
    const auto last = static_cast<std::uint32_t>(values.size() - 1);
    return *(values.begin() + number(0, last));
  }

 private:
  std::mt19937 random_;
};

kv::KvLayout draw_layout(Draw& draw) {
  kv::KvLayout layout;
  layout.block_tokens = draw.one_of({32, 64, 128, 256});
  for (std::uint32_t left = draw.number(1, 3); left > 0; --left) {
    kv::KvGroup& group = layout.groups.emplace_back();
    group.layers.resize(draw.number(1, draw.one_in(4) ? 40 : 8));
    group.head_dim = draw.one_of({32, 64, 128, 256});
    group.kv_heads = draw.one_of({1, 2, 3, 8});
    if (draw.one_in(6)) {  // blocks above the largest frame: cut by layers, tiles or heads already
      group.kv_heads = draw.one_of({32, 64});
      group.layers.resize(draw.number(1, 12));
    }
    group.dtype = draw.one_of({kv::KvDtype::kF32, kv::KvDtype::kBf16, kv::KvDtype::kQ8_0});
    if (draw.one_in(3)) {
      group.kind = kv::GroupKind::kWindow;
      group.window_tokens = static_cast<std::int32_t>(draw.number(2, 400));
    }
  }
  return layout;
}

// What a node lacks after some prefix; or any tiles of it, as another decode node might ask.
std::vector<TileRange> draw_grant(Draw& draw, const kv::KvLayout& layout, std::int32_t tokens) {
  const auto cached = draw.one_in(2) ? 0 : draw.number(0, static_cast<std::uint32_t>(tokens - 1));
  std::vector<TileRange> lacking =
      tiles_lacking(layout, tokens, static_cast<std::int32_t>(cached / 32 * 32));
  if (!draw.one_in(4)) {
    return lacking;
  }
  std::vector<TileRange> some;
  for (const TileRange& range : lacking) {
    const std::uint32_t end = range.first_tile() + range.tiles();
    for (std::uint32_t tile = range.first_tile(); tile < end;) {
      TileRange part = range;
      part.set_first_tile(tile);
      part.set_tiles(draw.number(1, std::min(end - tile, 9U)));
      tile += part.tiles();
      if (!draw.one_in(4)) {
        some.push_back(part);
      }
    }
  }
  return some.empty() ? lacking : some;
}

Way draw_way(Draw& draw) {
  Way way;
  way.slow_s = draw.one_of({0.0, 0.003, 0.003});
  way.seconds_per_byte = draw.one_of({0.0, 1e-9, 1e-8, 4e-8, 1e-6});
  return way;
}

// A handoff's sender without an engine or a network, and what must hold of it.
class Model {
 public:
  explicit Model(std::uint32_t seed)
      : draw_(seed),
        layout_(draw_layout(draw_)),
        tokens_(static_cast<std::int32_t>(draw_.number(1, draw_.one_in(3) ? 70 : 1'400))),
        granted_(draw_grant(draw_, layout_, tokens_)),
        lies_(draw_.one_in(4)),
        min_frame_bytes_(draw_.one_of<std::size_t>({1, 4'000, kMinFrameBytes, kMinFrameBytes})),
        payload_(layout_, granted_, tokens_, min_frame_bytes_, draw_way(draw_)),
        left_(layout_, granted_),
        arrived_(layout_, granted_) {
    for (std::size_t group = 0; group < layout_.groups.size(); ++group) {
      layers_.push_back(0);
      tiles_.emplace_back(static_cast<std::size_t>(layout_.blocks_for(tokens_)) *
                          static_cast<std::size_t>(layout_.tiles_per_block()));
      given_back_.emplace_back(static_cast<std::size_t>(layout_.blocks_for(tokens_)), false);
    }
    for (const TileRange& range : granted_) {
      const kv::KvGroup& group = layout_.groups[range.group()];
      for (std::uint32_t i = 0; i < range.tiles(); ++i) {
        const auto all = group.layers.size() * static_cast<std::size_t>(group.kv_heads);
        Tile& tile = tiles_[range.group()][range.first_tile() + i];
        tile.untaken = tile.unsent = static_cast<std::uint32_t>(all);
      }
    }
  }

  void run() {
    while (!::testing::Test::HasFailure() && computed_ < tokens_) {
      events(draw_.number(0, 6));
      compute();
    }
    for (int turn = 0; !payload_.all_sent() && !::testing::Test::HasFailure(); ++turn) {
      ASSERT_LT(turn, 100'000) << "what is computed does not leave";
      events(1);
    }
    while (!under_way_.empty()) {
      end_frame();
    }
    finish();
  }

  [[nodiscard]] bool by_layers() const { return by_layers_; }

 private:
  struct Tile {
    std::uint32_t untaken = 0;  // (layer, head)s that are granted and did not leave
    std::uint32_t unsent = 0;   // or were not handed to the kernel yet
    bool acked = false;
  };

  void events(std::uint32_t count) {
    for (; count > 0; --count) {
      now_ += std::chrono::microseconds(draw_.number(0, 9'000));
      switch (draw_.number(0, 5)) {
        case 0:
        case 1:
          take();
          break;
        case 2:
        case 3:
          end_frame();
          break;
        case 4:
          ack_arrived();
          break;
        default:
          if (lies_) {
            ack_anything();
          }
      }
      take_done_blocks();
    }
  }

  // A chunk, the last one layer by layer: each group's in order, groups mixed.
  void compute() {
    std::int32_t rows = static_cast<std::int32_t>(draw_.number(1, 20)) * kv::kTileTokens;
    if (computed_ + rows < tokens_) {
      computed_ = (computed_ + rows) / kv::kTileTokens * kv::kTileTokens;
      payload_.set_computed(computed_);
      return;
    }
    const bool told = !draw_.one_in(4);
    const TimePoint began = now_;
    std::vector<std::size_t> order;
    for (std::size_t group = 0; group < layout_.groups.size(); ++group) {
      order.insert(order.end(), layout_.groups[group].layers.size(), group);
    }
    for (std::size_t i = 0; told && i < order.size(); ++i) {
      std::swap(order[i], order[draw_.number(static_cast<std::uint32_t>(i),
                                             static_cast<std::uint32_t>(order.size() - 1))]);
      ++layers_[order[i]];
      if (draw_.one_in(3) || i + 1 == order.size()) {
        payload_.set_computed(computed_);
        payload_.set_layers(layers_, now_ - began);
        events(draw_.number(0, 8));
      }
    }
    computed_ = tokens_;
    payload_.set_computed(tokens_);
  }

  void take() {
    const bool may_leave = under_way_.size() < kFramesInFlight || bytes_under_way_ < kBytesInFlight;
    const auto frame = payload_.take_next(now_);
    if (!frame) {
      EXPECT_TRUE(!may_leave || nothing_waits());
      return;
    }
    EXPECT_TRUE(may_leave);
    EXPECT_EQ(frame->number, taken_++);
    const wire::BlocksHeader& blocks = frame->blocks;
    ASSERT_TRUE(check_frame(layout_, blocks));
    ASSERT_TRUE(left_.mark(blocks)) << "not granted, or the second time";
    const std::int32_t end = static_cast<std::int32_t>(blocks.first_tile + blocks.tiles) * 32;
    EXPECT_TRUE(std::min(end, tokens_) <= computed_ ||
                blocks.first_layer + blocks.layers <= layers_[blocks.group])
        << "rows that are not complete";
    EXPECT_EQ(blocks.block_tokens, static_cast<std::uint32_t>(layout_.block_tokens));
    EXPECT_LE(frame_bytes(layout_, blocks), kMaxFrameBytes);
    by_layers_ = by_layers_ || frame->by_layers;
    bytes_under_way_ += frame_bytes(layout_, blocks);
    for (std::uint32_t i = 0; i < blocks.tiles; ++i) {
      tiles_[blocks.group][blocks.first_tile + i].untaken -= blocks.layers * blocks.heads;
    }
    under_way_.emplace_back(frame->number, blocks);
  }

  // However the end is cut, of the frames without that none is complete and still here.
  [[nodiscard]] bool nothing_waits() const {
    const auto plan = plan_frames(layout_, granted_, min_frame_bytes_, kMaxFrameBytes);
    return std::ranges::none_of(plan, [&](const wire::BlocksHeader& frame) {
      const auto first = tiles_[frame.group].begin() + frame.first_tile;
      const std::int32_t end = static_cast<std::int32_t>(frame.first_tile + frame.tiles) * 32;
      return std::min(end, tokens_) <= computed_ &&
             std::any_of(first, first + frame.tiles,
                         [](const Tile& tile) { return tile.untaken > 0; });
    });
  }

  // Any of those under way; the receiver may have had it before.
  void end_frame() {
    if (under_way_.empty()) {
      return;
    }
    const auto which =
        under_way_.begin() + draw_.number(0, static_cast<std::uint32_t>(under_way_.size() - 1));
    const auto [number, blocks] = *which;
    under_way_.erase(which);
    arrive(number, blocks);
    bytes_under_way_ -= frame_bytes(layout_, blocks);
    for (std::uint32_t i = 0; i < blocks.tiles; ++i) {
      tiles_[blocks.group][blocks.first_tile + i].unsent -= blocks.layers * blocks.heads;
    }
    BulkSent sent;
    std::memcpy(sent.header.data(), &number, sizeof(number));
    headers_[number] = sent.header;
    payload_.on_sent(number, &sent);
    take_done_blocks();
  }

  void arrive(std::uint64_t number, const wire::BlocksHeader& blocks) {
    if (!headers_.contains(number)) {
      headers_[number] = {};
      EXPECT_TRUE(arrived_.mark(blocks));
    }
  }

  void ack_arrived() {
    if (!under_way_.empty() && draw_.one_in(3)) {  // the Ack overtakes the end of our own write
      arrive(under_way_.front().first, under_way_.front().second);
    }
    ack(arrived_.take_complete());
  }

  void ack(const std::vector<TileRange>& ranges) {
    for (const TileRange& range : ranges) {
      for (std::uint32_t i = 0; i < range.tiles(); ++i) {
        tiles_[range.group()][range.first_tile() + i].acked = true;
      }
    }
    EXPECT_TRUE(payload_.on_ack(ranges, now_));
    EXPECT_GT(payload_.take_seconds_per_byte().value_or(1), 0);
  }

  // Tiles that were not sent, were acked before, or that nobody asked for.
  void ack_anything() {
    TileRange range;
    range.set_group(draw_.number(0, static_cast<std::uint32_t>(layout_.groups.size() - 1)));
    const auto tiles = static_cast<std::uint32_t>(tiles_[range.group()].size());
    range.set_first_tile(draw_.number(0, tiles - 1));
    range.set_tiles(draw_.number(0, tiles - range.first_tile()));
    ack({range});
    range.set_tiles(tiles - range.first_tile() + draw_.number(1, 3));
    EXPECT_FALSE(payload_.on_ack(std::vector<TileRange>{range}, now_));
  }

  void take_done_blocks() {
    const auto per_block = static_cast<std::uint32_t>(layout_.tiles_per_block());
    for (const message::BlockRange& range : payload_.take_done_blocks()) {
      for (std::uint32_t block = range.first; block < range.first + range.count; ++block) {
        EXPECT_FALSE(given_back_[range.group][block]) << "block " << block << " twice";
        given_back_[range.group][block] = true;
        for (std::uint32_t i = 0; i < per_block; ++i) {
          const Tile& tile = tiles_[range.group][block * per_block + i];
          EXPECT_EQ(tile.unsent, 0U) << "block " << block << " is still to be read";
          EXPECT_TRUE(tile.acked || !was_granted(range.group, block * per_block + i));
        }
      }
    }
  }

  [[nodiscard]] bool was_granted(std::uint32_t group, std::uint32_t tile) const {
    return std::ranges::any_of(granted_, [&](const TileRange& range) {
      return range.group() == group && tile >= range.first_tile() &&
             tile - range.first_tile() < range.tiles();
    });
  }

  void finish() {
    EXPECT_TRUE(payload_.all_sent());
    EXPECT_FALSE(payload_.in_flight());
    EXPECT_TRUE(left_.complete());
    ack(lies_ ? granted_ : arrived_.take_complete());
    take_done_blocks();
    for (const std::vector<bool>& blocks : given_back_) {
      EXPECT_EQ(std::count(blocks.begin(), blocks.end(), false), 0);
    }
    wire::pb::Commit commit;
    payload_.fill(commit);
    wire::HandoffDigest digest;
    for (const auto& [number, header] : headers_) {
      digest.add(header);
    }
    EXPECT_EQ(commit.frames(), taken_);
    EXPECT_EQ(commit.payload_bytes(), ranges_bytes(layout_, granted_));
    EXPECT_EQ(commit.digest(), digest.value());
  }

  Draw draw_;
  kv::KvLayout layout_;
  std::int32_t tokens_;
  std::vector<TileRange> granted_;
  bool lies_;  // the receiver, in its Acks
  std::size_t min_frame_bytes_;
  PayloadShipment payload_;
  TileCoverage left_;
  TileCoverage arrived_;
  std::int32_t computed_ = 0;
  std::vector<std::uint32_t> layers_;  // [group], of the last chunk
  std::vector<std::vector<Tile>> tiles_;
  std::vector<std::vector<bool>> given_back_;  // [group][block]
  std::vector<std::pair<std::uint64_t, wire::BlocksHeader>> under_way_;
  std::uint64_t bytes_under_way_ = 0;
  std::uint64_t taken_ = 0;
  std::map<std::uint64_t, wire::EncodedHeader> headers_;
  bool by_layers_ = false;
  TimePoint now_{std::chrono::seconds(1)};
};

TEST(shipment, what_holds_of_any_payload) {
  constexpr std::uint32_t kPayloads = 1'500;
  std::uint32_t by_layers = 0;
  for (std::uint32_t seed = 0; seed < kPayloads && !HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Model model(seed);
    model.run();
    by_layers += model.by_layers() ? 1 : 0;
  }
  EXPECT_GT(by_layers, kPayloads / 5);
  EXPECT_LT(by_layers, kPayloads * 4 / 5);
}

}  // namespace
}  // namespace baton::handoff
