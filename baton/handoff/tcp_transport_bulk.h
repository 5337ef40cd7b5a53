// Bulk connections. BulkSender owns one outgoing connection to a peer: it dials when the first
// frame comes and writes frames one after the other. serve_bulk reads an incoming one. Both run on
// one loop of the I/O pool, where CRCs are computed too.
#pragma once

#include "baton/handoff/tcp_connection.h"
#include "baton/handoff/tcp_transport.h"
#include "baton/net/task_group.h"

#include <atomic>
#include <memory>
#include <vector>

namespace baton::handoff {

// One frame to be written. The caller on the control loop keeps the tiles valid until `done`.
struct BulkJob {
  explicit BulkJob(const asio::any_io_executor& control) : done(control) {}

  SequenceKey key;
  wire::BlocksHeader blocks;
  std::uint64_t sequence = 0;
  std::vector<std::span<const std::byte>> tiles;
  std::vector<std::byte> commit;  // when not empty: this frame instead of Blocks
  std::uint64_t bytes = 0;

  Result<BulkSent> result = BulkSent{};  // valid once `done` is set
  net::AsyncEvent done;
};

// Frames waiting for one connection: far above what a node's handoffs have under way at a time.
inline constexpr std::size_t kMaxQueuedBulkFrames = 4096;

class BulkSender : public std::enable_shared_from_this<BulkSender> {
 public:
  BulkSender(asio::any_io_executor io, net::HostPort address, wire::pb::Hello peer,
             const TcpTransportOptions* options);

  // False when closed or full. Thread: any.
  bool push(std::shared_ptr<BulkJob> job);
  // Bytes that wait or are being written. Thread: any.
  [[nodiscard]] std::uint64_t queued_bytes() const { return queued_bytes_.load(); }
  // Starts the task that writes; when the group is stopped already, fails all jobs. Thread: io.
  void start(net::TaskGroup* group);
  // Takes no more jobs, fails those that wait and the one under way. Thread: io.
  void stop();

  [[nodiscard]] const asio::any_io_executor& executor() const { return io_; }

 private:
  static asio::awaitable<void> run(std::shared_ptr<BulkSender> self);
  void close();
  asio::awaitable<Status> open();
  asio::awaitable<Status> try_open();
  asio::awaitable<Status> greet(net::TcpStream* stream);
  asio::awaitable<Result<BulkSent>> write(std::shared_ptr<BulkJob> job);
  void finish(const std::shared_ptr<BulkJob>& job, Result<BulkSent> result);

  const asio::any_io_executor io_;
  const net::HostPort address_;
  const wire::pb::Hello peer_;  // who must answer
  const TcpTransportOptions* const options_;
  net::AsyncQueue<std::shared_ptr<BulkJob>> jobs_;
  std::atomic<std::uint64_t> queued_bytes_{0};
  std::unique_ptr<net::TcpStream> stream_;
  net::TaskGroup* group_ = nullptr;
  net::TaskId task_;
};

// An incoming bulk connection, after its handshake.
struct BulkInbound {
  BulkInbound(NodeId from, std::unique_ptr<net::TcpStream> taken, std::size_t io_loop)
      : peer(std::move(from)),
        loop(io_loop),
        stream(std::move(taken)),
        credit(std::make_shared<EventCredit>(stream->executor())) {}

  NodeId peer;
  std::size_t loop;  // of the I/O pool
  std::unique_ptr<net::TcpStream> stream;
  std::shared_ptr<EventCredit> credit;
};

// Reads frames until the connection ends. `sink` may be null. Thread: the stream's executor.
asio::awaitable<void> serve_bulk(std::shared_ptr<BulkInbound> inbound, BulkSink* sink,
                                 EventFunnel* events, Duration stall);

}  // namespace baton::handoff
