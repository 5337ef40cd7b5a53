// Frames to bytes and back. decode_* take bytes of a peer: they never trust, never abort, and say
// what is wrong. Pure functions; any thread.
#pragma once

#include "baton/wire/frames.h"
#include "baton/wire/limits.h"

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace baton::wire {

// Stable name of a type for logs ("blocks"); "unknown" when there is none.
std::string_view frame_type_name(FrameType type);

// Fills in the magic, the reserved bytes and the header's CRC32C.
EncodedHeader encode_header(const FrameHeader& header);
// Checks CRC, magic, version, type, flags, and the payload's length against its type's maximum.
// Errors: kCorruptFrame (CRC), kProtocol (magic, version, type, flags), kPayloadTooLarge.
Result<FrameHeader> decode_header(std::span<const std::byte, kHeaderBytes> bytes);

using EncodedBlocksHeader = std::array<std::byte, kBlocksHeaderBytes>;
EncodedBlocksHeader encode_blocks_header(const BlocksHeader& blocks);
// Errors: kProtocol (a range that is empty or overflows, block_tokens that is none of 32 .. 256).
Result<BlocksHeader> decode_blocks_header(std::span<const std::byte, kBlocksHeaderBytes> bytes);

// The header of a Blocks frame, with the CRC over `blocks` and `tiles`. One pass over the tiles.
FrameHeader blocks_frame_header(const SequenceKey& key, std::uint64_t sequence,
                                const EncodedBlocksHeader& blocks,
                                std::span<const std::span<const std::byte>> tiles);

FrameType control_type(const Control& message);

// A whole frame, header and payload. Errors: kPayloadTooLarge; kInternal when the message is not
// valid (validate.h): it is ours, and is checked before it is sent.
Result<std::vector<std::byte>> encode_control(const SequenceKey& key, const Control& message);
Result<std::vector<std::byte>> encode_commit(const SequenceKey& key, const pb::Commit& commit);
Result<std::vector<std::byte>> encode_hello(const pb::Hello& hello);
Result<std::vector<std::byte>> encode_hello_reply(const pb::HelloReply& reply);
Result<std::vector<std::byte>> encode_lane(const pb::Lane& lane);

// `payload` is the payload of a frame with that header, whole. Errors: kCorruptFrame (CRC or
// length), kProtocol (not Protobuf, a field that is missing or out of range, another type).
Result<Control> decode_control(const FrameHeader& header, std::span<const std::byte> payload);
Result<pb::Commit> decode_commit(const FrameHeader& header, std::span<const std::byte> payload);
Result<pb::Hello> decode_hello(const FrameHeader& header, std::span<const std::byte> payload);
Result<pb::HelloReply> decode_hello_reply(const FrameHeader& header,
                                          std::span<const std::byte> payload);
Result<pb::Lane> decode_lane(const FrameHeader& header, std::span<const std::byte> payload);

}  // namespace baton::wire
