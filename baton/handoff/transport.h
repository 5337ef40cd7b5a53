// What the roles need of a network: peers come and go, control messages arrive in order per peer,
// tiles land straight in reserved blocks. TcpTransport is the real one, MockTransport the
// in-process one with faults. Both deliver everything through next(); nothing calls back into a
// role, except BulkSink, which a transport asks from its I/O threads where a frame's bytes belong.
#pragma once

#include "baton/base/ids.h"
#include "baton/base/result.h"
#include "baton/message/node.h"
#include "baton/wire/frames.h"

#include <boost/asio/awaitable.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

namespace baton::handoff {

namespace asio = boost::asio;

struct PeerUp {
  message::NodeInfo info;
  std::int32_t block_tokens = 0;
};
struct PeerDown {
  NodeId peer;
  Error reason;
};
// A peer that was reached and refused us, or that we refused; error names the field and both
// values. Also a dial that failed (kPeerLost): once per change of reason, the transport goes on
// trying.
struct PeerUnusable {
  std::string address;
  Error error;
};
// An address is not dialled any more (TcpTransport::remove_peer) and nobody is connected there: the
// last event about it.
struct PeerForgotten {
  std::string address;
};
// A message whose CRC is right but whose content is not (a field out of range) arrives as an Abort
// of its key with code kProtocol, and the peer is sent the same: it ends that one sequence on both
// sides.
struct ControlReceived {
  NodeId peer;
  SequenceKey key;
  wire::Control message;
};
// A Blocks frame whose tiles are in their place. When !status they are not, or not all:
// kCorruptFrame (CRC), kPeerLost (the connection broke inside the frame), or what BulkSink::accept
// returned.
struct BlocksReceived {
  NodeId peer;
  SequenceKey key;
  wire::BlocksHeader blocks;
  std::uint64_t sequence = 0;       // number of the frame within its handoff, from 0
  wire::EncodedHeader header{};     // the frame's header as it was on the wire, for the digest
  std::uint64_t payload_bytes = 0;  // of tiles
  Status status;
};
struct CommitReceived {
  NodeId peer;
  SequenceKey key;
  wire::pb::Commit commit;
  bool in_order =
      false;  // the transport's: what its peer said before by another way has been heard
};
using TransportEvent = std::variant<PeerUp, PeerDown, PeerUnusable, PeerForgotten, ControlReceived,
                                    BlocksReceived, CommitReceived>;

// Where arriving tiles go. Implemented by the decode role's table of reservations.
class BulkSink {
 public:
  virtual ~BulkSink() = default;
  // The memory for this frame's tiles, in the order of its payload. The bytes are in flight, and
  // the blocks may not be reused, until landed() is called. Errors: kCancelled (unknown or dead
  // key), kProtocol (not granted, wrong shape). Thread: any of the transport's.
  virtual Result<std::vector<std::span<std::byte>>> accept(const NodeId& peer,
                                                           const SequenceKey& key,
                                                           const wire::BlocksHeader& blocks) = 0;
  // Every byte of an accepted frame was written or none will be any more. Thread: as accept.
  virtual void landed(const SequenceKey& key, const wire::BlocksHeader& blocks) = 0;
};

struct BulkSent {
  wire::EncodedHeader header{};  // as it went out, with its CRC
  std::uint64_t payload_bytes = 0;
};

class Transport {
 public:
  virtual ~Transport() = default;

  // Before the first next(). May be null (an owner receives no tiles).
  virtual void set_bulk_sink(BulkSink* sink) = 0;

  // The next event. Errors: kCancelled once shut down. Thread: control; one caller at a time.
  virtual asio::awaitable<Result<TransportEvent>> next() = 0;

  // Queues a control message to a live, handshaken peer. Never waits. Errors: kPeerLost (no such
  // peer now), kOverloaded (its queue is full: the connection is then closed). Thread: control.
  virtual Status send_control(const NodeId& to, const SequenceKey& key, wire::Control message) = 0;

  // Writes one Blocks frame: header, then tiles straight from `tiles` (no copy). Completes when the
  // last byte is handed to the kernel, or with kPeerLost / kDeadlineExceeded. `tiles` must stay
  // valid until then. Thread: control; many may be under way.
  virtual asio::awaitable<Result<BulkSent>> send_blocks(
      NodeId to, SequenceKey key, wire::BlocksHeader blocks, std::uint64_t sequence,
      std::vector<std::span<const std::byte>> tiles) = 0;

  // Writes the Commit on a bulk connection to that peer.
  virtual asio::awaitable<Status> send_commit(NodeId to, SequenceKey key,
                                              wire::pb::Commit commit) = 0;

  // Closes all connections with that peer (missing Beats are judged by the caller). PeerDown with
  // `reason` follows; a peer that was dialled is dialled again. Unknown peers are ignored.
  // Thread: control.
  virtual void disconnect(const NodeId& peer, Error reason) = 0;

  // Stops accepting and dialling, closes everything, ends next(). Idempotent. Thread: control.
  virtual void shutdown() = 0;

  // Completes once shutdown() was called and nothing of the transport runs any more (no coroutine,
  // no call of BulkSink): required before it is destroyed. Thread: control.
  virtual asio::awaitable<void> stopped() = 0;
};

}  // namespace baton::handoff
