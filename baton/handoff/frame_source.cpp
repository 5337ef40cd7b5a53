#include "baton/handoff/frame_source.h"

#include "baton/handoff/tcp_connection.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace baton::handoff {

namespace {

// A read call takes at most so much, and its CRC is computed at once: the bytes are still in L2.
constexpr std::size_t kReadBytes = 256 * 1024;
// Parts of one read call: rows of tiles may be as small as 4 KiB.
constexpr std::size_t kReadParts = 64;

// Walks over the spans of a frame: windows for reading, and the same bytes again for the CRC.
class SpanCursor {
 public:
  explicit SpanCursor(std::vector<std::span<std::byte>> spans) : spans_(std::move(spans)) {}

  [[nodiscard]] std::vector<iovec> window() const {
    std::vector<iovec> parts;
    std::size_t bytes = 0;
    std::size_t offset = offset_;
    for (std::size_t i = first_; i < spans_.size() && bytes < kReadBytes; ++i) {
      const auto rest = spans_[i].subspan(offset);
      offset = 0;
      const auto part = rest.first(std::min(rest.size(), kReadBytes - bytes));
      if (!part.empty()) {
        parts.push_back(iovec{part.data(), part.size()});
        bytes += part.size();
      }
      if (parts.size() == kReadParts) {
        break;
      }
    }
    return parts;
  }
  void advance(std::size_t bytes, wire::Crc32c* crc) {
    while (bytes > 0) {
      const auto rest = spans_[first_].subspan(offset_);
      const std::size_t step = std::min(bytes, rest.size());
      crc->update(rest.first(step));
      bytes -= step;
      offset_ += step;
      if (offset_ == spans_[first_].size()) {
        ++first_;
        offset_ = 0;
      }
    }
  }

 private:
  std::vector<std::span<std::byte>> spans_;
  std::size_t first_ = 0;
  std::size_t offset_ = 0;
};

class StreamFrames final : public FrameSource {
 public:
  StreamFrames(net::TcpStream* stream, Duration stall) : stream_(stream), stall_(stall) {}

  asio::awaitable<Result<wire::FrameHeader>> next(wire::EncodedHeader* raw) override {
    return read_header(stream_, raw, net::kForever, stall_);
  }
  asio::awaitable<Status> read_blocks_header(wire::EncodedBlocksHeader* into) override {
    return stream_->read_exact(std::span<std::byte>(*into), stall_);
  }
  asio::awaitable<Status> read_tiles(std::vector<std::span<std::byte>> into, std::uint64_t bytes,
                                     wire::Crc32c* crc) override;
  asio::awaitable<Status> discard(std::uint64_t bytes) override;
  asio::awaitable<Result<std::vector<std::byte>>> read_payload(wire::FrameHeader header) override {
    return handoff::read_payload(stream_, header, stall_);
  }

 private:
  net::TcpStream* stream_;
  Duration stall_;
  std::vector<std::byte> unwanted_;  // kReadBytes, once something had to be discarded
};

asio::awaitable<Status> StreamFrames::read_tiles(std::vector<std::span<std::byte>> into,
                                                 std::uint64_t bytes, wire::Crc32c* crc) {
  SpanCursor cursor(std::move(into));
  while (bytes > 0) {
    std::vector<iovec> window = cursor.window();
    auto got = co_await stream_->read_some(std::move(window), stall_);
    if (!got) {
      co_return fail(std::move(got).error());
    }
    cursor.advance(*got, crc);
    bytes -= *got;
  }
  co_return Status{};
}

asio::awaitable<Status> StreamFrames::discard(std::uint64_t bytes) {
  unwanted_.resize(kReadBytes);
  while (bytes > 0) {
    const auto into = std::span(unwanted_).first(std::min<std::uint64_t>(bytes, kReadBytes));
    auto got = co_await stream_->read_some(into, stall_);
    if (!got) {
      co_return fail(std::move(got).error());
    }
    bytes -= *got;
  }
  co_return Status{};
}

// A frame is one message. Its header: the frame's and, of Blocks, theirs. Its payload: the rest.
class LaneFrames final : public FrameSource {
 public:
  LaneFrames(net::Lane* lane, Duration stall) : lane_(lane), stall_(stall) {}

  asio::awaitable<Result<wire::FrameHeader>> next(wire::EncodedHeader* raw) override;
  asio::awaitable<Status> read_blocks_header(wire::EncodedBlocksHeader* into) override {
    *into = blocks_;
    co_return Status{};
  }
  asio::awaitable<Status> read_tiles(std::vector<std::span<std::byte>> into, std::uint64_t bytes,
                                     wire::Crc32c* crc) override;
  asio::awaitable<Status> discard(std::uint64_t /*bytes*/) override {
    lane_->drop();
    co_return Status{};
  }
  asio::awaitable<Result<std::vector<std::byte>>> read_payload(wire::FrameHeader header) override;

 private:
  net::Lane* lane_;
  Duration stall_;
  wire::EncodedBlocksHeader blocks_{};
};

asio::awaitable<Result<wire::FrameHeader>> LaneFrames::next(wire::EncodedHeader* raw) {
  auto message = co_await lane_->next();
  if (!message) {
    co_return fail(std::move(message).error());
  }
  const std::span<const std::byte> bytes(message->header);
  if (bytes.size() < wire::kHeaderBytes) {
    co_return fail(ErrorCode::kProtocol, "a message on a lane is no frame");
  }
  std::copy_n(bytes.begin(), wire::kHeaderBytes, raw->begin());
  auto header = wire::decode_header(*raw);
  if (!header) {
    co_return header;
  }
  const std::size_t more = header->type == wire::FrameType::kBlocks ? wire::kBlocksHeaderBytes : 0;
  if (bytes.size() != wire::kHeaderBytes + more ||
      header->payload_bytes != more + message->payload_bytes) {
    co_return fail(ErrorCode::kProtocol,
                   fmt::format("a {} on a lane has another size than its header says",
                               wire::frame_type_name(header->type)));
  }
  std::copy_n(bytes.begin() + wire::kHeaderBytes, more, blocks_.begin());
  co_return header;
}

asio::awaitable<Status> LaneFrames::read_tiles(std::vector<std::span<std::byte>> into,
                                               std::uint64_t bytes, wire::Crc32c* crc) {
  const Duration deadline = lane_deadline(bytes, stall_);
  auto status = co_await lane_->take(into, deadline);
  if (status) {
    for (const auto& part : into) {
      crc->update(part);
    }
  }
  co_return status;
}

asio::awaitable<Result<std::vector<std::byte>>> LaneFrames::read_payload(wire::FrameHeader header) {
  std::vector<std::byte> payload(header.payload_bytes);
  std::vector<std::span<std::byte>> into{std::span(payload)};
  const Duration deadline = lane_deadline(payload.size(), stall_);
  auto status = co_await lane_->take(std::move(into), deadline);
  if (!status) {
    co_return fail(std::move(status).error());
  }
  co_return std::move(payload);
}

}  // namespace

std::unique_ptr<FrameSource> frames_of(BulkConnection* connection, Duration stall) {
  if (connection->lane) {
    return std::make_unique<LaneFrames>(connection->lane.get(), stall);
  }
  return std::make_unique<StreamFrames>(connection->stream.get(), stall);
}

}  // namespace baton::handoff
