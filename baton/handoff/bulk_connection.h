// One bulk connection: a socket, and where both ends have a fabric, a lane of it for the frames.
// The socket then carries the handshake, and after that tells each side when the other has closed:
// so everything that ends a connection ends its lane, whatever the fabric notices by itself.
#pragma once

#include "baton/handoff/transport.h"
#include "baton/net/fabric.h"
#include "baton/net/tcp.h"

#include <cstdint>
#include <memory>
#include <utility>

namespace baton::handoff {

// Thread: the stream's executor.
struct BulkConnection {
  explicit BulkConnection(std::unique_ptr<net::TcpStream> taken) : stream(std::move(taken)) {}
  [[nodiscard]] bool looks_alive() const { return stream->is_open() && stream->looks_alive(); }
  // Ends what is under way on it; no byte moves any more when this returns.
  void close();

  std::unique_ptr<net::TcpStream> stream;
  std::unique_ptr<net::Lane> lane;  // null: frames go over the stream
};

// Whether a bulk connection between these two has a lane.
bool agree_on_fabric(const wire::pb::Hello& ours, const wire::pb::Hello& theirs);

// After the handshake, once per side: opens a lane and tells the other its address. The dialler
// speaks first. Errors: of the fabric and of the stream.
asio::awaitable<Status> offer_lane(std::shared_ptr<BulkConnection> connection, net::Fabric* fabric,
                                   Duration stall);
asio::awaitable<Status> answer_lane(std::shared_ptr<BulkConnection> connection, net::Fabric* fabric,
                                    Duration stall);
// The dialler's first message by the lane, its own address: then it is known to get through.
asio::awaitable<Status> try_lane(std::shared_ptr<BulkConnection> connection, Duration deadline);

// To be spawned beside whoever uses the lane: closes the connection once the other side has, or
// this task is cancelled. Nothing else may read from the stream then.
asio::awaitable<void> watch(std::shared_ptr<BulkConnection> connection);

// A fabric does not tell how far a frame has come: all of it may take the stall deadline, and a
// second for each MiB, which is slower than any network that is worth a fabric.
Duration lane_deadline(std::uint64_t bytes, Duration stall);

}  // namespace baton::handoff
