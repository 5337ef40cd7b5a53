// The receiver's accounting of a payload, the table of reservations, and conversions from the wire.
#include "baton/handoff/convert.h"
#include "baton/handoff/options.h"
#include "baton/handoff/recv_handoff.h"
#include "baton/handoff/reservation_table.h"
#include "baton/wire/codec.h"
#include "baton/wire/digest.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

namespace baton::handoff {
namespace {

const SequenceKey kKey{{1, 2}, {0}, {0}};
const NodeId kSender{"p"};

kv::KvLayout layout() {
  kv::KvLayout result;
  result.block_tokens = 32;
  kv::KvGroup group;
  group.layers = {0, 1};
  group.kv_heads = 2;
  group.head_dim = 8;
  group.dtype = kv::KvDtype::kF32;
  result.groups.push_back(group);
  return result;
}

struct Payload {
  Payload() {
    wire::HandoffDigest digest;
    for (const wire::BlocksHeader& blocks : plan_frames(own, ranges, 1, 1 << 20)) {
      BlocksReceived frame{kSender, kKey, blocks, frames.size(), {}, frame_bytes(own, blocks), {}};
      wire::FrameHeader header;
      header.type = wire::FrameType::kBlocks;
      header.key = kKey;
      header.sequence = frame.sequence;
      header.payload_bytes = frame.payload_bytes + wire::kBlocksHeaderBytes;
      frame.header = wire::encode_header(header);
      digest.add(frame.header);
      bytes += frame.payload_bytes;
      frames.push_back(frame);
    }
    commit.set_frames(frames.size());
    commit.set_payload_bytes(bytes);
    commit.set_digest(digest.value());
  }
  // Feeds frames in the order of `order`; -1 is the Commit. The last result.
  Result<bool> feed(const std::vector<int>& order) {
    PayloadReceipt receipt(own, ranges);
    Result<bool> last = false;
    for (const int item : order) {
      last = item < 0 ? recv_handoff_payload(receipt, commit)
                      : recv_handoff_payload(receipt, frames[static_cast<std::size_t>(item)]);
      if (!last) {
        return last;
      }
    }
    return last;
  }
  kv::KvLayout own = layout();
  std::vector<wire::pb::TileRange> ranges = tiles_needed(own, 100);
  std::vector<BlocksReceived> frames;  // four, one per block
  wire::pb::Commit commit;
  std::uint64_t bytes = 0;
};

TEST(recv_handoff_payload, is_complete_in_any_order_and_only_when_all_is_there) {
  Payload payload;
  ASSERT_EQ(payload.frames.size(), 4U);
  std::vector<int> order = {-1, 0, 1, 2, 3};
  do {
    const auto complete = payload.feed(order);
    ASSERT_TRUE(complete.has_value()) << complete.error().message;
    EXPECT_TRUE(*complete);
    const auto partial = payload.feed({order.begin(), order.end() - 1});
    ASSERT_TRUE(partial.has_value());
    EXPECT_FALSE(*partial);
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST(recv_handoff_payload, finds_every_kind_of_mistake) {
  const std::vector<int> all = {0, 1, 2, 3, -1};
  EXPECT_FALSE(Payload().feed({0, 0}));    // a frame twice
  EXPECT_FALSE(Payload().feed({-1, -1}));  // two Commits
  const auto fails = [&](const std::function<void(Payload&)>& change) {
    Payload payload;
    change(payload);
    return !payload.feed(all).has_value();
  };
  EXPECT_FALSE(fails([](Payload&) {}));
  EXPECT_TRUE(fails([](Payload& p) { p.frames[1].status = fail(ErrorCode::kCorruptFrame, "x"); }));
  EXPECT_TRUE(fails([](Payload& p) { p.frames[1].sequence = 9; }));
  EXPECT_TRUE(fails([](Payload& p) { p.frames[1].sequence = kMaxHandoffFrames; }));
  EXPECT_TRUE(fails([](Payload& p) { p.frames[1].header[5] ^= std::byte{1}; }));
  EXPECT_TRUE(fails([](Payload& p) { p.frames[1].blocks = p.frames[0].blocks; }));  // a tile twice
  EXPECT_TRUE(fails([](Payload& p) { p.frames[3].blocks.first_tile = 4; }));        // not granted
  EXPECT_TRUE(fails([](Payload& p) { p.frames[3].payload_bytes -= 1; }));
  EXPECT_TRUE(fails([](Payload& p) { p.commit.set_frames(3); }));
  EXPECT_TRUE(fails([](Payload& p) { p.commit.set_payload_bytes(p.bytes - 1); }));
  EXPECT_TRUE(fails([](Payload& p) { p.commit.set_digest(std::string(16, 'x')); }));
}

TEST(check_commit, must_agree_with_the_request) {
  const PayloadExpectation expected{kKey, 100, 2, wire::tokens_digest({}, {})};
  wire::pb::Commit good;
  good.set_kv_tokens(100);
  good.set_tokens_digest(expected.tokens_digest);
  message::Token token;
  token.key = kKey;
  token.index = 2;
  *good.add_first() = token_to_wire(token);
  EXPECT_TRUE(check_commit(expected, good).has_value());
  wire::pb::Commit bad = good;
  bad.set_kv_tokens(99);
  EXPECT_FALSE(check_commit(expected, bad).has_value());
  bad = good;
  bad.set_tokens_digest(std::string(16, 'x'));
  EXPECT_FALSE(check_commit(expected, bad).has_value());
  bad = good;
  bad.mutable_first(0)->set_index(3);
  EXPECT_FALSE(check_commit(expected, bad).has_value());
  bad = good;
  bad.mutable_first(0)->set_epoch(1);
  EXPECT_FALSE(check_commit(expected, bad).has_value());
  bad = good;
  bad.clear_first();
  EXPECT_FALSE(check_commit(expected, bad).has_value());
}

struct Table {
  Table() {
    std::vector<message::LeasedBlock> blocks;
    for (std::uint32_t i = 0; i < 4; ++i) {
      const std::size_t size = own.block_bytes(0);
      blocks.push_back({kv::BlockId{i}, std::span(memory).subspan(i * size, size)});
    }
    table.open(kKey, {kSender, {blocks}, tiles_needed(own, 100)});
  }
  kv::KvLayout own = layout();
  std::vector<std::byte> memory = std::vector<std::byte>(4 * own.block_bytes(0));
  std::vector<SequenceKey> idle;
  ReservationTable table{own, [this](const SequenceKey& key) { idle.push_back(key); }};
  const wire::BlocksHeader frame{0, 0, 2, 0, 2, 1, 1, 32};
};

TEST(reservation_table, gives_each_granted_tile_once_and_only_to_its_sender) {
  Table t;
  EXPECT_FALSE(t.table.accept(NodeId{"other"}, kKey, t.frame));
  EXPECT_FALSE(t.table.accept(kSender, {{1, 2}, {0}, {1}}, t.frame));
  EXPECT_FALSE(t.table.accept(kSender, kKey, {0, 0, 2, 0, 2, 4, 1, 32}));
  EXPECT_FALSE(t.table.accept(kSender, kKey, {1, 0, 2, 0, 2, 0, 1, 32}));
  const auto spans = t.table.accept(kSender, kKey, t.frame);
  ASSERT_TRUE(spans.has_value());
  ASSERT_EQ(spans->size(), 1U);
  EXPECT_EQ((*spans)[0].data(), t.memory.data() + t.own.block_bytes(0));
  EXPECT_FALSE(t.table.accept(kSender, kKey, t.frame));
  t.table.landed(kKey, t.frame);
  EXPECT_TRUE(t.table.close(kKey));
  EXPECT_FALSE(t.table.accept(kSender, kKey, {0, 0, 2, 0, 2, 2, 1, 32}));
}

TEST(reservation_table, blocks_are_free_only_when_all_bytes_landed) {
  Table t;
  const wire::BlocksHeader second{0, 0, 2, 0, 2, 2, 1, 32};
  ASSERT_TRUE(t.table.accept(kSender, kKey, t.frame));
  ASSERT_TRUE(t.table.accept(kSender, kKey, second));
  EXPECT_FALSE(t.table.close(kKey));
  EXPECT_FALSE(t.table.accept(kSender, kKey, {0, 0, 2, 0, 2, 3, 1, 32}));
  t.table.landed(kKey, t.frame);
  EXPECT_TRUE(t.idle.empty());
  t.table.landed(kKey, second);
  EXPECT_EQ(t.idle, std::vector<SequenceKey>{kKey});
  EXPECT_TRUE(t.table.close(kKey));
}

message::Submit submit() {
  message::Submit result;
  result.key = kKey;
  result.prompt = {5, 6, 7};
  result.emitted = {8};
  result.sampling.logit_bias = {{3, -1.5F}};
  result.sampling.temperature = 0.7F;
  result.sampling.seed = 0xFFFFFFFFFFFFFFFFULL;
  result.sampling.top_logprobs = 5;
  result.max_tokens = 9;
  result.min_tokens = 2;
  result.stop_token_ids = {1, 2};
  result.ignore_eos = true;
  result.cache_namespace[3] = 9;
  result.priority = -4;
  return result;
}

TEST(convert, a_request_survives_the_round_trip) {
  const message::Submit sent = submit();
  const auto wired = request_to_wire(sent);
  ASSERT_TRUE(wired.has_value()) << wired.error().message;
  const auto got = request_from_wire(kKey, *wired);
  ASSERT_TRUE(got.has_value()) << got.error().message;
  EXPECT_EQ(got->prompt, sent.prompt);
  EXPECT_EQ(got->emitted, sent.emitted);
  EXPECT_EQ(got->sampling.logit_bias, sent.sampling.logit_bias);
  EXPECT_EQ(got->sampling.temperature, sent.sampling.temperature);
  EXPECT_EQ(got->sampling.seed, sent.sampling.seed);
  EXPECT_EQ(got->sampling.top_logprobs, sent.sampling.top_logprobs);
  EXPECT_EQ(got->max_tokens, sent.max_tokens);
  EXPECT_EQ(got->min_tokens, sent.min_tokens);
  EXPECT_EQ(got->stop_token_ids, sent.stop_token_ids);
  EXPECT_EQ(got->ignore_eos, sent.ignore_eos);
  EXPECT_EQ(got->cache_namespace, sent.cache_namespace);
  EXPECT_EQ(got->priority, sent.priority);
}

TEST(convert, bad_requests_are_refused_naming_the_field) {
  const auto refused = [](const std::function<void(wire::pb::Request&)>& change) {
    wire::pb::Request request = *request_to_wire(submit());
    change(request);
    const auto got = request_from_wire(kKey, request);
    return got ? std::string("accepted") : got.error().param;
  };
  EXPECT_EQ(refused([](auto&) {}), "accepted");
  EXPECT_EQ(refused([](auto& r) { r.clear_prompt(); }), "prompt");
  EXPECT_EQ(refused([](auto& r) { r.set_prompt(0, -1); }), "prompt");
  EXPECT_EQ(refused([](auto& r) { r.set_max_tokens(1); }), "max_tokens");
  EXPECT_EQ(refused([](auto& r) { r.set_max_tokens(0); }), "max_tokens");
  EXPECT_EQ(refused([](auto& r) { r.set_min_tokens(-1); }), "min_tokens");
  EXPECT_EQ(refused([](auto& r) { r.set_cache_namespace("short"); }), "cache_namespace");
  EXPECT_EQ(refused([](auto& r) { r.clear_sampling(); }), "sampling");
  EXPECT_EQ(refused([](auto& r) { r.mutable_sampling()->set_temperature_bits(0x7FC00000); }),
            "temperature");
  EXPECT_EQ(refused([](auto& r) { r.mutable_sampling()->set_top_logprobs(1000); }), "top_logprobs");
  EXPECT_EQ(request_from_wire({{1, 2}, kAllChoices, {0}}, *request_to_wire(submit())).error().param,
            "n");
  message::Submit huge = submit();
  huge.prompt.assign(600'000, 150'000);
  EXPECT_EQ(request_to_wire(huge).error().code, ErrorCode::kContextTooLong);
}

}  // namespace
}  // namespace baton::handoff
