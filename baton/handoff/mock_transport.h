// Transport in one process, for tests: MockNetwork joins MockTransports on one executor and can do
// to each frame what a network and a peer can do. Frames are really encoded, checked and decoded
// (wire/); time is an AsyncClock (virtual in tests), so a run is the same each time.
// Thread: all on one executor.
#pragma once

#include "baton/handoff/transport.h"
#include "baton/net/async_clock.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace baton::handoff {

class MockTransport;

enum class FaultAction : std::uint8_t {
  kDrop,       // the frame vanishes
  kCorrupt,    // one payload bit flips: bad CRC. A control frame then costs the connection
  kDuplicate,  // it arrives twice
  kSwapNext,   // it arrives after the next frame of its lane
  kReset,      // instead of it the connection breaks: PeerDown on both sides
  kHalfClose,  // from it on nothing arrives in this direction, and the receiver sees PeerDown
  kCut,        // its connection breaks inside it: half of a Blocks frame's tiles arrive, nothing of
               // a Commit, and its sender hears of it. A control frame: as kReset
};

// Applies to the `nth` frame (from 1) of `type` from -> to after it was added; once.
struct Fault {
  NodeId from;
  NodeId to;
  wire::FrameType type = wire::FrameType::kBeat;
  std::uint64_t nth = 1;
  FaultAction action = FaultAction::kDrop;
};

class MockNetwork {
 public:
  class Impl;

  // `clock` is needed for set_delay and set_bulk_time only.
  explicit MockNetwork(asio::any_io_executor executor, net::AsyncClock* clock = nullptr);
  ~MockNetwork();  // after stop() has run to its end
  MockNetwork(const MockNetwork&) = delete;
  MockNetwork& operator=(const MockNetwork&) = delete;

  // A node of this network, not yet connected. It must be shut down before the network goes.
  std::unique_ptr<MockTransport> attach(wire::pb::Hello hello);

  // Dials: PeerUp on both sides, or PeerUnusable on both with field and values. No-op when already
  // connected.
  void connect(const NodeId& from, const NodeId& to);

  void add_fault(Fault fault);
  // Sees every frame before its fault; may return one. For faults that depend on content.
  using Hook = std::function<std::optional<FaultAction>(const NodeId& from, const NodeId& to,
                                                        const wire::FrameHeader& header)>;
  void set_hook(Hook hook);

  // Every later frame from -> to arrives that much later; order per lane is kept. Lanes: control,
  // and bulk (so a Commit may overtake a Grant, but not Blocks).
  void set_delay(const NodeId& from, const NodeId& to, Duration delay);
  // What bulk frames take besides the delay: `leaving` until the sender's tiles are read and on
  // their way, `reporting` from then until the sender hears of it, `landing` from BulkSink::accept
  // to landed(). Frames whose times differ overtake each other, as on several connections. Asked
  // for each frame, at both ends; a Commit has only the second.
  struct BulkTime {
    Duration leaving{};
    Duration reporting{};
    Duration landing{};
  };
  void set_bulk_time(std::function<BulkTime(const NodeId& from, const NodeId& to)> time);
  // Frames wait, both ways, until heal(): as TCP in a short partition. Nobody sees a PeerDown.
  void partition(const NodeId& a, const NodeId& b);
  void partition_one_way(const NodeId& from, const NodeId& to);  // the other way they arrive
  void heal(const NodeId& a, const NodeId& b);
  // Manual delivery from -> to: frames wait, and deliver() lets the oldest of that lane through.
  enum class Lane : std::uint8_t { kControl, kBulk };
  void hold(const NodeId& from, const NodeId& to);
  bool deliver(const NodeId& from, const NodeId& to, Lane lane);
  void release(const NodeId& from, const NodeId& to);  // ends hold(): all that waits arrives
  [[nodiscard]] std::size_t waiting(const NodeId& from, const NodeId& to, Lane lane) const;
  // The connection breaks now: PeerDown on both sides, frames under way are lost.
  void reset(const NodeId& a, const NodeId& b);
  // The node's process dies: every peer sees PeerDown; it sends and receives nothing any more.
  void kill(const NodeId& node);

  // Whether `node` believes to be connected to the peer.
  [[nodiscard]] bool is_up(const NodeId& node, const NodeId& peer) const;

  // How many frames of that type from -> to were sent (faulty ones included).
  [[nodiscard]] std::uint64_t frames_sent(const NodeId& from, const NodeId& to,
                                          wire::FrameType type) const;

  // Ends the delivery tasks. Await it before destruction.
  asio::awaitable<void> stop();

 private:
  std::shared_ptr<Impl> impl_;
};

class MockTransport final : public Transport {
 public:
  ~MockTransport() override;

  [[nodiscard]] const NodeId& id() const;

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
  friend class MockNetwork;
  struct Node;
  MockTransport(std::shared_ptr<MockNetwork::Impl> network, std::shared_ptr<Node> node);
  std::shared_ptr<MockNetwork::Impl> network_;
  std::shared_ptr<Node> node_;
};

}  // namespace baton::handoff
