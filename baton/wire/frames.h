// Frames of the handoff protocol: a fixed little-endian header, then a Protobuf message (control)
// or raw tiles (Blocks). Bytes in, values out; no sockets. docs/protocol.md is the specification.
#pragma once

#include "baton/base/ids.h"
#include "baton/base/result.h"
#include "baton/wire/messages.pb.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

namespace baton::wire {

inline constexpr std::uint32_t kMagic = 0x4E544142;  // "BATN"
inline constexpr std::uint16_t kProtocolMin = 1;
inline constexpr std::uint16_t kProtocolMax = 1;
inline constexpr std::size_t kHeaderBytes = 64;
using EncodedHeader = std::array<std::byte, kHeaderBytes>;

enum class FrameType : std::uint16_t {
  kHello = 1,
  kHelloReply = 2,
  kPrefill = 3,
  kDecode = 4,
  kGrant = 5,
  kBlocks = 6,
  kCommit = 7,
  kAck = 8,
  kTokens = 9,
  kRefused = 10,
  kFinished = 11,
  kAbort = 12,
  kBeat = 13,
  kLane = 14,
  kCached = 15,
};

// Byte offsets: magic 0, version 4, type 6, flags 8, choice 12, request high 16, request low 24,
// epoch 32, payload CRC32C 36, sequence 40, payload length 48, reserved (0) 56, header CRC32C 60
// (over bytes [0, 60)). A Blocks frame's payload is a BlocksHeader (kBlocksHeaderBytes), then
// tiles.
struct FrameHeader {
  std::uint16_t version = kProtocolMax;
  FrameType type = FrameType::kBeat;
  std::uint32_t flags = 0;
  SequenceKey key;
  std::uint64_t sequence = 0;
  std::uint64_t payload_bytes = 0;
  std::uint32_t payload_crc = 0;
};

// Which tiles a Blocks frame carries; payload order: for each sender's block that the tile range
// touches, [layer][head][tile][K|V] within the ranges.
struct BlocksHeader {
  std::uint32_t group = 0;
  std::uint32_t first_layer = 0;  // within the group
  std::uint32_t layers = 0;
  std::uint32_t first_head = 0;
  std::uint32_t heads = 0;
  std::uint32_t first_tile = 0;  // of the sequence
  std::uint32_t tiles = 0;
  std::uint32_t block_tokens = 0;  // the sender's
  bool operator==(const BlocksHeader&) const = default;
};
inline constexpr std::size_t kBlocksHeaderBytes = 32;

using Control = std::variant<pb::Prefill, pb::Decode, pb::Grant, pb::Ack, pb::Tokens, pb::Refused,
                             pb::Finished, pb::Abort, pb::Beat, pb::Cached>;

}  // namespace baton::wire
