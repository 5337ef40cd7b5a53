// The receiving end of bulk connections: frames, by whichever way they come, into the blocks that
// BulkSink names, and events about them.
#pragma once

#include "baton/handoff/bulk_connection.h"
#include "baton/handoff/stats.h"
#include "baton/handoff/tcp_connection.h"
#include "baton/net/task_group.h"

#include <memory>

namespace baton::handoff {

// An incoming bulk connection, after its handshake.
struct BulkInbound {
  BulkInbound(NodeId from, std::unique_ptr<net::TcpStream> taken, std::size_t io_loop)
      : peer(std::move(from)),
        loop(io_loop),
        connection(std::make_shared<BulkConnection>(std::move(taken))),
        credit(std::make_shared<EventCredit>(connection->stream->executor())) {}

  NodeId peer;
  std::size_t loop;  // of the I/O pool
  std::shared_ptr<BulkConnection> connection;
  std::shared_ptr<EventCredit> credit;
};

struct BulkServing {
  BulkSink* sink;  // may be null
  EventFunnel* events;
  TransportStats* stats;
  net::Fabric* fabric;  // null: frames come over the stream
  net::TaskGroup* group;
  Duration handshake_deadline;
  Duration stall;
};

// Reads frames until the connection ends. Thread: the stream's executor, which is the group's.
asio::awaitable<void> serve_bulk(std::shared_ptr<BulkInbound> inbound, BulkServing serving);

}  // namespace baton::handoff
