#include "baton/wire/codec.h"

#include "baton/wire/crc32c.h"
#include "baton/wire/little_endian.h"
#include "baton/wire/validate.h"

#include <fmt/format.h>
#include <google/protobuf/stubs/logging.h>

#include <cstring>
#include <utility>

namespace baton::wire {

namespace {

// Byte offsets of the frame header, see frames.h.
constexpr std::size_t kMagicAt = 0;
constexpr std::size_t kVersionAt = 4;
constexpr std::size_t kTypeAt = 6;
constexpr std::size_t kFlagsAt = 8;
constexpr std::size_t kChoiceAt = 12;
constexpr std::size_t kRequestHighAt = 16;
constexpr std::size_t kRequestLowAt = 24;
constexpr std::size_t kEpochAt = 32;
constexpr std::size_t kPayloadCrcAt = 36;
constexpr std::size_t kSequenceAt = 40;
constexpr std::size_t kPayloadBytesAt = 48;
constexpr std::size_t kReservedAt = 56;
constexpr std::size_t kHeaderCrcAt = 60;

// Protobuf would print a line for each bad string: a peer must not be able to fill our log.
[[maybe_unused]] const auto kDefaultLogHandler = google::protobuf::SetLogHandler(nullptr);

template <class Message>
Result<std::vector<std::byte>> encode_message(FrameType type, const SequenceKey& key,
                                              const Message& message) {
  if (auto valid = validate(message); !valid) {
    return fail(ErrorCode::kInternal, "not sent: " + valid.error().message);
  }
  const std::size_t payload_bytes = message.ByteSizeLong();
  if (payload_bytes > max_payload_bytes(type)) {
    return fail(ErrorCode::kPayloadTooLarge,
                fmt::format("a {} of {} bytes exceeds the protocol's {}", frame_type_name(type),
                            payload_bytes, max_payload_bytes(type)));
  }
  std::vector<std::byte> frame(kHeaderBytes + payload_bytes);
  message.SerializeWithCachedSizesToArray(
      reinterpret_cast<std::uint8_t*>(frame.data() + kHeaderBytes));
  FrameHeader header;
  header.type = type;
  header.key = key;
  header.payload_bytes = payload_bytes;
  header.payload_crc = crc32c(std::span(frame).subspan(kHeaderBytes));
  const EncodedHeader encoded = encode_header(header);
  std::memcpy(frame.data(), encoded.data(), encoded.size());
  return frame;
}

Status check_payload(const FrameHeader& header, std::span<const std::byte> payload) {
  if (payload.size() != header.payload_bytes) {
    return fail(ErrorCode::kCorruptFrame,
                fmt::format("a {} has {} bytes, its header says {}", frame_type_name(header.type),
                            payload.size(), header.payload_bytes));
  }
  if (crc32c(payload) != header.payload_crc) {
    return fail(ErrorCode::kCorruptFrame,
                fmt::format("CRC of a {} payload is wrong", frame_type_name(header.type)));
  }
  return {};
}

template <class Message>
Result<Message> decode_message(const FrameHeader& header, std::span<const std::byte> payload) {
  BATON_TRY_VOID(check_payload(header, payload));
  Message message;
  if (!message.ParseFromArray(payload.data(), static_cast<int>(payload.size()))) {
    return fail(ErrorCode::kProtocol,
                fmt::format("a {} is not valid Protobuf", frame_type_name(header.type)));
  }
  BATON_TRY_VOID(validate(message));
  return message;
}

template <class Message>
Result<Control> decode_as_control(const FrameHeader& header, std::span<const std::byte> payload) {
  BATON_TRY(Message message, decode_message<Message>(header, payload));
  return Control(std::move(message));
}

Status expect_type(const FrameHeader& header, FrameType type) {
  if (header.type != type) {
    return fail(ErrorCode::kProtocol, fmt::format("expected a {}, got a {}", frame_type_name(type),
                                                  frame_type_name(header.type)));
  }
  return {};
}

}  // namespace

std::string_view frame_type_name(FrameType type) {
  switch (type) {
    case FrameType::kHello:
      return "hello";
    case FrameType::kHelloReply:
      return "hello_reply";
    case FrameType::kPrefill:
      return "prefill";
    case FrameType::kDecode:
      return "decode";
    case FrameType::kGrant:
      return "grant";
    case FrameType::kBlocks:
      return "blocks";
    case FrameType::kCommit:
      return "commit";
    case FrameType::kAck:
      return "ack";
    case FrameType::kTokens:
      return "tokens";
    case FrameType::kRefused:
      return "refused";
    case FrameType::kFinished:
      return "finished";
    case FrameType::kAbort:
      return "abort";
    case FrameType::kBeat:
      return "beat";
    case FrameType::kLane:
      return "lane";
    case FrameType::kCached:
      return "cached";
  }
  return "unknown";
}

EncodedHeader encode_header(const FrameHeader& header) {
  EncodedHeader bytes{};
  put(bytes, kMagicAt, kMagic);
  put(bytes, kVersionAt, header.version);
  put(bytes, kTypeAt, static_cast<std::uint16_t>(header.type));
  put(bytes, kFlagsAt, header.flags);
  put(bytes, kChoiceAt, header.key.choice.value);
  put(bytes, kRequestHighAt, header.key.request.high);
  put(bytes, kRequestLowAt, header.key.request.low);
  put(bytes, kEpochAt, header.key.epoch.value);
  put(bytes, kPayloadCrcAt, header.payload_crc);
  put(bytes, kSequenceAt, header.sequence);
  put(bytes, kPayloadBytesAt, header.payload_bytes);
  put(bytes, kHeaderCrcAt, crc32c(std::span(bytes).first(kHeaderCrcAt)));
  return bytes;
}

Result<FrameHeader> decode_header(std::span<const std::byte, kHeaderBytes> bytes) {
  const auto magic = get<std::uint32_t>(bytes, kMagicAt);
  if (magic != kMagic) {  // before the CRC: somebody else's protocol is told as such
    constexpr std::uint32_t kHttp = 0x50545448;  // "HTTP", how its answers begin
    return fail(
        ErrorCode::kProtocol,
        fmt::format("not a baton frame: magic {:#010x}, expected {:#010x}{}", magic, kMagic,
                    magic == kHttp ? " (an HTTP server: nodes meet at their --serving-bind)" : ""));
  }
  if (get<std::uint32_t>(bytes, kHeaderCrcAt) != crc32c(bytes.first(kHeaderCrcAt))) {
    return fail(ErrorCode::kCorruptFrame, "CRC of a frame header is wrong");
  }
  FrameHeader header;
  header.version = get<std::uint16_t>(bytes, kVersionAt);
  header.type = static_cast<FrameType>(get<std::uint16_t>(bytes, kTypeAt));
  header.flags = get<std::uint32_t>(bytes, kFlagsAt);
  header.key.choice.value = get<std::uint32_t>(bytes, kChoiceAt);
  header.key.request.high = get<std::uint64_t>(bytes, kRequestHighAt);
  header.key.request.low = get<std::uint64_t>(bytes, kRequestLowAt);
  header.key.epoch.value = get<std::uint32_t>(bytes, kEpochAt);
  header.payload_crc = get<std::uint32_t>(bytes, kPayloadCrcAt);
  header.sequence = get<std::uint64_t>(bytes, kSequenceAt);
  header.payload_bytes = get<std::uint64_t>(bytes, kPayloadBytesAt);
  if (header.version < kProtocolMin || header.version > kProtocolMax) {
    return fail(ErrorCode::kProtocol,
                fmt::format("frame of protocol version {}, known are {} to {}", header.version,
                            kProtocolMin, kProtocolMax));
  }
  const std::size_t most = max_payload_bytes(header.type);
  if (most == 0) {
    return fail(ErrorCode::kProtocol,
                fmt::format("frame type {} does not exist", static_cast<unsigned>(header.type)));
  }
  if (header.flags != 0 || get<std::uint32_t>(bytes, kReservedAt) != 0) {
    return fail(ErrorCode::kProtocol,
                fmt::format("a {} has flags or reserved bytes set", frame_type_name(header.type)));
  }
  if (header.payload_bytes > most) {
    return fail(ErrorCode::kPayloadTooLarge,
                fmt::format("a {} of {} bytes exceeds the protocol's {}",
                            frame_type_name(header.type), header.payload_bytes, most));
  }
  return header;
}

EncodedBlocksHeader encode_blocks_header(const BlocksHeader& blocks) {
  EncodedBlocksHeader bytes{};
  put(bytes, 0, blocks.group);
  put(bytes, 4, blocks.first_layer);
  put(bytes, 8, blocks.layers);
  put(bytes, 12, blocks.first_head);
  put(bytes, 16, blocks.heads);
  put(bytes, 20, blocks.first_tile);
  put(bytes, 24, blocks.tiles);
  put(bytes, 28, blocks.block_tokens);
  return bytes;
}

Result<BlocksHeader> decode_blocks_header(std::span<const std::byte, kBlocksHeaderBytes> bytes) {
  BlocksHeader blocks;
  blocks.group = get<std::uint32_t>(bytes, 0);
  blocks.first_layer = get<std::uint32_t>(bytes, 4);
  blocks.layers = get<std::uint32_t>(bytes, 8);
  blocks.first_head = get<std::uint32_t>(bytes, 12);
  blocks.heads = get<std::uint32_t>(bytes, 16);
  blocks.first_tile = get<std::uint32_t>(bytes, 20);
  blocks.tiles = get<std::uint32_t>(bytes, 24);
  blocks.block_tokens = get<std::uint32_t>(bytes, 28);
  // Far above any model, and small enough that first + count and all products fit in 64 bits.
  const auto bad = [](std::uint32_t first, std::uint32_t count, std::uint32_t most) {
    return count == 0 || first >= most || count > most - first;
  };
  if (blocks.group >= static_cast<std::uint32_t>(kMaxKvGroups) ||
      bad(blocks.first_layer, blocks.layers, 1U << 16) ||
      bad(blocks.first_head, blocks.heads, 1U << 16) ||
      bad(blocks.first_tile, blocks.tiles, static_cast<std::uint32_t>(kMaxSequenceTokens) / 32)) {
    return fail(ErrorCode::kProtocol,
                fmt::format("a blocks frame has an impossible range: group {}, layers {}+{}, heads "
                            "{}+{}, tiles {}+{}",
                            blocks.group, blocks.first_layer, blocks.layers, blocks.first_head,
                            blocks.heads, blocks.first_tile, blocks.tiles));
  }
  if (blocks.block_tokens != 32 && blocks.block_tokens != 64 && blocks.block_tokens != 128 &&
      blocks.block_tokens != 256) {
    return fail(ErrorCode::kProtocol, fmt::format("a blocks frame has block_tokens {}, known are "
                                                  "32, 64, 128 and 256",
                                                  blocks.block_tokens));
  }
  return blocks;
}

FrameHeader blocks_frame_header(const SequenceKey& key, std::uint64_t sequence,
                                const EncodedBlocksHeader& blocks,
                                std::span<const std::span<const std::byte>> tiles) {
  Crc32c crc;
  crc.update(blocks);
  FrameHeader header;
  header.type = FrameType::kBlocks;
  header.key = key;
  header.sequence = sequence;
  header.payload_bytes = blocks.size();
  for (const auto& part : tiles) {
    crc.update(part);
    header.payload_bytes += part.size();
  }
  header.payload_crc = crc.value();
  return header;
}

FrameType control_type(const Control& message) {
  static constexpr FrameType kTypes[] = {
      FrameType::kPrefill, FrameType::kDecode,  FrameType::kGrant,    FrameType::kAck,
      FrameType::kTokens,  FrameType::kRefused, FrameType::kFinished, FrameType::kAbort,
      FrameType::kBeat,    FrameType::kCached};
  static_assert(std::size(kTypes) == std::variant_size_v<Control>);
  return kTypes[message.index()];
}

Result<std::vector<std::byte>> encode_control(const SequenceKey& key, const Control& message) {
  return std::visit(
      [&](const auto& body) { return encode_message(control_type(message), key, body); }, message);
}

Result<std::vector<std::byte>> encode_commit(const SequenceKey& key, const pb::Commit& commit) {
  return encode_message(FrameType::kCommit, key, commit);
}

Result<std::vector<std::byte>> encode_hello(const pb::Hello& hello) {
  return encode_message(FrameType::kHello, SequenceKey{}, hello);
}

Result<std::vector<std::byte>> encode_hello_reply(const pb::HelloReply& reply) {
  return encode_message(FrameType::kHelloReply, SequenceKey{}, reply);
}

Result<std::vector<std::byte>> encode_lane(const pb::Lane& lane) {
  return encode_message(FrameType::kLane, SequenceKey{}, lane);
}

Result<Control> decode_control(const FrameHeader& header, std::span<const std::byte> payload) {
  switch (header.type) {
    case FrameType::kPrefill:
      return decode_as_control<pb::Prefill>(header, payload);
    case FrameType::kDecode:
      return decode_as_control<pb::Decode>(header, payload);
    case FrameType::kGrant:
      return decode_as_control<pb::Grant>(header, payload);
    case FrameType::kAck:
      return decode_as_control<pb::Ack>(header, payload);
    case FrameType::kTokens:
      return decode_as_control<pb::Tokens>(header, payload);
    case FrameType::kRefused:
      return decode_as_control<pb::Refused>(header, payload);
    case FrameType::kFinished:
      return decode_as_control<pb::Finished>(header, payload);
    case FrameType::kAbort:
      return decode_as_control<pb::Abort>(header, payload);
    case FrameType::kBeat:
      return decode_as_control<pb::Beat>(header, payload);
    case FrameType::kCached:
      return decode_as_control<pb::Cached>(header, payload);
    case FrameType::kHello:
    case FrameType::kHelloReply:
    case FrameType::kBlocks:
    case FrameType::kCommit:
    case FrameType::kLane:
      break;
  }
  return fail(ErrorCode::kProtocol,
              fmt::format("a {} is no control message", frame_type_name(header.type)));
}

Result<pb::Commit> decode_commit(const FrameHeader& header, std::span<const std::byte> payload) {
  BATON_TRY_VOID(expect_type(header, FrameType::kCommit));
  return decode_message<pb::Commit>(header, payload);
}

Result<pb::Hello> decode_hello(const FrameHeader& header, std::span<const std::byte> payload) {
  BATON_TRY_VOID(expect_type(header, FrameType::kHello));
  return decode_message<pb::Hello>(header, payload);
}

Result<pb::HelloReply> decode_hello_reply(const FrameHeader& header,
                                          std::span<const std::byte> payload) {
  BATON_TRY_VOID(expect_type(header, FrameType::kHelloReply));
  return decode_message<pb::HelloReply>(header, payload);
}

Result<pb::Lane> decode_lane(const FrameHeader& header, std::span<const std::byte> payload) {
  BATON_TRY_VOID(expect_type(header, FrameType::kLane));
  return decode_message<pb::Lane>(header, payload);
}

}  // namespace baton::wire
