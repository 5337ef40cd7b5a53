#include "baton/handoff/tcp_transport_bulk.h"

#include "baton/base/log.h"
#include "baton/net/async_clock.h"

#include <fmt/format.h>

#include <utility>

namespace baton::handoff {

namespace {

iovec part_of(std::span<const std::byte> bytes) {
  return iovec{const_cast<std::byte*>(bytes.data()), bytes.size()};  // sendmsg only reads
}

}  // namespace

BulkSender::BulkSender(asio::any_io_executor io, net::HostPort address, wire::pb::Hello peer,
                       const TcpTransportOptions* options, TransportStats* stats)
    : io_(std::move(io)),
      address_(std::move(address)),
      peer_(std::move(peer)),
      options_(options),
      stats_(stats),
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
  if (connection_) {
    connection_->close();
  }
}

// To let go of it is not enough: who watches it has it too, and would until the peer closes.
void BulkSender::drop_connection() {
  if (connection_) {
    connection_->close();
    connection_.reset();
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
      self->drop_connection();
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
  if (connection_ && connection_->looks_alive()) {
    co_return Status{};
  }
  drop_connection();
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
  auto connection =
      std::make_shared<BulkConnection>(std::make_unique<net::TcpStream>(*std::move(socket)));
  net::SystemAsyncClock clock;
  auto greeting = greet(connection->stream.get(), wants_lane());
  std::string what = "handshake with " + peer_.node_id();
  auto greeted = co_await net::with_deadline(clock, options_->handshake_deadline, std::move(what),
                                             std::move(greeting));
  if (!greeted) {
    co_return fail(std::move(greeted).error());
  }
  connection_ = connection;
  lane_works_ = false;
  if (!*greeted) {
    co_return Status{};
  }
  auto opened = co_await open_lane();
  if (opened || jobs_.closed()) {
    co_return opened;
  }
  drop_connection();
  give_up_lane(opened.error());
  co_return co_await try_open();  // by TCP now
}

bool BulkSender::wants_lane() const {
  return !lane_failed_ && options_->fabric && agree_on_fabric(options_->hello, peer_);
}

asio::awaitable<Status> BulkSender::open_lane() {
  const auto connection = connection_;
  net::SystemAsyncClock clock;
  auto offering = offer_lane(connection, options_->fabric.get(), options_->handshake_deadline);
  std::string what = "a lane to " + peer_.node_id();
  auto offered = co_await net::with_deadline(clock, options_->handshake_deadline, std::move(what),
                                             std::move(offering));
  if (!offered) {
    co_return offered;
  }
  if (group_->spawn(watch(connection)) == net::TaskId{}) {
    co_return fail(ErrorCode::kCancelled, "shutting down");
  }
  co_return co_await try_lane(connection, options_->handshake_deadline);
}

void BulkSender::give_up_lane(const Error& error) {
  lane_failed_ = true;
  ++stats_->lanes_failed;
  log::warn("KV to {} goes over TCP: {} failed: {}", peer_.node_id(), peer_.fabric(),
            error.message);
}

asio::awaitable<Result<bool>> BulkSender::greet(net::TcpStream* stream, bool with_lane) {
  const Duration stall = options_->handshake_deadline;
  auto secured = co_await secure(stream, options_->tls, End::kDialler, stall);
  if (!secured) {
    co_return fail(advised(std::move(secured).error()));
  }
  wire::pb::Hello ours = options_->hello;
  ours.set_bulk(true);
  if (!with_lane) {
    ours.clear_fabric();
  }
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
  const bool agreed = with_lane && agree_on_fabric(options_->hello, reply.hello());
  wire::pb::HelloReply confirmation = accepting(std::move(answered->proof));
  auto told = co_await write_hello_reply(stream, std::move(confirmation), stall);
  if (!told) {
    co_return fail(std::move(told).error());
  }
  co_return agreed;
}

asio::awaitable<Result<BulkSent>> BulkSender::write(std::shared_ptr<BulkJob> job) {
  BulkSent sent;
  std::vector<std::byte> head;  // of the frame: all but the tiles
  if (!job->commit.empty()) {
    head = job->commit;
  } else {
    const wire::EncodedBlocksHeader blocks = wire::encode_blocks_header(job->blocks);
    const wire::FrameHeader header =
        wire::blocks_frame_header(job->key, job->sequence, blocks, job->tiles);
    sent.header = wire::encode_header(header);
    sent.payload_bytes = header.payload_bytes - blocks.size();
    head.assign(sent.header.begin(), sent.header.end());
    head.insert(head.end(), blocks.begin(), blocks.end());
  }
  const bool by_lane = connection_->lane != nullptr;
  auto written =
      by_lane ? write_to_lane(job, std::move(head)) : write_to_stream(job, std::move(head));
  auto status = co_await std::move(written);
  if (!status) {
    if (by_lane && (status.error().code == ErrorCode::kDeadlineExceeded || !lane_works_)) {
      give_up_lane(status.error());  // of no use, though the peer is there
    }
    co_return fail(std::move(status).error());
  }
  lane_works_ = by_lane;
  (by_lane ? stats_->fabric : stats_->tcp).bytes_sent += sent.payload_bytes;
  co_return sent;
}

asio::awaitable<Status> BulkSender::write_to_stream(std::shared_ptr<BulkJob> job,
                                                    std::vector<std::byte> head) {
  std::vector<iovec> parts;
  parts.reserve(job->tiles.size() + 1);
  parts.push_back(part_of(head));
  for (const auto& tile : job->tiles) {
    parts.push_back(part_of(tile));
  }
  co_return co_await connection_->stream->write_all(std::move(parts), options_->stall_deadline);
}

// Of a Commit the payload is what follows the frame's header.
asio::awaitable<Status> BulkSender::write_to_lane(std::shared_ptr<BulkJob> job,
                                                  std::vector<std::byte> head) {
  const auto connection = connection_;
  std::vector<std::span<const std::byte>> payload = job->tiles;
  if (!job->commit.empty()) {
    head.resize(wire::kHeaderBytes);
    payload.push_back(std::span<const std::byte>(job->commit).subspan(wire::kHeaderBytes));
  }
  const Duration deadline = lane_deadline(job->bytes, options_->stall_deadline);
  co_return co_await connection->lane->send(std::move(head), std::move(payload), deadline);
}

}  // namespace baton::handoff
