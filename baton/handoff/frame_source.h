// Where the frames of an incoming bulk connection come from: its socket or its lane. Either way a
// frame's tiles go straight to the memory that is named once its headers are known.
#pragma once

#include "baton/handoff/bulk_connection.h"
#include "baton/wire/codec.h"
#include "baton/wire/crc32c.h"

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace baton::handoff {

// Of one frame after the other: next(), then its payload in order, by the calls below, to its end.
// Errors of all: of the stream or the lane; they end the connection. Thread: the connection's.
class FrameSource {
 public:
  virtual ~FrameSource() = default;
  FrameSource() = default;
  FrameSource(const FrameSource&) = delete;
  FrameSource& operator=(const FrameSource&) = delete;

  // The header of the next frame; `raw` gets its bytes. Errors: also those of wire::decode_header.
  virtual asio::awaitable<Result<wire::FrameHeader>> next(wire::EncodedHeader* raw) = 0;
  // Of a Blocks frame, first of all: its own header.
  virtual asio::awaitable<Status> read_blocks_header(wire::EncodedBlocksHeader* into) = 0;
  // Then its tiles, `bytes` in all, which `crc` gets as well; or nothing of them.
  virtual asio::awaitable<Status> read_tiles(std::vector<std::span<std::byte>> into,
                                             std::uint64_t bytes, wire::Crc32c* crc) = 0;
  virtual asio::awaitable<Status> discard(std::uint64_t bytes) = 0;
  // Of any other frame: all of it.
  virtual asio::awaitable<Result<std::vector<std::byte>>> read_payload(
      wire::FrameHeader header) = 0;
};

// By the lane if there is one, else by the stream. `connection` must outlive it.
std::unique_ptr<FrameSource> frames_of(BulkConnection* connection, Duration stall);

}  // namespace baton::handoff
