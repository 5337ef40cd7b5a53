// The sending end of bulk connections. BulkSender owns one to a peer: it dials when the first frame
// comes and writes frames one after the other, by the socket or by a lane of the fabric that both
// nodes have. It runs on one loop of the I/O pool, where CRCs are computed too. bulk_reader.h has
// the other end.
#pragma once

#include "baton/handoff/bulk_connection.h"
#include "baton/handoff/stats.h"
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
             const TcpTransportOptions* options, TransportStats* stats);

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
  void drop_connection();
  asio::awaitable<Status> open();
  asio::awaitable<Status> try_open();
  // True: a lane follows.
  asio::awaitable<Result<bool>> greet(net::TcpStream* stream, bool with_lane);
  [[nodiscard]] bool wants_lane() const;
  asio::awaitable<Status> open_lane();
  void give_up_lane(const Error& error);
  asio::awaitable<Result<BulkSent>> write(std::shared_ptr<BulkJob> job);
  asio::awaitable<Status> write_to_stream(std::shared_ptr<BulkJob> job,
                                          std::vector<std::byte> head);
  asio::awaitable<Status> write_to_lane(std::shared_ptr<BulkJob> job, std::vector<std::byte> head);
  void finish(const std::shared_ptr<BulkJob>& job, Result<BulkSent> result);

  const asio::any_io_executor io_;
  const net::HostPort address_;
  const wire::pb::Hello peer_;  // who must answer
  const TcpTransportOptions* const options_;
  TransportStats* const stats_;
  net::AsyncQueue<std::shared_ptr<BulkJob>> jobs_;
  std::atomic<std::uint64_t> queued_bytes_{0};
  std::shared_ptr<BulkConnection> connection_;
  bool lane_works_ = false;   // a frame has gone by the lane of connection_
  bool lane_failed_ = false;  // then by TCP, until the peer connects anew
  net::TaskGroup* group_ = nullptr;
  net::TaskId task_;
};

}  // namespace baton::handoff
