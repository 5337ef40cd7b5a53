#include "baton/base/check.h"
#include "baton/handoff/handshake.h"
#include "baton/handoff/mock_transport_impl.h"
#include "baton/wire/codec.h"

#include <algorithm>
#include <utility>

namespace baton::handoff {

namespace {

// Frames of one lane that wait: what a real peer's write queue would hold before it is closed.
constexpr std::size_t kMaxWaitingFrames = 1 << 16;

using Lane = MockNetwork::Lane;
using Pair = MockNetwork::Impl::Pair;

}  // namespace

std::shared_ptr<MockTransport::Node> MockNetwork::Impl::attach(wire::pb::Hello hello) {
  const auto valid = wire::encode_hello(hello);
  BATON_CHECK(valid.has_value(), "{}", valid ? "" : valid.error().message);
  auto node = std::make_shared<Node>(executor_, std::move(hello));
  auto& place = nodes_[node->id];
  BATON_CHECK(!place || place->dead, "node {} is attached twice", node->id.value);
  place = node;
  return node;
}

void MockNetwork::Impl::connect(const NodeId& from, const NodeId& to) {
  Node& a = *nodes_.at(from);
  Node& b = *nodes_.at(to);
  if (a.dead || b.dead) {
    Node& alive = a.dead ? b : a;
    const NodeId& gone = a.dead ? from : to;
    if (!alive.dead) {
      alive.events.push_unbounded(
          PeerUnusable{gone.value, Error{ErrorCode::kPeerLost, "cannot connect to " + gone.value}});
    }
    return;
  }
  if (a.up.contains(to) && b.up.contains(from)) {
    return;
  }
  break_connection(from, to, Error{ErrorCode::kPeerLost, "replaced by a new connection"});
  for (Node* local : {&b, &a}) {
    Node& remote = local == &a ? b : a;
    if (const auto mismatch = find_mismatch(local->hello, remote.hello)) {
      local->events.push_unbounded(
          PeerUnusable{remote.id.value, mismatch_error(*mismatch, remote.id.value)});
    }
  }
  if (find_mismatch(a.hello, b.hello)) {
    return;
  }
  drop_frames(from, to);
  for (const Pair& direction : {Pair{from, to}, Pair{to, from}}) {
    links_[direction].closed = false;
    ++links_[direction].connections;
  }
  for (Node* local : {&b, &a}) {
    Node& remote = local == &a ? b : a;
    local->up.insert(remote.id);
    local->events.push_unbounded(
        PeerUp{node_info(remote.hello, remote.id.value), remote.hello.block_tokens()});
  }
}

std::optional<FaultAction> MockNetwork::Impl::fault_for(const Pair& direction,
                                                        const wire::FrameHeader& header,
                                                        std::uint64_t count) {
  if (hook_) {
    if (auto action = hook_(direction.first, direction.second, header)) {
      return action;
    }
  }
  for (auto fault = faults_.begin(); fault != faults_.end(); ++fault) {
    if (fault->from == direction.first && fault->to == direction.second &&
        fault->type == header.type && fault->nth == count) {
      const FaultAction action = fault->action;
      faults_.erase(fault);
      return action;
    }
  }
  return std::nullopt;
}

Status MockNetwork::Impl::send(Node& from, const NodeId& to, std::vector<std::byte> bytes) {
  if (from.dead || !from.up.contains(to)) {
    return fail(ErrorCode::kPeerLost, "no connection to " + to.value);
  }
  const auto header = wire::decode_header(std::span(bytes).first<wire::kHeaderBytes>());
  if (!header) {
    return fail(header.error());  // too large
  }
  const Pair direction{from.id, to};
  Link& link = links_[direction];
  const Lane lane =
      header->type == wire::FrameType::kBlocks || header->type == wire::FrameType::kCommit
          ? Lane::kBulk
          : Lane::kControl;
  const std::uint64_t count = ++link.sent[header->type];
  const auto action = fault_for(direction, *header, count);
  if (link.lanes[static_cast<std::size_t>(lane)].frames.size() >= kMaxWaitingFrames) {
    const Error error{ErrorCode::kOverloaded, "the write queue of " + to.value + " is full"};
    break_connection(from.id, to, error);
    return fail(error);
  }
  Frame frame{std::move(bytes), clock_ != nullptr ? clock_->now() + link.delay : TimePoint{}};
  switch (action.value_or(FaultAction::kSwapNext)) {
    case FaultAction::kDrop:
      return {};
    case FaultAction::kReset:
      break_connection(from.id, to, Error{ErrorCode::kPeerLost, "connection reset"});
      return {};
    case FaultAction::kHalfClose:
      link.closed = true;
      peer_down(to, from.id, Error{ErrorCode::kPeerLost, "closed by the peer"});
      return {};
    case FaultAction::kCut:
      if (lane == Lane::kControl) {
        break_connection(from.id, to, Error{ErrorCode::kPeerLost, "connection reset"});
        return {};
      }
      if (header->type == wire::FrameType::kBlocks) {
        frame.cut = true;
        enqueue(direction, lane, std::move(frame), false);
      }
      return fail(ErrorCode::kPeerLost, "the bulk connection broke");
    case FaultAction::kCorrupt:
      frame.bytes.back() ^= std::byte{0x10};
      break;
    case FaultAction::kDuplicate:
      enqueue(direction, lane, frame, false);
      break;
    case FaultAction::kSwapNext:
      break;
  }
  enqueue(direction, lane, std::move(frame), action == FaultAction::kSwapNext);
  return {};
}

void MockNetwork::Impl::enqueue(const Pair& direction, Lane lane, Frame frame, bool swap) {
  LaneState& state = links_[direction].lanes[static_cast<std::size_t>(lane)];
  if (swap) {
    state.swapped = std::move(frame);
    return;
  }
  state.frames.push_back(std::move(frame));
  if (state.swapped) {
    state.frames.push_back(*std::exchange(state.swapped, std::nullopt));
  }
  pump(direction, lane);
}

// One frame a turn of the executor, so that lanes and links interleave as they were filled.
void MockNetwork::Impl::pump(const Pair& direction, Lane lane) {
  Link& link = links_[direction];
  LaneState& state = link.lanes[static_cast<std::size_t>(lane)];
  if (state.pumping || state.frames.empty() || link.held || link.partitioned) {
    return;
  }
  state.pumping = true;
  const TimePoint due = state.frames.front().due;
  if (clock_ != nullptr && due > clock_->now()) {
    tasks_.spawn(pump_when_due(direction, lane, due));
    return;
  }
  asio::post(executor_, [self = weak_from_this(), direction, lane] {
    const auto alive = self.lock();
    if (!alive) {
      return;
    }
    Link& ready = alive->links_[direction];
    ready.lanes[static_cast<std::size_t>(lane)].pumping = false;
    if (!ready.held && !ready.partitioned) {
      alive->deliver_one(direction, lane);
      alive->pump(direction, lane);
    }
  });
}

asio::awaitable<void> MockNetwork::Impl::pump_when_due(Pair direction, Lane lane, TimePoint due) {
  co_await clock_->sleep_until(due);
  links_[direction].lanes[static_cast<std::size_t>(lane)].pumping = false;
  pump(direction, lane);
}

bool MockNetwork::Impl::deliver_one(const Pair& direction, Lane lane) {
  Link& link = links_[direction];
  LaneState& state = link.lanes[static_cast<std::size_t>(lane)];
  if (state.frames.empty()) {
    return false;
  }
  Frame frame = std::move(state.frames.front());
  state.frames.pop_front();
  Node& to = *nodes_.at(direction.second);
  if (!to.dead && !link.closed && to.up.contains(direction.first)) {
    receive(to, direction.first, std::move(frame));
  }
  return true;
}

void MockNetwork::Impl::peer_down(const NodeId& local, const NodeId& peer, const Error& reason) {
  Node& node = *nodes_.at(local);
  if (!node.dead && node.up.erase(peer) > 0) {
    node.events.push_unbounded(PeerDown{peer, reason});
  }
}

void MockNetwork::Impl::drop_frames(const NodeId& a, const NodeId& b) {
  for (const Pair& direction : {Pair{a, b}, Pair{b, a}}) {
    for (LaneState& lane : links_[direction].lanes) {
      lane.frames.clear();
      lane.swapped.reset();
    }
  }
}

void MockNetwork::Impl::break_connection(const NodeId& local, const NodeId& peer,
                                         const Error& reason) {
  drop_frames(local, peer);
  end_landings(local, peer);
  peer_down(local, peer, reason);
  Link& link = links_[Pair{local, peer}];
  const Error remote{ErrorCode::kPeerLost, local.value + " closed the connection"};
  if (link.partitioned) {
    link.down_later = remote;
  } else {
    peer_down(peer, local, remote);
  }
}

void MockNetwork::Impl::flush(const NodeId& from) {
  for (auto& [direction, link] : links_) {
    for (const Lane lane : {Lane::kControl, Lane::kBulk}) {
      while (direction.first == from && !link.partitioned && !link.held &&
             deliver_one(direction, lane)) {
      }
    }
  }
}

void MockNetwork::Impl::leave(Node& node, const Error& reason) {
  if (node.dead) {
    return;
  }
  node.dead = true;
  node.events.close_and_clear();
  for (auto& [id, other] : nodes_) {
    if (other->id != node.id) {
      end_landings(node.id, other->id);
      if (other->up.contains(node.id)) {
        break_connection(node.id, other->id, reason);
      }
    }
  }
  node.up.clear();
}

// ---- arrival ----------------------------------------------------------------------------------

void MockNetwork::Impl::receive(Node& to, const NodeId& from, Frame frame) {
  const std::span<const std::byte> bytes = frame.bytes;
  const auto header = wire::decode_header(bytes.first<wire::kHeaderBytes>());
  if (!header) {
    break_connection(to.id, from, header.error());
    return;
  }
  const auto payload = bytes.subspan(wire::kHeaderBytes);
  if (header->type == wire::FrameType::kBlocks) {
    receive_blocks(to, from, *header, std::move(frame));
    return;
  }
  if (header->type == wire::FrameType::kCommit) {
    auto commit = wire::decode_commit(*header, payload);
    if (!commit) {
      reject(to, from, *header, commit.error());
      return;
    }
    to.events.push_unbounded(CommitReceived{from, header->key, *std::move(commit)});
    return;
  }
  auto message = wire::decode_control(*header, payload);
  if (!message) {
    reject(to, from, *header, message.error());
    return;
  }
  to.events.push_unbounded(ControlReceived{from, header->key, *std::move(message)});
}

// As TcpTransport does: a message that is whole but wrong ends its sequence on both sides; bytes
// that are not what was sent, or a message without a sequence, end the connection.
void MockNetwork::Impl::reject(Node& to, const NodeId& from, const wire::FrameHeader& header,
                               const Error& error) {
  if (error.code != ErrorCode::kProtocol || header.key.request == RequestId{}) {
    break_connection(to.id, from, error);
    return;
  }
  wire::pb::Abort abort;
  abort.set_code(static_cast<std::uint32_t>(error.code));
  abort.set_message(error.message);
  if (auto frame = wire::encode_control(header.key, abort)) {
    (void)send(to, from, *std::move(frame));
  }
  to.events.push_unbounded(ControlReceived{from, header.key, std::move(abort)});
}

// ---- MockNetwork ------------------------------------------------------------------------------

MockNetwork::MockNetwork(asio::any_io_executor executor, net::AsyncClock* clock)
    : impl_(std::make_shared<Impl>(std::move(executor), clock)) {}
MockNetwork::~MockNetwork() = default;

std::unique_ptr<MockTransport> MockNetwork::attach(wire::pb::Hello hello) {
  auto node = impl_->attach(std::move(hello));
  return std::unique_ptr<MockTransport>(new MockTransport(impl_, std::move(node)));
}

void MockNetwork::connect(const NodeId& from, const NodeId& to) { impl_->connect(from, to); }

void MockNetwork::add_fault(Fault fault) {
  fault.nth += frames_sent(fault.from, fault.to, fault.type);
  impl_->faults_.push_back(std::move(fault));
}

void MockNetwork::set_hook(Hook hook) { impl_->hook_ = std::move(hook); }

void MockNetwork::set_delay(const NodeId& from, const NodeId& to, Duration delay) {
  BATON_CHECK(impl_->clock_ != nullptr, "a delay needs a clock");
  impl_->links_[Pair{from, to}].delay = delay;
}

void MockNetwork::set_bulk_time(
    std::function<BulkTime(const NodeId& from, const NodeId& to)> time) {
  BATON_CHECK(impl_->clock_ != nullptr, "a time needs a clock");
  impl_->bulk_time_ = std::move(time);
}

void MockNetwork::partition(const NodeId& a, const NodeId& b) {
  partition_one_way(a, b);
  partition_one_way(b, a);
}

void MockNetwork::partition_one_way(const NodeId& from, const NodeId& to) {
  impl_->links_[Pair{from, to}].partitioned = true;
}

void MockNetwork::heal(const NodeId& a, const NodeId& b) {
  for (const Pair& direction : {Pair{a, b}, Pair{b, a}}) {
    Impl::Link& link = impl_->links_[direction];
    link.partitioned = false;
    if (const auto down = std::exchange(link.down_later, std::nullopt)) {
      impl_->break_connection(direction.second, direction.first, *down);
    }
    impl_->pump(direction, Lane::kControl);
    impl_->pump(direction, Lane::kBulk);
  }
}

void MockNetwork::hold(const NodeId& from, const NodeId& to) {
  impl_->links_[Pair{from, to}].held = true;
}

bool MockNetwork::deliver(const NodeId& from, const NodeId& to, Lane lane) {
  return impl_->deliver_one(Pair{from, to}, lane);
}

void MockNetwork::release(const NodeId& from, const NodeId& to) {
  impl_->links_[Pair{from, to}].held = false;
  impl_->pump(Pair{from, to}, Lane::kControl);
  impl_->pump(Pair{from, to}, Lane::kBulk);
}

std::size_t MockNetwork::waiting(const NodeId& from, const NodeId& to, Lane lane) const {
  const auto found = impl_->links_.find(Pair{from, to});
  return found == impl_->links_.end()
             ? 0
             : found->second.lanes[static_cast<std::size_t>(lane)].frames.size();
}

void MockNetwork::reset(const NodeId& a, const NodeId& b) {
  impl_->break_connection(a, b, Error{ErrorCode::kPeerLost, "connection reset"});
}

void MockNetwork::kill(const NodeId& node) {
  impl_->leave(*impl_->nodes_.at(node), Error{ErrorCode::kPeerLost, "connection reset"});
}

bool MockNetwork::is_up(const NodeId& node, const NodeId& peer) const {
  const auto found = impl_->nodes_.find(node);
  return found != impl_->nodes_.end() && !found->second->dead && found->second->up.contains(peer);
}

std::uint64_t MockNetwork::frames_sent(const NodeId& from, const NodeId& to,
                                       wire::FrameType type) const {
  const auto link = impl_->links_.find(Pair{from, to});
  if (link == impl_->links_.end()) {
    return 0;
  }
  const auto count = link->second.sent.find(type);
  return count == link->second.sent.end() ? 0 : count->second;
}

asio::awaitable<void> MockNetwork::stop() {
  impl_->tasks_.stop();
  co_await impl_->tasks_.wait_empty();
}

// ---- MockTransport ----------------------------------------------------------------------------

MockTransport::MockTransport(std::shared_ptr<MockNetwork::Impl> network, std::shared_ptr<Node> node)
    : network_(std::move(network)), node_(std::move(node)) {}
MockTransport::~MockTransport() { shutdown(); }

const NodeId& MockTransport::id() const { return node_->id; }

void MockTransport::set_bulk_sink(BulkSink* sink) { node_->sink = sink; }

asio::awaitable<Result<TransportEvent>> MockTransport::next() {
  auto node = node_;
  auto event = co_await node->events.pop();
  if (!event) {
    co_return fail(ErrorCode::kCancelled, "the transport is shut down");
  }
  co_return *std::move(event);
}

Status MockTransport::send_control(const NodeId& to, const SequenceKey& key,
                                   wire::Control message) {
  BATON_TRY(auto frame, wire::encode_control(key, message));
  return network_->send(*node_, to, std::move(frame));
}

asio::awaitable<Result<BulkSent>> MockTransport::send_blocks(
    NodeId to, SequenceKey key, wire::BlocksHeader blocks, std::uint64_t sequence,
    std::vector<std::span<const std::byte>> tiles) {
  auto node = node_;
  auto network = network_;
  const MockNetwork::BulkTime time = network->bulk_time(node->id, to);
  const bool connected = co_await network->leave_slowly(node->id, to, time.leaving);
  if (!connected) {
    co_return fail(ErrorCode::kPeerLost, "the bulk connection broke");
  }
  const auto encoded = wire::encode_blocks_header(blocks);
  const wire::FrameHeader header = wire::blocks_frame_header(key, sequence, encoded, tiles);
  BulkSent sent{wire::encode_header(header), header.payload_bytes - encoded.size()};
  std::vector<std::byte> frame(sent.header.begin(), sent.header.end());
  frame.insert(frame.end(), encoded.begin(), encoded.end());
  for (const auto& part : tiles) {
    frame.insert(frame.end(), part.begin(), part.end());
  }
  auto status = network->send(*node, to, std::move(frame));
  co_await network->report_slowly(time.reporting);
  if (!status) {
    co_return fail(std::move(status).error());
  }
  co_return sent;
}

asio::awaitable<Status> MockTransport::send_commit(NodeId to, SequenceKey key,
                                                   wire::pb::Commit commit) {
  auto node = node_;
  auto network = network_;
  auto frame = wire::encode_commit(key, commit);
  if (!frame) {
    co_return fail(std::move(frame).error());
  }
  auto status = network->send(*node, to, *std::move(frame));
  const Duration reporting = network->bulk_time(node->id, to).reporting;
  co_await network->report_slowly(reporting);
  co_return status;
}

void MockTransport::disconnect(const NodeId& peer, Error reason) {
  if (node_->up.contains(peer)) {
    network_->break_connection(node_->id, peer, reason);
  }
}

void MockTransport::shutdown() {
  if (!node_->dead) {
    network_->flush(node_->id);
  }
  network_->leave(*node_, Error{ErrorCode::kPeerLost, node_->id.value + " shut down"});
}

asio::awaitable<void> MockTransport::stopped() {
  BATON_CHECK(node_->dead, "shutdown() first");
  co_return;  // nothing of a node runs by itself
}

}  // namespace baton::handoff
