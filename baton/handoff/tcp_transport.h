// Transport over TCP. One control connection per pair of nodes, whoever dialled, served on the
// control loop; bulk connections of their own, opened by the sender of Blocks when it first has
// some, served on the I/O pool: tiles go from the pool's memory to the socket and from the socket
// into the spans of BulkSink::accept, with no copy between. With a fabric, and to peers that name
// the same one, bulk frames go by that; all else stays. docs/protocol.md is the specification.
#pragma once

#include "baton/base/clock.h"
#include "baton/handoff/cluster_token.h"
#include "baton/handoff/stats.h"
#include "baton/handoff/transport.h"
#include "baton/net/address.h"
#include "baton/net/event_loop.h"
#include "baton/net/fabric.h"
#include "baton/net/tls.h"

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

namespace baton::handoff {

struct TcpTransportOptions {
  wire::pb::Hello hello;  // ours (make_hello); bulk, serving_port and fabric are set here
  std::optional<net::HostPort> serving_bind;  // none: accepts nobody. Port 0: any free one
  std::vector<net::HostPort> peers;           // add_peer() at start
  std::size_t bulk_connections = 2;           // per peer and direction; >= 1
  // What keeps strangers out: either, both or, on loopback only, neither. All nodes alike.
  std::shared_ptr<const net::TlsContext> tls;  // with a CA: mutual
  std::shared_ptr<const ClusterToken> token;
  // Null: KV goes over TCP. Not with TLS: a fabric does not encrypt.
  std::shared_ptr<net::Fabric> fabric;
  Duration connect_deadline = std::chrono::seconds(5);
  Duration handshake_deadline = std::chrono::seconds(5);
  Duration stall_deadline = std::chrono::seconds(10);      // without progress inside a frame
  Duration redial_first = std::chrono::milliseconds(100);  // doubles, with jitter, up to:
  Duration redial_most = std::chrono::seconds(5);
  // 0: the kernel's own tuning, as fast on loopback as 4 MiB, and never capped by
  // net.core.*mem_max.
  std::size_t bulk_socket_buffer_bytes = 0;
};

// Whether nodes may be served at that address. Errors: kInvalidArgument naming both ways to guard
// an address beyond loopback.
Status check_guarded(const net::HostPort& local, bool guarded);

class TcpTransport final : public Transport {
 public:
  // `control` runs everything but bulk; `io` must outlive the transport. Thread: control, as all of
  // the interface (before the control loop runs, any).
  TcpTransport(asio::any_io_executor control, net::IoPool* io, TcpTransportOptions options);
  ~TcpTransport() override;  // after stopped(), or without start()

  // Binds, listens and starts to dial. Errors: kIo (port in use; names host:port),
  // kInvalidArgument (check_guarded; a fabric and TLS).
  Status start();
  // Where it listens; the port is the real one. Only after start() with a serving_bind.
  [[nodiscard]] net::HostPort serving_address() const;
  [[nodiscard]] const TransportStats& stats() const;  // Thread: any

  // Dials that address, and again whenever the connection is lost. Nothing when it does already.
  // After start(). Thread: control.
  void add_peer(const net::HostPort& address);
  // Stops dialling it and closes all connections with the node that answered there, unless it did
  // at another address, too: PeerDown of that node, if it was up, then PeerForgotten. Unknown
  // addresses are ignored. Thread: control.
  void remove_peer(const net::HostPort& address);
  // Who is connected now, of those that answered at an added address. Thread: control.
  [[nodiscard]] std::optional<NodeId> peer_at(const net::HostPort& address) const;

  void set_bulk_sink(BulkSink* sink) override;
  asio::awaitable<Result<TransportEvent>> next() override;
  Status send_control(const NodeId& to, const SequenceKey& key, wire::Control message) override;
  asio::awaitable<Result<BulkSent>> send_blocks(
      NodeId to, SequenceKey key, wire::BlocksHeader blocks, std::uint64_t sequence,
      std::vector<std::span<const std::byte>> tiles) override;
  asio::awaitable<Status> send_commit(NodeId to, SequenceKey key, wire::pb::Commit commit) override;
  void disconnect(const NodeId& peer, Error reason) override;
  void shutdown() override;
  asio::awaitable<void> stopped() override;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace baton::handoff
