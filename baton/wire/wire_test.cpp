// The wire format: golden bytes (made by an independent implementation of docs/protocol.md), round
// trips, every truncation, lengths beyond each bound, and random mutation with a fixed seed.
#include "baton/wire/codec.h"
#include "baton/wire/crc32c.h"
#include "baton/wire/digest.h"
#include "baton/wire/little_endian.h"
#include "baton/wire/validate.h"
#include "baton/wire/wire_test_util.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <random>

namespace baton::wire {
namespace {

using namespace test;  // NOLINT(google-build-using-namespace): the samples

std::string hex(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte byte : bytes) {
    constexpr char kDigits[] = "0123456789abcdef";
    text += kDigits[static_cast<unsigned>(byte) >> 4];
    text += kDigits[static_cast<unsigned>(byte) & 15];
  }
  return text;
}

std::span<const std::byte> as_bytes(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// Serialised text of any message of the variant, to compare.
std::string serialised(const Control& message) {
  return std::visit([](const auto& body) { return body.SerializeAsString(); }, message);
}

std::pair<FrameHeader, std::vector<std::byte>> split(const std::vector<std::byte>& frame) {
  const auto header = decode_header(std::span(frame).first<kHeaderBytes>());
  EXPECT_TRUE(header.has_value()) << (header ? "" : header.error().message);
  return {header.value_or(FrameHeader{}), {frame.begin() + kHeaderBytes, frame.end()}};
}

EncodedHeader resealed(EncodedHeader bytes) {
  put(bytes, 60, crc32c(std::span(bytes).first(60)));
  return bytes;
}

TEST(Crc32c, CheckValueAndPieces) {
  const std::string text = "123456789";
  EXPECT_EQ(crc32c(as_bytes(text)), 0xE3069283U);
  EXPECT_EQ(crc32c({}), 0U);
  for (std::size_t cut = 0; cut <= text.size(); ++cut) {
    Crc32c crc;
    crc.update(as_bytes(text).first(cut));
    crc.update(as_bytes(text).subspan(cut));
    EXPECT_EQ(crc.value(), 0xE3069283U);
  }
}

TEST(Digest, KnownEmptyValueAndOrder) {
  HandoffDigest digest;
  EXPECT_EQ(hex(as_bytes(digest.value())), "99aa06d3014798d86001c324468d497f");
  FrameHeader header;
  const EncodedHeader first = encode_header(header);
  header.sequence = 1;
  const EncodedHeader second = encode_header(header);
  HandoffDigest forward;
  forward.add(first);
  forward.add(second);
  HandoffDigest backward;
  backward.add(second);
  backward.add(first);
  EXPECT_NE(forward.value(), backward.value());
  EXPECT_EQ(forward.value().size(), kDigestBytes);
}

TEST(Digest, TokensAreOneList) {
  const std::vector<TokenId> all{1, 2, 3};
  const std::vector<TokenId> head{1, 2};
  const std::vector<TokenId> tail{3};
  EXPECT_EQ(tokens_digest(all, {}), tokens_digest(head, tail));
  EXPECT_NE(tokens_digest(all, {}), tokens_digest(head, {}));
}

TEST(Header, GoldenBytes) {
  const FrameHeader header{1, FrameType::kBlocks, 0, sample_key(), 9, 32, 0xCAFEBABE};
  EXPECT_EQ(hex(encode_header(header)),
            "4241544e0100060000000000030000000807060504030201181716151413121107000000bebafeca"
            "09000000000000002000000000000000000000004f4b2132");
}

TEST(Header, GoldenFrame) {
  pb::Abort abort;
  abort.set_code(10);
  abort.set_message("bye");
  const auto frame = encode_control({RequestId{1, 2}, kAllChoices, Epoch{3}}, abort);
  ASSERT_TRUE(frame.has_value());
  EXPECT_EQ(hex(*frame),
            "4241544e01000c0000000000ffffffff0100000000000000020000000000000003000000a6392ddf"
            "0000000000000000070000000000000000000000753894f4080a1203627965");
}

TEST(Header, RoundTrip) {
  const FrameHeader header{1, FrameType::kBlocks, 0, sample_key(), 9, 4096, 0xCAFEBABE};
  const auto back = decode_header(encode_header(header));
  ASSERT_TRUE(back.has_value());
  EXPECT_EQ(back->type, header.type);
  EXPECT_EQ(back->key, header.key);
  EXPECT_EQ(back->sequence, header.sequence);
  EXPECT_EQ(back->payload_bytes, header.payload_bytes);
  EXPECT_EQ(back->payload_crc, header.payload_crc);
}

TEST(Header, EveryBitFlipIsSeen) {
  const EncodedHeader good =
      encode_header({1, FrameType::kCommit, 0, sample_key(), 0, 100, 0x12345678});
  for (std::size_t bit = 0; bit < 8 * kHeaderBytes; ++bit) {
    EncodedHeader bytes = good;
    bytes[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    EXPECT_FALSE(decode_header(bytes).has_value()) << "bit " << bit;
  }
}

TEST(Header, LengthsBeyondTheTypesBound) {
  for (std::uint16_t type = 1; type <= 15; ++type) {
    const auto kind = static_cast<FrameType>(type);
    const std::size_t most = max_payload_bytes(kind);
    ASSERT_GT(most, 0U);
    EXPECT_TRUE(decode_header(encode_header({1, kind, 0, sample_key(), 0, most, 0})).has_value());
    for (const std::uint64_t over : {std::uint64_t{most} + 1, std::uint64_t{1} << 32,
                                     std::numeric_limits<std::uint64_t>::max()}) {
      const auto header = decode_header(encode_header({1, kind, 0, sample_key(), 0, over, 0}));
      ASSERT_FALSE(header.has_value());
      EXPECT_EQ(header.error().code, ErrorCode::kPayloadTooLarge);
    }
  }
}

TEST(Header, VersionTypeFlagsReserved) {
  const EncodedHeader good = encode_header({1, FrameType::kBeat, 0, sample_key(), 0, 0, 0});
  const auto changed = [&](std::size_t offset, std::uint8_t value) {
    EncodedHeader bytes = good;
    bytes[offset] = std::byte{value};
    return decode_header(resealed(bytes));
  };
  ASSERT_TRUE(decode_header(good).has_value());
  for (const auto& [offset, value] : {std::pair<std::size_t, std::uint8_t>{4, 2},
                                      {4, 0},
                                      {6, 0},
                                      {6, 16},
                                      {7, 1},
                                      {8, 1},
                                      {11, 128},
                                      {56, 1},
                                      {59, 255}}) {
    const auto header = changed(offset, value);
    ASSERT_FALSE(header.has_value()) << offset;
    EXPECT_EQ(header.error().code, ErrorCode::kProtocol) << offset;
  }
}

TEST(BlocksHeaders, RoundTripAndRanges) {
  const BlocksHeader good{0, 2, 28, 1, 2, 40, 8, 128};
  EXPECT_EQ(*decode_blocks_header(encode_blocks_header(good)), good);
  for (int field = 0; field < 8; ++field) {
    auto bytes = encode_blocks_header(good);
    put(bytes, static_cast<std::size_t>(4 * field), std::uint32_t{0xFFFFFFFF});
    EXPECT_FALSE(decode_blocks_header(bytes).has_value()) << "field " << field;
  }
  for (BlocksHeader bad :
       {BlocksHeader{0, 0, 0, 0, 1, 0, 1, 128}, BlocksHeader{0, 0, 1, 0, 0, 0, 1, 128},
        BlocksHeader{0, 0, 1, 0, 1, 0, 0, 128}, BlocksHeader{0, 0, 1, 0, 1, 0, 1, 48}}) {
    EXPECT_FALSE(decode_blocks_header(encode_blocks_header(bad)).has_value());
  }
}

TEST(BlocksFrames, CrcCoversBlocksHeaderAndAllParts) {
  const auto blocks = encode_blocks_header({0, 0, 1, 0, 1, 0, 1, 32});
  const std::string text = "tiles of a sequence";
  const auto whole = as_bytes(text);
  const std::vector<std::span<const std::byte>> parts{whole.first(4), {}, whole.subspan(4)};
  const FrameHeader header = blocks_frame_header(sample_key(), 5, blocks, parts);
  std::vector<std::byte> payload(blocks.begin(), blocks.end());
  payload.insert(payload.end(), whole.begin(), whole.end());
  EXPECT_EQ(header.payload_bytes, payload.size());
  EXPECT_EQ(header.payload_crc, crc32c(payload));
  EXPECT_EQ(header.sequence, 5U);
}

TEST(Messages, EveryControlMakesTheRoundTrip) {
  for (const Control& message : sample_controls()) {
    const auto frame = encode_control(sample_key(), message);
    ASSERT_TRUE(frame.has_value()) << frame.error().message;
    const auto [header, payload] = split(*frame);
    EXPECT_EQ(header.type, control_type(message));
    EXPECT_EQ(header.key, sample_key());
    const auto back = decode_control(header, payload);
    ASSERT_TRUE(back.has_value()) << back.error().message;
    EXPECT_EQ(back->index(), message.index());
    EXPECT_EQ(serialised(*back), serialised(message));
  }
}

TEST(Messages, CommitHelloAndReply) {
  const auto commit_frame = encode_commit(sample_key(), sample_commit());
  ASSERT_TRUE(commit_frame.has_value());
  const auto [header, payload] = split(*commit_frame);
  EXPECT_EQ(decode_commit(header, payload)->SerializeAsString(),
            sample_commit().SerializeAsString());
  EXPECT_FALSE(decode_hello(header, payload).has_value());

  const auto hello_frame = encode_hello(sample_hello());
  ASSERT_TRUE(hello_frame.has_value());
  const auto [hello_header, hello_payload] = split(*hello_frame);
  EXPECT_EQ(decode_hello(hello_header, hello_payload)->node_id(), "p1");
  EXPECT_FALSE(decode_control(hello_header, hello_payload).has_value());

  pb::HelloReply reply;
  reply.set_field("model_digest");
  reply.set_ours("a");
  reply.set_theirs("b");
  const auto reply_frame = encode_hello_reply(reply);
  ASSERT_TRUE(reply_frame.has_value());
  const auto [reply_header, reply_payload] = split(*reply_frame);
  EXPECT_EQ(decode_hello_reply(reply_header, reply_payload)->theirs(), "b");
}

TEST(Messages, Lane) {
  pb::Lane lane;
  lane.set_address(std::string("\0key and address", 16));
  const auto frame = encode_lane(lane);
  ASSERT_TRUE(frame.has_value());
  const auto [header, payload] = split(*frame);
  EXPECT_EQ(header.type, FrameType::kLane);
  EXPECT_EQ(decode_lane(header, payload)->address(), lane.address());
  EXPECT_FALSE(decode_hello(header, payload).has_value());
  EXPECT_FALSE(decode_control(header, payload).has_value());
}

TEST(Messages, EveryTruncationIsRefused) {
  for (const Control& message : sample_controls()) {
    const auto frame = encode_control(sample_key(), message);
    const auto [header, payload] = split(*frame);
    for (std::size_t bytes = 0; bytes < payload.size(); ++bytes) {
      const auto cut = std::span(payload).first(bytes);
      EXPECT_EQ(decode_control(header, cut).error().code, ErrorCode::kCorruptFrame);
      // Also when the sender itself cut it, with a header to match: parsed or refused, never more.
      FrameHeader honest = header;
      honest.payload_bytes = bytes;
      honest.payload_crc = crc32c(cut);
      const auto back = decode_control(honest, cut);
      if (!back) {
        EXPECT_EQ(back.error().code, ErrorCode::kProtocol);
      }
    }
  }
}

TEST(Messages, CorruptPayloadIsRefused) {
  const auto frame = encode_commit(sample_key(), sample_commit());
  auto [header, payload] = split(*frame);
  for (std::size_t i = 0; i < payload.size(); ++i) {
    payload[i] ^= std::byte{1};
    EXPECT_EQ(decode_commit(header, payload).error().code, ErrorCode::kCorruptFrame);
    payload[i] ^= std::byte{1};
  }
}

// A peer that seals garbage with good CRCs: parsed to something valid, or refused as kProtocol.
TEST(Messages, RandomMutationsNeverBreakUs) {
  std::mt19937_64 random(20240607);
  std::size_t refused = 0;
  const auto controls = sample_controls();
  for (int round = 0; round < 20000; ++round) {
    const Control& message = controls[random() % controls.size()];
    const auto frame = encode_control(sample_key(), message);
    auto [header, payload] = split(*frame);
    const auto flips = 1 + random() % 4;
    for (std::size_t i = 0; i < flips && !payload.empty(); ++i) {
      payload[random() % payload.size()] = static_cast<std::byte>(random());
    }
    if (random() % 4 == 0) {
      payload.resize(random() % (payload.size() + 16));
    }
    header.payload_bytes = payload.size();
    header.payload_crc = crc32c(payload);
    const auto back = decode_control(header, payload);
    if (!back) {
      EXPECT_EQ(back.error().code, ErrorCode::kProtocol);
      ++refused;
    } else {
      EXPECT_TRUE(validate(*back).has_value());
      EXPECT_TRUE(encode_control(sample_key(), *back).has_value());
    }
  }
  EXPECT_GT(refused, 5000U);
}

TEST(Messages, RandomHeadersNeverPass) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 20000; ++round) {
    EncodedHeader bytes;
    std::generate(bytes.begin(), bytes.end(), [&] { return static_cast<std::byte>(random()); });
    EXPECT_FALSE(decode_header(bytes).has_value());
    put(bytes, 0, kMagic);
    const auto header = decode_header(resealed(bytes));  // version, type or length out of range
    EXPECT_FALSE(header.has_value());
  }
}

TEST(Messages, TooLargeIsNotSent) {
  pb::Prefill prefill;
  *prefill.mutable_request() = sample_request();
  prefill.set_reply_to("router");
  for (int i = 0; i < 400'000; ++i) {
    prefill.mutable_request()->add_prompt(200'000);
  }
  const auto frame = encode_control(sample_key(), prefill);
  ASSERT_FALSE(frame.has_value());
  EXPECT_EQ(frame.error().code, ErrorCode::kPayloadTooLarge);
}

// ---- validation: one bad field at a time --------------------------------------------------------

template <class Message, class Change>
void expect_bad(Message message, Change change, const std::string& field) {
  ASSERT_TRUE(validate(message).has_value()) << validate(message).error().message;
  change(message);
  const Status status = validate(message);
  ASSERT_FALSE(status.has_value()) << field;
  EXPECT_EQ(status.error().code, ErrorCode::kProtocol);
  EXPECT_EQ(status.error().param, field) << status.error().message;
}

TEST(Validate, Request) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const pb::Request good = sample_request();
  using R = pb::Request;
  expect_bad(
      good, [](R& r) { r.clear_prompt(); }, "request.prompt");
  expect_bad(
      good, [](R& r) { r.set_prompt(1, -1); }, "request.prompt");
  expect_bad(
      good, [](R& r) { r.set_emitted(0, -2); }, "request.emitted");
  expect_bad(
      good, [](R& r) { r.clear_sampling(); }, "request.sampling");
  expect_bad(
      good, [](R& r) { r.set_max_tokens(0); }, "request.max_tokens");
  expect_bad(
      good, [](R& r) { r.set_max_tokens(1); }, "request.max_tokens");  // all emitted already
  expect_bad(
      good, [](R& r) { r.set_min_tokens(-1); }, "request.min_tokens");
  expect_bad(
      good, [](R& r) { r.set_cache_namespace("short"); }, "request.cache_namespace");
  expect_bad(
      good, [](R& r) { r.add_stop_token_ids(-5); }, "request.stop_token_ids");
  expect_bad(
      good, [&](R& r) { r.mutable_sampling()->set_temperature_bits(bits(nan)); },
      "sampling.temperature");
  expect_bad(
      good, [](R& r) { r.mutable_sampling()->set_temperature_bits(bits(-1.0F)); },
      "sampling.temperature");
  expect_bad(
      good, [](R& r) { r.mutable_sampling()->set_top_p_bits(bits(1.5F)); }, "sampling.top_p");
  expect_bad(
      good, [](R& r) { r.mutable_sampling()->set_top_logprobs(21); }, "sampling.top_logprobs");
}

TEST(Validate, OtherMessages) {
  const auto controls = sample_controls();
  expect_bad(
      std::get<pb::Prefill>(controls[0]), [](auto& m) { m.set_reply_to(""); }, "prefill.reply_to");
  expect_bad(
      std::get<pb::Decode>(controls[1]), [](auto& m) { m.set_prefill_node("a b"); },
      "decode.prefill_node");
  expect_bad(
      std::get<pb::Grant>(controls[2]),
      [](auto& m) { m.mutable_ranges(0)->set_first_tile(0xFFFFFFFF); }, "grant.ranges");
  expect_bad(
      std::get<pb::Grant>(controls[2]), [](auto& m) { m.mutable_ranges(0)->set_tiles(0); },
      "grant.ranges");
  expect_bad(
      std::get<pb::Tokens>(controls[4]), [](auto& m) { m.mutable_tokens(0)->set_index(-1); },
      "tokens.tokens");
  expect_bad(
      std::get<pb::Finished>(controls[6]), [](auto& m) { m.set_reason(pb::FINISH_NONE); },
      "finished.reason");
  expect_bad(
      std::get<pb::Abort>(controls[7]), [](auto& m) { m.set_message(std::string(5000, 'x')); },
      "abort.message");
  expect_bad(
      std::get<pb::Beat>(controls[8]), [](auto& m) { m.set_free_blocks(10); }, "beat.free_blocks");
  expect_bad(
      std::get<pb::Cached>(controls[9]),
      [](auto& m) {
        m.mutable_added()->Resize(kMaxPrefixNames, 7);
        m.add_removed(7);
      },
      "cached.names");
  expect_bad(
      sample_commit(), [](auto& m) { m.set_digest("x"); }, "commit.digest");
  expect_bad(
      sample_commit(), [](auto& m) { m.clear_first(); }, "commit.first");
  expect_bad(
      sample_commit(), [](auto& m) { m.set_kv_tokens(0); }, "commit.kv_tokens");
  expect_bad(
      sample_hello(), [](auto& m) { m.set_node_id(std::string(65, 'a')); }, "hello.node_id");
  expect_bad(
      sample_hello(), [](auto& m) { m.set_protocol_max(0); }, "hello.protocol_max");
  expect_bad(
      sample_hello(), [](auto& m) { m.clear_model_digest(); }, "hello.model_digest");
  expect_bad(
      sample_hello(), [](auto& m) { m.clear_boot_low(); }, "hello.boot");
  expect_bad(
      sample_hello(), [](auto& m) { m.mutable_groups(0)->set_layers(0); }, "hello.groups.layers");
}

TEST(Validate, Fabrics) {
  expect_bad(
      sample_hello(), [](auto& m) { m.set_fabric(std::string(33, 'u')); }, "hello.fabric");
  pb::Lane lane;
  lane.set_address(std::string(kMaxLaneAddressBytes, 'a'));
  expect_bad(
      lane, [](auto& m) { m.mutable_address()->push_back('a'); }, "lane.address");
  expect_bad(
      lane, [](auto& m) { m.clear_address(); }, "lane.address");
}

TEST(Validate, NodeIds) {
  for (const char* good : {"a", "p1", "node-7.rack_2"}) {
    EXPECT_TRUE(valid_node_id(good));
  }
  for (const char* bad : {"", "a b", "a:1", "\xC3\xA9", "a/b"}) {
    EXPECT_FALSE(valid_node_id(bad));
  }
}

}  // namespace
}  // namespace baton::wire
