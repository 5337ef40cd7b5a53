// Whole frames as a hostile or broken peer may send them: noise, frames with flipped bits, cut,
// spliced, and the same with checksums made good again, so that they get past the first gate. Read
// as a node reads each of its connections, control and bulk. Nothing may crash, hang, read outside
// its bytes (this runs under ASan and UBSan in CI), or be taken for valid when it is not. The seed
// is fixed, so a failure is found again.
#include "baton/wire/codec.h"
#include "baton/wire/crc32c.h"
#include "baton/wire/little_endian.h"
#include "baton/wire/validate.h"
#include "baton/wire/wire_test_util.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>

namespace baton::wire {
namespace {

using Bytes = std::vector<std::byte>;

constexpr int kFramesPerTest = 120'000;
constexpr std::size_t kCrcAt = 36;
constexpr std::size_t kPayloadBytesAt = 48;
constexpr std::size_t kHeaderCrcAt = 60;

Bytes blocks_frame() {
  const EncodedBlocksHeader encoded = encode_blocks_header({0, 2, 4, 0, 3, 8, 16, 128});
  Bytes tiles(300);
  for (std::size_t i = 0; i < tiles.size(); ++i) {
    tiles[i] = static_cast<std::byte>(i * 37);
  }
  const std::vector<std::span<const std::byte>> parts{tiles};
  const EncodedHeader header =
      encode_header(blocks_frame_header(test::sample_key(), 3, encoded, parts));
  Bytes frame(header.size() + encoded.size() + tiles.size());
  const auto rest = std::copy(header.begin(), header.end(), frame.begin());
  std::copy(tiles.begin(), tiles.end(), std::copy(encoded.begin(), encoded.end(), rest));
  return frame;
}

std::vector<Bytes> control_frames() {
  std::vector<Bytes> frames;
  for (const Control& message : test::sample_controls()) {
    frames.push_back(*encode_control(test::sample_key(), message));
  }
  auto hello = test::sample_hello();
  hello.set_nonce(std::string(kNonceBytes, 'n'));
  frames.push_back(*encode_hello(hello));
  pb::HelloReply reply;
  reply.set_accepted(true);
  *reply.mutable_hello() = hello;
  reply.set_proof(std::string(kProofBytes, 'p'));
  frames.push_back(*encode_hello_reply(reply));
  return frames;
}

std::vector<Bytes> bulk_frames() {
  pb::Lane lane;
  lane.set_address(std::string(90, 'a'));
  return {blocks_frame(), blocks_frame(), *encode_commit(test::sample_key(), test::sample_commit()),
          *encode_control(test::sample_key(), test::sample_controls()[7]),  // an Abort
          *encode_lane(lane)};
}

// What a receiver makes of a frame. A valid one says so with its type.
struct Read {
  bool valid = false;
  FrameType type = FrameType::kBeat;
  ErrorCode code = ErrorCode::kInternal;  // of a refused one
};

Read refused(const Error& error) { return {false, FrameType::kBeat, error.code}; }

template <class Message, class Encode>
Read judged(FrameType type, const Result<Message>& message, Encode encode) {
  if (!message) {
    return refused(message.error());
  }
  // What is let in may be sent on: it keeps every bound.
  EXPECT_TRUE(validate(*message).has_value());
  EXPECT_TRUE(encode(*message).has_value());
  return {true, type, {}};
}

Read read_blocks(const FrameHeader& header, std::span<const std::byte> payload) {
  if (payload.size() < kBlocksHeaderBytes) {
    return {false, header.type, ErrorCode::kProtocol};
  }
  const auto blocks = decode_blocks_header(payload.first<kBlocksHeaderBytes>());
  if (!blocks) {
    return refused(blocks.error());
  }
  // The products that a receiver computes of it stay in range.
  EXPECT_GT(blocks->layers, 0U);
  EXPECT_GT(blocks->tiles, 0U);
  EXPECT_LE(std::uint64_t{blocks->first_tile} + blocks->tiles,
            static_cast<std::uint64_t>(kMaxSequenceTokens) / 32);
  if (crc32c(payload) != header.payload_crc) {
    return {false, header.type, ErrorCode::kCorruptFrame};
  }
  return {true, header.type, {}};
}

// As handoff/ reads a connection: header first, then as much payload as it says. `frame` is copied
// to memory of exactly its size, so that ASan sees a read beyond it.
Read read_frame(const Bytes& frame) {
  if (frame.size() < kHeaderBytes) {
    return {false, FrameType::kBeat, ErrorCode::kPeerLost};  // the connection ended inside it
  }
  const auto exact = std::make_unique<std::byte[]>(frame.size());
  std::copy(frame.begin(), frame.end(), exact.get());
  const std::span<const std::byte> bytes(exact.get(), frame.size());
  const auto header = decode_header(bytes.first<kHeaderBytes>());
  if (!header) {
    return refused(header.error());
  }
  EXPECT_LE(header->payload_bytes, max_payload_bytes(header->type));
  const auto rest = bytes.subspan(kHeaderBytes);
  if (rest.size() < header->payload_bytes) {
    return {false, header->type, ErrorCode::kPeerLost};
  }
  const auto payload = rest.first(header->payload_bytes);
  const auto as_control = [](const auto& message) {
    return encode_control(test::sample_key(), message);
  };
  switch (header->type) {
    case FrameType::kBlocks:
      return read_blocks(*header, payload);
    case FrameType::kCommit:
      return judged(header->type, decode_commit(*header, payload), [](const pb::Commit& commit) {
        return encode_commit(test::sample_key(), commit);
      });
    case FrameType::kLane:
      return judged(header->type, decode_lane(*header, payload), encode_lane);
    case FrameType::kHello:
      return judged(header->type, decode_hello(*header, payload), encode_hello);
    case FrameType::kHelloReply:
      return judged(header->type, decode_hello_reply(*header, payload), encode_hello_reply);
    default:
      return judged(header->type, decode_control(*header, payload), as_control);
  }
}

void flip_bits(Bytes* frame, std::mt19937_64& random, std::size_t flips) {
  for (std::size_t i = 0; i < flips; ++i) {
    const std::size_t bit = random() % (frame->size() * 8);
    (*frame)[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
  }
}

// A random piece becomes shorter, longer, noise, or a piece of another frame.
void change_a_piece(Bytes* frame, const Bytes& other, std::mt19937_64& random) {
  const std::size_t at = random() % frame->size();
  const auto begin = frame->begin() + static_cast<std::ptrdiff_t>(at);
  switch (random() % 4) {
    case 0:
      frame->resize(at);
      break;
    case 1:
      frame->insert(begin, random() % 40, static_cast<std::byte>(random()));
      break;
    case 2: {
      const std::size_t bytes = std::min(frame->size() - at, std::size_t{random() % 16});
      std::generate_n(begin, bytes, [&] { return static_cast<std::byte>(random()); });
      break;
    }
    default: {
      const std::size_t bytes = std::min(frame->size() - at, other.size());
      const std::size_t from = random() % (other.size() - bytes + 1);
      std::copy_n(other.begin() + static_cast<std::ptrdiff_t>(from), bytes, begin);
    }
  }
}

// Length and both checksums made good, as a peer that means harm would.
void reseal(Bytes* frame) {
  if (frame->size() < kHeaderBytes) {
    return;
  }
  const auto payload = std::span<const std::byte>(*frame).subspan(kHeaderBytes);
  put(*frame, kPayloadBytesAt, static_cast<std::uint64_t>(payload.size()));
  put(*frame, kCrcAt, crc32c(payload));
  put(*frame, kHeaderCrcAt, crc32c(std::span<const std::byte>(*frame).first(kHeaderCrcAt)));
}

using Outcomes = std::map<ErrorCode, int>;

// Mutated frames that nobody sealed again: none is valid, since no few flips get past a CRC32C.
Outcomes read_broken(const std::vector<Bytes>& frames, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Outcomes outcomes;
  for (int round = 0; round < kFramesPerTest; ++round) {
    const Bytes& whole = frames[random() % frames.size()];
    Bytes frame = whole;
    flip_bits(&frame, random, 1 + random() % 3);
    if (frame == whole) {
      continue;  // flipped back
    }
    const Read read = read_frame(frame);
    EXPECT_FALSE(read.valid);
    ++outcomes[read.code];
  }
  return outcomes;
}

// Mutated and sealed: valid (and then within every bound, see judged) or refused in words.
std::pair<int, Outcomes> read_sealed(const std::vector<Bytes>& frames, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Outcomes outcomes;
  int valid = 0;
  for (int round = 0; round < kFramesPerTest; ++round) {
    Bytes frame = frames[random() % frames.size()];
    if (random() % 2 == 0) {
      flip_bits(&frame, random, 1 + random() % 8);
    } else {
      change_a_piece(&frame, frames[random() % frames.size()], random);
    }
    reseal(&frame);
    const Read read = read_frame(frame);
    valid += read.valid ? 1 : 0;
    if (!read.valid) {
      ++outcomes[read.code];
    }
  }
  return {valid, outcomes};
}

void expect_only(const Outcomes& outcomes, std::initializer_list<ErrorCode> allowed) {
  for (const auto& [code, times] : outcomes) {
    EXPECT_TRUE(std::find(allowed.begin(), allowed.end(), code) != allowed.end())
        << error_code_name(code) << " " << times;
  }
}

TEST(Mutated, NoFlippedControlFramePasses) {
  const Outcomes outcomes = read_broken(control_frames(), 1);
  expect_only(outcomes, {ErrorCode::kProtocol, ErrorCode::kCorruptFrame});
  EXPECT_GT(outcomes.at(ErrorCode::kCorruptFrame), kFramesPerTest / 2);
}

TEST(Mutated, NoFlippedBulkFramePasses) {
  const Outcomes outcomes = read_broken(bulk_frames(), 2);
  expect_only(outcomes, {ErrorCode::kProtocol, ErrorCode::kCorruptFrame});
  EXPECT_GT(outcomes.at(ErrorCode::kCorruptFrame), kFramesPerTest / 2);
}

TEST(Mutated, SealedControlFramesAreValidOrRefusedInWords) {
  const auto [valid, outcomes] = read_sealed(control_frames(), 3);
  expect_only(outcomes, {ErrorCode::kProtocol, ErrorCode::kPayloadTooLarge, ErrorCode::kPeerLost});
  EXPECT_GT(valid, kFramesPerTest / 100);  // both gates were reached
  EXPECT_GT(outcomes.at(ErrorCode::kProtocol), kFramesPerTest / 10);
}

TEST(Mutated, SealedBulkFramesAreValidOrRefusedInWords) {
  const auto [valid, outcomes] = read_sealed(bulk_frames(), 4);
  expect_only(outcomes, {ErrorCode::kProtocol, ErrorCode::kPayloadTooLarge, ErrorCode::kPeerLost});
  EXPECT_GT(valid, kFramesPerTest / 100);
  EXPECT_GT(outcomes.at(ErrorCode::kProtocol), kFramesPerTest / 20);
}

TEST(Mutated, NoiseNeverPasses) {
  std::mt19937_64 random(5);
  for (int round = 0; round < kFramesPerTest / 4; ++round) {
    Bytes frame(random() % 200);
    std::generate(frame.begin(), frame.end(), [&] { return static_cast<std::byte>(random()); });
    EXPECT_FALSE(read_frame(frame).valid);
    if (frame.size() >= 4) {
      put(frame, 0, kMagic);
      EXPECT_FALSE(read_frame(frame).valid);
    }
  }
}

}  // namespace
}  // namespace baton::wire
