// The sender's accounting of a payload: which frame may leave when, and when a block is nobody's.
#include "baton/handoff/options.h"
#include "baton/handoff/send_handoff.h"
#include "baton/handoff/tile_plan.h"
#include "baton/wire/digest.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace baton::handoff {
namespace {

constexpr std::int32_t kTokens = 330;  // 11 tiles

// A block of two tiles is 256 KiB, so a frame is a block.
kv::KvLayout layout(std::int32_t layers = 4) {
  kv::KvLayout result;
  result.block_tokens = 64;
  kv::KvGroup group;
  for (std::int32_t layer = 0; layer < layers; ++layer) {
    group.layers.push_back(layer);
  }
  group.kv_heads = 4;
  group.head_dim = 32;
  group.dtype = kv::KvDtype::kF32;
  result.groups.push_back(group);
  return result;
}

std::vector<wire::pb::TileRange> tiles(std::uint32_t first, std::uint32_t count) {
  std::vector<wire::pb::TileRange> ranges(1);
  ranges[0].set_first_tile(first);
  ranges[0].set_tiles(count);
  return ranges;
}

struct Shipment {
  explicit Shipment(std::uint32_t cached_tiles = 0, kv::KvLayout of = layout(), const Way& way = {})
      : own(std::move(of)),
        payload(own, tiles(cached_tiles, 11 - cached_tiles), kTokens, kMinFrameBytes, way) {}

  // Takes what may leave and says that it is sent; how many frames.
  int send_all() {
    int sent = 0;
    while (const auto frame = payload.take_next()) {
      payload.on_sent(frame->number, &answer);
      frames.push_back(*frame);
      ++sent;
    }
    return sent;
  }
  std::set<std::uint32_t> done_blocks() {
    std::set<std::uint32_t> blocks;
    for (const message::BlockRange& range : payload.take_done_blocks()) {
      for (std::uint32_t block = range.first; block < range.first + range.count; ++block) {
        EXPECT_TRUE(blocks.insert(block).second);
      }
    }
    return blocks;
  }
  kv::KvLayout own;
  PayloadShipment payload;
  BulkSent answer;
  std::vector<PayloadShipment::Frame> frames;
};

using Blocks = std::set<std::uint32_t>;

TEST(shipment, on_a_slow_way_the_end_goes_in_tiles) {
  // Blocks of 256 KiB: 2.6 ms at 100 MB/s, 5.2 at 50. The last two are cut; of 11 tiles the last
  // block has one.
  const auto cut = [](std::int32_t tokens, double seconds_per_byte) {
    const kv::KvLayout own = layout();
    const auto count = static_cast<std::uint32_t>((tokens + 31) / 32);
    PayloadShipment payload(own, tiles(0, count), tokens, kMinFrameBytes, {seconds_per_byte});
    payload.set_computed(tokens);
    std::vector<std::uint32_t> sizes;
    while (const auto frame = payload.take_next()) {
      payload.on_sent(frame->number, nullptr);
      sizes.push_back(frame->blocks.tiles);
    }
    return sizes;
  };
  using Sizes = std::vector<std::uint32_t>;
  EXPECT_EQ(cut(384, 0), (Sizes{2, 2, 2, 2, 2, 2}));
  EXPECT_EQ(cut(384, 1 / 100e6), (Sizes{2, 2, 2, 2, 2, 2}));
  EXPECT_EQ(cut(384, 1 / 50e6), (Sizes{2, 2, 2, 2, 1, 1, 1, 1}));
  EXPECT_EQ(cut(330, 1 / 50e6), (Sizes{2, 2, 2, 2, 1, 1, 1}));
  EXPECT_EQ(cut(64, 1 / 50e6), (Sizes{1, 1}));
}

// A tile has 256 KiB in 8 layers: 5.2 ms at 50 MB/s, three of them 15.7.
constexpr Way kSlow{1 / 50e6};

TEST(shipment, on_a_slow_way_the_last_chunk_goes_by_layers) {
  Shipment s(0, layout(8), kSlow);
  s.payload.set_computed(256);
  EXPECT_EQ(s.send_all(), 4);  // whole blocks
  EXPECT_TRUE(s.payload.wants_layers());
  s.payload.set_layers(std::vector<std::uint32_t>{2}, std::chrono::milliseconds(5));
  EXPECT_EQ(s.send_all(), 4);
  s.payload.set_layers(std::vector<std::uint32_t>{7}, std::chrono::milliseconds(17));
  EXPECT_EQ(s.send_all(), 10);
  EXPECT_FALSE(s.payload.all_sent());
  s.payload.set_computed(kTokens);
  EXPECT_EQ(s.send_all(), 2);
  EXPECT_TRUE(s.payload.all_sent());
  for (std::uint32_t i = 4; i < s.frames.size(); ++i) {  // a layer of two tiles, then of the third
    const wire::BlocksHeader& blocks = s.frames[i].blocks;
    const bool third = i % 2 != 0;
    EXPECT_EQ(blocks,
              (wire::BlocksHeader{0, (i - 4) / 2, 1, 0, 4, third ? 10U : 8U, third ? 1U : 2U, 64}));
    EXPECT_EQ(s.frames[i].number, i);
  }
  EXPECT_TRUE(s.payload.on_ack(tiles(0, 11)));
  EXPECT_EQ(s.done_blocks(), (Blocks{0, 1, 2, 3, 4, 5}));
  wire::pb::Commit commit;
  s.payload.fill(commit);
  EXPECT_EQ(commit.frames(), 20U);
  EXPECT_EQ(commit.payload_bytes(), ranges_bytes(s.own, tiles(0, 11)));
}

// Tiles of two groups become complete in turns.
TEST(shipment, the_last_chunk_of_two_groups_goes_in_whole_runs) {
  kv::KvLayout own = layout(8);
  own.groups.push_back(own.groups[0]);
  std::vector<wire::pb::TileRange> ranges = tiles(0, 6);
  ranges.push_back(ranges[0]);
  ranges[1].set_group(1);
  PayloadShipment payload(own, ranges, 192, kMinFrameBytes, kSlow);
  payload.set_layers(std::vector<std::uint32_t>{1, 1}, std::chrono::milliseconds(5));
  payload.set_computed(192);
  std::size_t frames = 0;
  for (BulkSent answer; const auto frame = payload.take_next(); ++frames) {
    payload.on_sent(frame->number, &answer);
  }
  EXPECT_EQ(frames, 8U * 6U);  // parts, blocks
}

// One layer whose block is larger than the largest frame: what was cut for that stays so.
TEST(shipment, a_run_is_no_larger_than_the_largest_frame) {
  kv::KvLayout own = layout(1);
  own.block_tokens = 256;
  own.groups[0].kv_heads = 64;
  own.groups[0].head_dim = 256;
  own.groups.push_back(layout(7).groups[0]);
  PayloadShipment payload(own, tiles(0, 8), 256, kMinFrameBytes, kSlow);
  payload.set_layers(std::vector<std::uint32_t>{1, 1}, std::chrono::milliseconds(20));
  payload.set_computed(256);
  for (BulkSent answer; const auto frame = payload.take_next();) {
    EXPECT_LE(frame_bytes(own, frame->blocks), kMaxFrameBytes);
    payload.on_sent(frame->number, &answer);
  }
}

TEST(shipment, what_lies_on_both_sides_of_the_last_chunks_begin_waits_its_turn) {
  Shipment s(0, layout(8), kSlow);
  s.payload.set_computed(128);
  while (const auto frame = s.payload.take_next()) {  // under way: nothing else may leave
    s.frames.push_back(*frame);
  }
  EXPECT_EQ(s.frames.size(), 2U);
  s.payload.set_computed(300);
  s.payload.set_layers(std::vector<std::uint32_t>{1}, std::chrono::milliseconds(5));
  s.payload.set_layers(std::vector<std::uint32_t>{8}, std::chrono::milliseconds(40));
  for (const PayloadShipment::Frame& frame : s.frames) {
    s.payload.on_sent(frame.number, &s.answer);
  }
  s.frames.clear();
  s.send_all();
  EXPECT_TRUE(s.payload.all_sent());
  TileCoverage coverage(s.own, tiles(4, 7));
  for (const PayloadShipment::Frame& frame : s.frames) {
    EXPECT_TRUE(coverage.mark(frame.blocks)) << frame.number;
  }
  EXPECT_TRUE(coverage.complete());
}

TEST(shipment, layers_leave_alone_only_where_that_pays) {
  const auto leaves = [](const Way& way, Duration elapsed) {
    Shipment s(0, layout(8), way);
    s.payload.set_computed(320);
    s.send_all();
    s.payload.set_layers(std::vector<std::uint32_t>{4}, elapsed);
    return s.send_all() > 0;
  };
  using std::chrono::milliseconds;
  EXPECT_TRUE(leaves(kSlow, milliseconds(4)));
  EXPECT_FALSE(leaves(kSlow, milliseconds(2)));         // computed sooner than it could be sent
  EXPECT_FALSE(leaves({1 / 100e6}, milliseconds(40)));  // one tile takes 2.6 ms
  EXPECT_FALSE(leaves({}, milliseconds(40)));           // not known
  EXPECT_TRUE(leaves({0, 0}, milliseconds(0)));         // everything is cut
}

TEST(shipment, measures_the_way_by_what_an_ack_came_for) {
  Shipment s;
  const TimePoint begin{std::chrono::seconds(5)};
  s.payload.set_computed(kTokens);
  EXPECT_FALSE(s.payload.take_seconds_per_byte().has_value());
  for (int frame = 0; frame < 2; ++frame) {
    const auto taken = s.payload.take_next(begin + frame * std::chrono::milliseconds(100));
    s.payload.on_sent(taken->number, &s.answer);
  }
  EXPECT_TRUE(s.payload.on_ack(tiles(0, 4), begin + std::chrono::milliseconds(110)));
  // 10 ms for the second frame and the first one, which was not acked when it left.
  EXPECT_DOUBLE_EQ(s.payload.take_seconds_per_byte().value_or(0), 0.010 / (512 * 1024));
  EXPECT_TRUE(s.payload.on_ack(tiles(0, 4), begin + std::chrono::seconds(1)));  // nothing new
  EXPECT_FALSE(s.payload.take_seconds_per_byte().has_value());
}

TEST(shipment, a_frame_leaves_once_its_rows_are_computed) {
  Shipment s;
  EXPECT_EQ(s.send_all(), 0);
  s.payload.set_computed(63);
  EXPECT_EQ(s.send_all(), 0);  // half a block
  s.payload.set_computed(64);
  EXPECT_EQ(s.send_all(), 1);
  s.payload.set_computed(224);
  EXPECT_EQ(s.send_all(), 2);
  s.payload.set_computed(329);
  EXPECT_EQ(s.send_all(), 2);
  EXPECT_FALSE(s.payload.all_sent());
  s.payload.set_computed(kTokens);  // the last tile has 10 tokens
  EXPECT_EQ(s.send_all(), 1);
  EXPECT_TRUE(s.payload.all_sent());
  for (std::size_t i = 0; i < s.frames.size(); ++i) {
    EXPECT_EQ(s.frames[i].number, i);
    EXPECT_EQ(s.frames[i].blocks.first_tile, 2 * i);
    EXPECT_EQ(s.frames[i].blocks.layers, 4U);
  }
  EXPECT_EQ(s.frames.back().blocks.tiles, 1U);
}

TEST(shipment, no_more_is_under_way_than_allowed) {
  // 4 MiB frames: only the number counts.
  Shipment large(0, layout(64));
  large.payload.set_computed(kTokens);
  std::vector<std::uint64_t> under_way;
  while (const auto frame = large.payload.take_next()) {
    under_way.push_back(frame->number);
  }
  EXPECT_EQ(under_way.size(), kFramesInFlight);
  EXPECT_TRUE(large.payload.in_flight());
  large.payload.on_sent(under_way[2], &large.answer);  // in any order
  EXPECT_TRUE(large.payload.take_next().has_value());
  EXPECT_FALSE(large.payload.take_next().has_value());
  large.payload.on_sent(under_way[0], nullptr);
  EXPECT_TRUE(large.payload.take_next().has_value());

  Shipment small;  // 256 KiB: all six are less than kBytesInFlight
  small.payload.set_computed(kTokens);
  int taken = 0;
  while (small.payload.take_next()) {
    ++taken;
  }
  EXPECT_EQ(taken, 6);
}

TEST(shipment, a_block_is_done_when_it_was_sent_and_acked) {
  Shipment s;
  s.payload.set_computed(kTokens);
  EXPECT_EQ(s.done_blocks(), Blocks{});
  const auto first = s.payload.take_next();
  const auto second = s.payload.take_next();
  ASSERT_TRUE(first && second);
  // The Ack overtakes the end of our own write: the block is still being read.
  EXPECT_TRUE(s.payload.on_ack(tiles(0, 3)));
  EXPECT_EQ(s.done_blocks(), Blocks{});
  s.payload.on_sent(first->number, &s.answer);
  EXPECT_EQ(s.done_blocks(), Blocks{0});
  s.payload.on_sent(second->number, &s.answer);
  EXPECT_EQ(s.done_blocks(), Blocks{});  // tile 3 is not acked
  EXPECT_TRUE(s.payload.on_ack(tiles(3, 1)));
  EXPECT_EQ(s.done_blocks(), Blocks{1});
  EXPECT_TRUE(s.payload.on_ack(tiles(0, 4)));  // again
  EXPECT_EQ(s.done_blocks(), Blocks{});
  s.send_all();
  EXPECT_TRUE(s.payload.on_ack(tiles(4, 7)));
  EXPECT_EQ(s.done_blocks(), (Blocks{2, 3, 4, 5}));
  EXPECT_FALSE(s.payload.on_ack(tiles(11, 2)));
  EXPECT_FALSE(s.payload.on_ack(tiles(0xFFFFFFFF, 2)));
}

// Two frames of one block, acked out of order: an Ack counts once for each frame. Counted twice,
// the second frame's would stand for the first one's too, and the block would be given back while
// the receiver still lacks a part of it.
TEST(shipment, an_ack_counts_once_for_a_frame) {
  kv::KvLayout own = layout();
  own.block_tokens = 128;  // four tiles a block
  std::vector<wire::pb::TileRange> ranges = tiles(0, 1);
  ranges.push_back(tiles(1, 3)[0]);
  ranges.push_back(tiles(4, 2)[0]);
  PayloadShipment payload(own, ranges, 192, 1);
  payload.set_computed(192);
  BulkSent answer;
  std::vector<wire::BlocksHeader> frames;
  while (const auto frame = payload.take_next()) {
    payload.on_sent(frame->number, &answer);
    frames.push_back(frame->blocks);
  }
  ASSERT_GE(frames.size(), 3U);
  const auto of_first_block = static_cast<std::size_t>(
      std::count_if(frames.begin(), frames.end(),
                    [](const wire::BlocksHeader& frame) { return frame.first_tile < 4; }));
  ASSERT_GE(of_first_block, 2U);
  // All but the first frame of the block, and some of them again.
  EXPECT_TRUE(payload.on_ack(tiles(1, 3)));
  EXPECT_TRUE(payload.on_ack(tiles(1, 3)));
  EXPECT_TRUE(payload.on_ack(tiles(2, 1)));
  EXPECT_TRUE(payload.on_ack(tiles(5, 1)));
  EXPECT_TRUE(payload.take_done_blocks().empty());
  EXPECT_TRUE(payload.on_ack(tiles(0, 1)));
  const std::vector<message::BlockRange> done = payload.take_done_blocks();
  ASSERT_EQ(done.size(), 1U);
  EXPECT_EQ(done[0].first, 0U);
}

TEST(shipment, a_frame_that_failed_never_frees_its_block) {
  Shipment s;
  s.payload.set_computed(64);
  const auto frame = s.payload.take_next();
  ASSERT_TRUE(frame.has_value());
  s.payload.on_sent(frame->number, nullptr);
  EXPECT_TRUE(s.payload.on_ack(tiles(0, 2)));
  EXPECT_EQ(s.done_blocks(), Blocks{});
  EXPECT_FALSE(s.payload.in_flight());
}

TEST(shipment, blocks_that_were_not_granted_are_done_at_once) {
  Shipment s(5);
  EXPECT_EQ(s.done_blocks(), (Blocks{0, 1}));  // tiles 4 and 5 share block 2
  s.payload.set_computed(kTokens);
  EXPECT_EQ(s.send_all(), 4);
  EXPECT_EQ(s.frames[0].blocks.first_tile, 5U);
  EXPECT_EQ(s.frames[0].blocks.tiles, 1U);
  EXPECT_TRUE(s.payload.on_ack(tiles(5, 6)));
  EXPECT_EQ(s.done_blocks(), (Blocks{2, 3, 4, 5}));
}

// Blocks above the largest frame go by layers: a block is done after all of them, and the Commit
// counts each.
TEST(shipment, a_block_of_several_frames) {
  Shipment s(0, layout(256));  // 16 MiB a block
  s.payload.set_computed(64);
  EXPECT_EQ(s.send_all(), 2);
  EXPECT_EQ(s.frames[0].blocks.layers, 128U);
  EXPECT_EQ(s.frames[1].blocks.first_layer, 128U);
  EXPECT_TRUE(s.payload.on_ack(tiles(0, 2)));
  EXPECT_EQ(s.done_blocks(), Blocks{0});
  s.payload.set_computed(kTokens);
  EXPECT_EQ(s.send_all(), 10);
  wire::pb::Commit commit;
  s.payload.fill(commit);
  EXPECT_EQ(commit.frames(), 12U);
  EXPECT_EQ(commit.payload_bytes(), layout(256).handoff_bytes(kTokens));
  wire::HandoffDigest digest;
  for (int i = 0; i < 12; ++i) {
    digest.add(s.answer.header);
  }
  EXPECT_EQ(commit.digest(), digest.value());
}

TEST(shipment, several_groups_leave_in_the_order_of_the_prompt) {
  kv::KvLayout two = layout();
  two.groups.push_back(two.groups[0]);
  std::vector<wire::pb::TileRange> ranges = tiles_needed(two, kTokens);
  PayloadShipment payload(two, ranges, kTokens);
  payload.set_computed(128);
  std::vector<std::pair<std::uint32_t, std::uint32_t>> order;
  while (const auto frame = payload.take_next()) {
    order.emplace_back(frame->blocks.first_tile, frame->blocks.group);
  }
  const std::vector<std::pair<std::uint32_t, std::uint32_t>> expected = {
      {0, 0}, {0, 1}, {2, 0}, {2, 1}};
  EXPECT_EQ(order, expected);
}

}  // namespace
}  // namespace baton::handoff
