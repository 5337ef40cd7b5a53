// The inside of MockNetwork: nodes, links with two lanes each, and frames on their way. Everything
// on one executor.
#pragma once

#include "baton/handoff/mock_transport.h"
#include "baton/net/async_event.h"
#include "baton/net/task_group.h"
#include "baton/wire/frames.h"

#include <array>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

namespace baton::handoff {

struct MockTransport::Node {
  Node(const asio::any_io_executor& executor, wire::pb::Hello given)
      : hello(std::move(given)),
        id{hello.node_id()},
        events(executor, static_cast<std::size_t>(-1)) {}

  wire::pb::Hello hello;
  NodeId id;
  net::AsyncQueue<TransportEvent> events;
  BulkSink* sink = nullptr;
  std::set<NodeId> up;  // peers that this node believes to be connected
  bool dead = false;
};

class MockNetwork::Impl : public std::enable_shared_from_this<MockNetwork::Impl> {
 public:
  using Node = MockTransport::Node;
  using Pair = std::pair<NodeId, NodeId>;  // from, to

  struct Frame {
    std::vector<std::byte> bytes;  // header and payload
    TimePoint due{};
    bool cut = false;  // only half of its tiles come
  };
  // A Blocks frame between accept and landed.
  struct Landing {
    std::shared_ptr<Node> to;
    BlocksReceived event;
    std::vector<std::byte> bytes;  // header and payload
    std::vector<std::span<std::byte>> spans;
    bool cut = false;
  };
  struct LaneState {
    std::deque<Frame> frames;
    std::optional<Frame> swapped;  // waits for the next frame to pass it
    bool pumping = false;
  };
  struct Link {
    std::array<LaneState, 2> lanes;
    std::map<wire::FrameType, std::uint64_t> sent;
    Duration delay{};
    bool held = false;
    bool partitioned = false;
    bool closed = false;              // half-closed: nothing arrives any more
    std::optional<Error> down_later;  // the receiver learns of a reset when a partition heals
    std::uint64_t connections = 0;    // made so far: a frame belongs to one
  };

  Impl(asio::any_io_executor executor, net::AsyncClock* clock)
      : executor_(std::move(executor)), clock_(clock), tasks_(executor_) {}

  std::shared_ptr<Node> attach(wire::pb::Hello hello);
  void connect(const NodeId& from, const NodeId& to);
  Status send(Node& from, const NodeId& to, std::vector<std::byte> frame);
  void break_connection(const NodeId& local, const NodeId& peer, const Error& reason);
  void leave(Node& node, const Error& reason);
  bool deliver_one(const Pair& direction, Lane lane);
  // Waits while the frame's tiles are read. False: the connection it was for is gone.
  asio::awaitable<bool> leave_slowly(NodeId from, NodeId to, Duration time);
  // Waits until the sender hears that the frame has left.
  asio::awaitable<void> report_slowly(Duration time);
  [[nodiscard]] BulkTime bulk_time(const NodeId& from, const NodeId& to) const {
    return bulk_time_ ? bulk_time_(from, to) : BulkTime{};
  }
  // What the node has written arrives although it goes.
  void flush(const NodeId& from);
  void pump(const Pair& direction, Lane lane);

  asio::any_io_executor executor_;
  net::AsyncClock* clock_;
  net::TaskGroup tasks_;
  std::map<NodeId, std::shared_ptr<Node>> nodes_;
  std::map<Pair, Link> links_;
  std::vector<Fault> faults_;
  Hook hook_;
  std::function<BulkTime(const NodeId& from, const NodeId& to)> bulk_time_;

 private:
  std::optional<FaultAction> fault_for(const Pair& direction, const wire::FrameHeader& header,
                                       std::uint64_t count);
  void enqueue(const Pair& direction, Lane lane, Frame frame, bool swap);
  asio::awaitable<void> pump_when_due(Pair direction, Lane lane, TimePoint due);
  void peer_down(const NodeId& local, const NodeId& peer, const Error& reason);
  void drop_frames(const NodeId& a, const NodeId& b);
  void receive(Node& to, const NodeId& from, Frame frame);
  void receive_blocks(Node& to, const NodeId& from, const wire::FrameHeader& header, Frame frame);
  asio::awaitable<void> land_later(std::uint64_t number, Duration time);
  void land(Landing landing);
  void end_landings(const NodeId& a, const NodeId& b);
  void reject(Node& to, const NodeId& from, const wire::FrameHeader& header, const Error& error);

  std::map<std::uint64_t, Landing> landings_;  // in the order in which they were accepted
  std::uint64_t next_landing_ = 0;
};

}  // namespace baton::handoff
