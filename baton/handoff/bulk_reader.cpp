#include "baton/handoff/bulk_reader.h"

#include "baton/base/log.h"
#include "baton/handoff/frame_source.h"
#include "baton/net/async_clock.h"

#include <fmt/format.h>

#include <utility>

namespace baton::handoff {

namespace {

// One incoming bulk connection: the state that its frames share.
class BulkReader {
 public:
  BulkReader(std::shared_ptr<BulkInbound> inbound, BulkServing serving)
      : inbound_(std::move(inbound)),
        sink_(serving.sink),
        events_(serving.events),
        way_(inbound_->connection->lane ? &serving.stats->fabric : &serving.stats->tcp),
        frames_(frames_of(inbound_->connection.get(), serving.stall)) {}

  // A lane's first message.
  asio::awaitable<Status> read_greeting();
  // The next frame. An error ends the connection.
  asio::awaitable<Status> read_frame();

 private:
  asio::awaitable<Status> read_message(wire::FrameHeader header);
  asio::awaitable<Status> read_blocks(wire::FrameHeader header, wire::EncodedHeader raw);

  std::shared_ptr<BulkInbound> inbound_;
  BulkSink* sink_;
  EventFunnel* events_;
  TransportStats::Way* way_;
  std::unique_ptr<FrameSource> frames_;
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

asio::awaitable<Status> BulkReader::read_greeting() {
  wire::EncodedHeader raw{};
  auto header = co_await frames_->next(&raw);
  if (!header) {
    co_return fail(std::move(header).error());
  }
  if (header->type != wire::FrameType::kLane) {
    co_return fail(ErrorCode::kProtocol, "a lane began without its address");
  }
  // Taken, not dropped: a way that cannot move bytes shows it here.
  auto payload = co_await frames_->read_payload(*header);
  co_return payload ? Status{} : fail(std::move(payload).error());
}

asio::awaitable<Status> BulkReader::read_frame() {
  wire::EncodedHeader raw{};
  auto header = co_await frames_->next(&raw);
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
  auto payload = co_await frames_->read_payload(header);
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
  auto status = co_await frames_->read_blocks_header(&encoded);
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
    status = co_await frames_->discard(event.payload_bytes);
  } else {
    status = co_await frames_->read_tiles(*std::move(spans), event.payload_bytes, &crc);
    if (!status) {
      event.status = status;
    } else if (crc.value() != header.payload_crc) {
      event.status = fail(ErrorCode::kCorruptFrame, "CRC of a blocks payload is wrong");
    }
  }
  landing.finish();
  if (status) {
    way_->bytes_received += event.payload_bytes;
  }
  TransportEvent received = std::move(event);
  co_await events_->push(inbound_->credit, std::move(received));
  co_return status;
}

// The lane of a connection whose handshake agreed on a fabric. Errors: of answer_lane.
asio::awaitable<Status> begin_lane(std::shared_ptr<BulkConnection> connection,
                                   BulkServing serving) {
  net::SystemAsyncClock clock;
  auto answering = answer_lane(connection, serving.fabric, serving.handshake_deadline);
  std::string what = "a lane from " + connection->stream->peer();
  auto answered = co_await net::with_deadline(clock, serving.handshake_deadline, std::move(what),
                                              std::move(answering));
  if (answered && serving.group->spawn(watch(connection)) == net::TaskId{}) {
    co_return fail(ErrorCode::kCancelled, "shutting down");
  }
  co_return answered;
}

asio::awaitable<Status> read_all(std::shared_ptr<BulkInbound> inbound, BulkServing serving) {
  if (serving.fabric != nullptr) {
    auto begun = co_await begin_lane(inbound->connection, serving);
    if (!begun) {
      co_return begun;
    }
  }
  BulkReader reader(inbound, serving);
  Status status;
  if (serving.fabric != nullptr) {
    status = co_await reader.read_greeting();
  }
  while (status) {
    status = co_await reader.read_frame();
  }
  co_return status;
}

}  // namespace

asio::awaitable<void> serve_bulk(std::shared_ptr<BulkInbound> inbound, BulkServing serving) {
  struct Ending {
    ~Ending() { connection->close(); }
    BulkConnection* connection;
  };
  const Ending ending{inbound->connection.get()};
  auto status = co_await read_all(inbound, serving);
  const bool expected =
      status.error().code == ErrorCode::kPeerLost || status.error().code == ErrorCode::kCancelled;
  if (!expected) {
    log::warn("bulk connection from {} ended: {}", inbound->peer.value, status.error().message);
  }
}

}  // namespace baton::handoff
