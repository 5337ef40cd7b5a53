#include "baton/handoff/tcp_transport_bulk.h"

#include "baton/base/log.h"
#include "baton/net/async_clock.h"
#include "baton/wire/crc32c.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace baton::handoff {

namespace {

// A read call takes at most so much, and its CRC is computed at once: the bytes are still in L2.
constexpr std::size_t kReadBytes = 256 * 1024;
// Parts of one read call: rows of tiles may be as small as 4 KiB.
constexpr std::size_t kReadParts = 64;

iovec part_of(std::span<const std::byte> bytes) {
  return iovec{const_cast<std::byte*>(bytes.data()), bytes.size()};  // sendmsg only reads
}

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

}  // namespace

// ---- sending ----------------------------------------------------------------------------------

BulkSender::BulkSender(asio::any_io_executor io, net::HostPort address, wire::pb::Hello peer,
                       const TcpTransportOptions* options)
    : io_(std::move(io)),
      address_(std::move(address)),
      peer_(std::move(peer)),
      options_(options),
      jobs_(io_, kMaxQueuedBulkFrames) {}

bool BulkSender::push(std::shared_ptr<BulkJob> job) {
  const std::uint64_t bytes = job->bytes;
  queued_bytes_.fetch_add(bytes);
  if (!jobs_.try_push(std::move(job))) {
    queued_bytes_.fetch_sub(bytes);
    return false;
  }
  return true;
}

void BulkSender::finish(const std::shared_ptr<BulkJob>& job, Result<BulkSent> result) {
  queued_bytes_.fetch_sub(job->bytes);
  job->result = std::move(result);
  job->done.set();
}

void BulkSender::start(net::TaskGroup* group) {
  group_ = group;
  task_ = group->spawn(run(shared_from_this()));
  if (task_ == net::TaskId{}) {
    close();  // shutting down: nobody else will answer its jobs
  }
}

void BulkSender::stop() {
  close();
  if (group_ != nullptr) {
    group_->cancel(task_);
  }
}

void BulkSender::close() {
  jobs_.close();
  while (auto job = jobs_.try_pop()) {
    finish(*job, fail(ErrorCode::kPeerLost,
                      fmt::format("the connection to {} is gone", peer_.node_id())));
  }
  if (stream_) {
    stream_->close();
  }
}

asio::awaitable<void> BulkSender::run(std::shared_ptr<BulkSender> self) {
  // Runs whether the loop ends or its coroutine is cancelled: no caller may wait for ever, and none
  // may get its tiles back while a write is under way (the write ended before this).
  struct Ending {
    ~Ending() {
      if (job) {
        sender->finish(job, fail(ErrorCode::kPeerLost,
                                 "the connection to " + sender->peer_.node_id() + " is gone"));
      }
      sender->close();
    }
    BulkSender* sender;
    std::shared_ptr<BulkJob> job;
  };
  Ending ending{self.get(), nullptr};
  while (true) {
    auto popped = co_await self->jobs_.pop();
    if (!popped) {
      co_return;
    }
    ending.job = *std::move(popped);
    Result<BulkSent> result = BulkSent{};
    auto opened = co_await self->open();
    if (opened) {
      result = co_await self->write(ending.job);
    } else {
      result = fail(std::move(opened).error());
    }
    if (!result) {
      self->stream_.reset();
      if (result.error().code == ErrorCode::kCancelled) {  // by stop(): to the caller, a lost peer
        result =
            fail(ErrorCode::kPeerLost, "the connection to " + self->peer_.node_id() + " is gone");
      }
    }
    const std::shared_ptr<BulkJob> job = std::exchange(ending.job, nullptr);
    self->finish(job, std::move(result));
  }
}

asio::awaitable<Status> BulkSender::open() {
  // A peer never writes on a bulk connection: readable means closed. Without this look the first
  // frame after a reset would vanish without an error.
  if (stream_ && stream_->looks_alive()) {
    co_return Status{};
  }
  stream_.reset();
  // The peer may not have seen our confirmation on the control connection yet: it came first, but
  // by another socket.
  constexpr int kTries = 6;
  net::SystemAsyncClock clock;
  for (int attempt = 1;; ++attempt) {
    auto status = co_await try_open();
    if (status || status.error().param != kConnectionField || attempt == kTries) {
      co_return status;
    }
    co_await clock.sleep_for(std::chrono::milliseconds(10) * attempt);
  }
}

asio::awaitable<Status> BulkSender::try_open() {
  net::SocketOptions socket_options;
  socket_options.buffer_bytes = options_->bulk_socket_buffer_bytes;
  auto socket = co_await net::connect(address_, options_->connect_deadline, socket_options);
  if (!socket) {
    co_return fail(std::move(socket).error());
  }
  auto stream = std::make_unique<net::TcpStream>(*std::move(socket));
  net::SystemAsyncClock clock;
  auto greeting = greet(stream.get());
  std::string what = "handshake with " + peer_.node_id();
  auto greeted = co_await net::with_deadline(clock, options_->handshake_deadline, std::move(what),
                                             std::move(greeting));
  if (!greeted) {
    co_return fail(std::move(greeted).error());
  }
  stream_ = std::move(stream);
  co_return Status{};
}

asio::awaitable<Status> BulkSender::greet(net::TcpStream* stream) {
  const Duration stall = options_->handshake_deadline;
  auto secured = co_await secure(stream, options_->tls, End::kDialler, stall);
  if (!secured) {
    co_return fail(advised(std::move(secured).error()));
  }
  wire::pb::Hello ours = options_->hello;
  ours.set_bulk(true);
  auto answered = co_await offer_hello(stream, std::move(ours), options_->token.get(), stall);
  if (!answered) {
    co_return fail(advised(std::move(answered).error()));
  }
  const wire::pb::HelloReply& reply = answered->reply;
  if (!reply.accepted()) {
    // The nodes themselves do pair: this peer is going, or not there yet.
    Error refused = mismatch_error(mismatch_of(reply), peer_.node_id());
    refused.code = ErrorCode::kPeerLost;
    co_return fail(std::move(refused));
  }
  if (reply.hello().node_id() != peer_.node_id() || !same_boot(reply.hello(), peer_)) {
    co_return fail(ErrorCode::kPeerLost,
                   fmt::format("{} is now node {} (boot {}), no longer {} (boot {})",
                               net::to_string(address_), reply.hello().node_id(),
                               boot_text(reply.hello()), peer_.node_id(), boot_text(peer_)));
  }
  wire::pb::HelloReply confirmation = accepting(std::move(answered->proof));
  co_return co_await write_hello_reply(stream, std::move(confirmation), stall);
}

asio::awaitable<Result<BulkSent>> BulkSender::write(std::shared_ptr<BulkJob> job) {
  BulkSent sent;
  wire::EncodedBlocksHeader blocks{};
  std::vector<iovec> parts;
  if (!job->commit.empty()) {
    parts.push_back(part_of(job->commit));
  } else {
    blocks = wire::encode_blocks_header(job->blocks);
    const wire::FrameHeader header =
        wire::blocks_frame_header(job->key, job->sequence, blocks, job->tiles);
    sent.header = wire::encode_header(header);
    sent.payload_bytes = header.payload_bytes - blocks.size();
    parts.reserve(job->tiles.size() + 2);
    parts.push_back(part_of(sent.header));
    parts.push_back(part_of(blocks));
    for (const auto& tile : job->tiles) {
      parts.push_back(part_of(tile));
    }
  }
  auto status = co_await stream_->write_all(std::move(parts), options_->stall_deadline);
  if (!status) {
    co_return fail(std::move(status).error());
  }
  co_return sent;
}

// ---- receiving --------------------------------------------------------------------------------

namespace {

// One incoming bulk connection: the state that its frames share.
class BulkReader {
 public:
  BulkReader(std::shared_ptr<BulkInbound> inbound, BulkSink* sink, EventFunnel* events,
             Duration stall)
      : inbound_(std::move(inbound)), sink_(sink), events_(events), stall_(stall) {}

  // The next frame. An error ends the connection.
  asio::awaitable<Status> read_frame();

 private:
  asio::awaitable<Status> read_message(wire::FrameHeader header);
  asio::awaitable<Status> read_blocks(wire::FrameHeader header, wire::EncodedHeader raw);
  asio::awaitable<Status> read_tiles(std::vector<std::span<std::byte>> spans, std::uint64_t bytes,
                                     wire::Crc32c* crc);
  asio::awaitable<Status> discard(std::uint64_t bytes);

  std::shared_ptr<BulkInbound> inbound_;
  BulkSink* sink_;
  EventFunnel* events_;
  Duration stall_;
  std::vector<std::byte> unwanted_;  // kReadBytes, once something had to be discarded
};

// Tells the sink that an accepted frame's bytes are no longer written, whatever ended it.
class Landing {
 public:
  Landing(BulkSink* sink, const SequenceKey& key, const wire::BlocksHeader& blocks)
      : sink_(sink), key_(key), blocks_(blocks) {}
  ~Landing() { finish(); }
  Landing(const Landing&) = delete;
  Landing& operator=(const Landing&) = delete;
  void finish() {
    if (sink_ != nullptr) {
      std::exchange(sink_, nullptr)->landed(key_, blocks_);
    }
  }

 private:
  BulkSink* sink_;
  SequenceKey key_;
  wire::BlocksHeader blocks_;
};

asio::awaitable<Status> BulkReader::read_frame() {
  wire::EncodedHeader raw{};
  auto header = co_await read_header(inbound_->stream.get(), &raw, net::kForever, stall_);
  if (!header) {
    co_return fail(std::move(header).error());
  }
  if (header->type == wire::FrameType::kBlocks) {
    co_return co_await read_blocks(*header, raw);
  }
  co_return co_await read_message(*header);
}

asio::awaitable<Status> BulkReader::read_message(wire::FrameHeader header) {
  if (header.type != wire::FrameType::kCommit && header.type != wire::FrameType::kAbort) {
    co_return fail(ErrorCode::kProtocol, fmt::format("a {} does not belong on a bulk connection",
                                                     wire::frame_type_name(header.type)));
  }
  auto payload = co_await read_payload(inbound_->stream.get(), header, stall_);
  if (!payload) {
    co_return fail(std::move(payload).error());
  }
  if (header.type == wire::FrameType::kAbort) {
    auto message = wire::decode_control(header, *payload);
    if (!message) {
      co_return fail(std::move(message).error());
    }
    TransportEvent event = ControlReceived{inbound_->peer, header.key, *std::move(message)};
    co_await events_->push(inbound_->credit, std::move(event));
    co_return Status{};
  }
  auto commit = wire::decode_commit(header, *payload);
  if (!commit) {
    // The length was right, so the connection lives; the sequence does not.
    wire::pb::Abort abort;
    abort.set_code(static_cast<std::uint32_t>(commit.error().code));
    abort.set_message(commit.error().message);
    TransportEvent event = ControlReceived{inbound_->peer, header.key, std::move(abort)};
    co_await events_->push(inbound_->credit, std::move(event));
    co_return Status{};
  }
  TransportEvent event = CommitReceived{inbound_->peer, header.key, *std::move(commit)};
  co_await events_->push(inbound_->credit, std::move(event));
  co_return Status{};
}

asio::awaitable<Status> BulkReader::read_blocks(wire::FrameHeader header, wire::EncodedHeader raw) {
  wire::EncodedBlocksHeader encoded{};
  if (header.payload_bytes < encoded.size()) {
    co_return fail(ErrorCode::kProtocol, "a blocks frame is shorter than its own header");
  }
  const std::span<std::byte> encoded_bytes(encoded);
  auto status = co_await inbound_->stream->read_exact(encoded_bytes, stall_);
  if (!status) {
    co_return status;
  }
  wire::Crc32c crc;
  crc.update(encoded);
  BlocksReceived event;
  event.peer = inbound_->peer;
  event.key = header.key;
  event.sequence = header.sequence;
  event.header = raw;
  event.payload_bytes = header.payload_bytes - encoded.size();

  auto blocks = wire::decode_blocks_header(encoded);
  Result<std::vector<std::span<std::byte>>> spans =
      fail(ErrorCode::kCancelled, "this node receives no tiles");
  if (!blocks) {
    spans = fail(blocks.error());
  } else {
    event.blocks = *blocks;
    if (sink_ != nullptr) {
      spans = sink_->accept(inbound_->peer, header.key, *blocks);
    }
  }
  Landing landing(spans ? sink_ : nullptr, header.key, event.blocks);
  if (spans) {
    std::uint64_t room = 0;
    for (const auto& span : *spans) {
      room += span.size();
    }
    if (room != event.payload_bytes) {
      spans = fail(ErrorCode::kProtocol,
                   fmt::format("a blocks frame has {} bytes of tiles, its ranges need {}",
                               event.payload_bytes, room));
    }
  }
  if (!spans) {
    event.status = fail(spans.error());
    status = co_await discard(event.payload_bytes);
  } else {
    status = co_await read_tiles(*std::move(spans), event.payload_bytes, &crc);
    if (!status) {
      event.status = status;
    } else if (crc.value() != header.payload_crc) {
      event.status = fail(ErrorCode::kCorruptFrame, "CRC of a blocks payload is wrong");
    }
  }
  landing.finish();
  TransportEvent received = std::move(event);
  co_await events_->push(inbound_->credit, std::move(received));
  co_return status;
}

asio::awaitable<Status> BulkReader::read_tiles(std::vector<std::span<std::byte>> spans,
                                               std::uint64_t bytes, wire::Crc32c* crc) {
  SpanCursor cursor(std::move(spans));
  while (bytes > 0) {
    std::vector<iovec> window = cursor.window();
    auto got = co_await inbound_->stream->read_some(std::move(window), stall_);
    if (!got) {
      co_return fail(std::move(got).error());
    }
    cursor.advance(*got, crc);
    bytes -= *got;
  }
  co_return Status{};
}

asio::awaitable<Status> BulkReader::discard(std::uint64_t bytes) {
  unwanted_.resize(kReadBytes);
  while (bytes > 0) {
    const auto into = std::span(unwanted_).first(std::min<std::uint64_t>(bytes, kReadBytes));
    auto got = co_await inbound_->stream->read_some(into, stall_);
    if (!got) {
      co_return fail(std::move(got).error());
    }
    bytes -= *got;
  }
  co_return Status{};
}

}  // namespace

asio::awaitable<void> serve_bulk(std::shared_ptr<BulkInbound> inbound, BulkSink* sink,
                                 EventFunnel* events, Duration stall) {
  BulkReader reader(inbound, sink, events, stall);
  while (true) {
    auto status = co_await reader.read_frame();
    if (!status) {
      const bool expected = status.error().code == ErrorCode::kPeerLost ||
                            status.error().code == ErrorCode::kCancelled;
      if (!expected) {
        log::warn("bulk connection from {} ended: {}", inbound->peer.value, status.error().message);
      }
      inbound->stream->close();
      co_return;
    }
  }
}

}  // namespace baton::handoff
