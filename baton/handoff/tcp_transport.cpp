#include "baton/handoff/tcp_transport.h"

#include "baton/base/check.h"
#include "baton/base/failpoints.h"
#include "baton/base/log.h"
#include "baton/handoff/tcp_transport_impl.h"

#include <fmt/format.h>

#include <algorithm>

namespace baton::handoff {

namespace {

asio::awaitable<void> end_group(net::TaskGroup* group) {
  group->stop();
  co_await group->wait_empty();
}

}  // namespace

TcpPeer::TcpPeer(wire::pb::Hello theirs, std::unique_ptr<net::TcpStream> taken, bool we_dialled)
    : id{theirs.node_id()},
      hello(std::move(theirs)),
      dialled(we_dialled),
      stream(std::move(taken)),
      credit(std::make_shared<EventCredit>(stream->executor())),
      writes(stream->executor(), kMaxQueuedControlFrames) {}

TcpTransport::Impl::Impl(asio::any_io_executor control, net::IoPool* io,
                         TcpTransportOptions options)
    : control_(std::move(control)),
      io_(io),
      options_(std::move(options)),
      events_(control_),
      tasks_(control_),
      random_(std::random_device{}()) {
  BATON_CHECK(options_.bulk_connections >= 1);
  if (options_.fabric) {
    options_.hello.set_fabric(options_.fabric->name());
  }
  for (std::size_t i = 0; i < io_->size(); ++i) {
    io_tasks_.push_back(std::make_unique<net::TaskGroup>(io_->executor(i)));
  }
}

TcpTransport::Impl::~Impl() {
  BATON_CHECK(!started_ || stopping_, "shutdown() and stopped() first");
}

// ---- peers ------------------------------------------------------------------------------------

std::shared_ptr<TcpPeer> TcpTransport::Impl::find(const NodeId& id) const {
  const auto found = peers_.find(id);
  return found == peers_.end() ? nullptr : found->second;
}

std::shared_ptr<TcpPeer> TcpTransport::Impl::reached(const Dialler& dialler) const {
  if (!dialler.answered) {
    return nullptr;
  }
  auto peer = find(NodeId{dialler.answered->node_id()});
  return peer && same_boot(peer->hello, *dialler.answered) ? peer : nullptr;
}

std::optional<net::HostPort> TcpTransport::Impl::known_address(
    const wire::pb::Hello& theirs) const {
  std::optional<net::HostPort> known;
  for (const auto& [address, dialler] : diallers_) {
    const auto& answered = dialler->answered;
    if (!answered || answered->node_id() != theirs.node_id()) {
      continue;
    }
    if (same_boot(*answered, theirs)) {
      return address;
    }
    if (address.port == theirs.serving_port()) {
      known = address;  // started anew, at the same place as far as one can tell
    }
  }
  return known;
}

void TcpTransport::Impl::admit(wire::pb::Hello theirs, std::unique_ptr<net::TcpStream> stream,
                               const Dialler* by) {
  if (stopping_) {
    return;
  }
  const NodeId id{theirs.node_id()};
  if (const auto old = find(id)) {
    lose(old, Error{ErrorCode::kPeerLost, "replaced by a new connection"});
  }
  const net::HostPort remote = stream->remote_address();
  // As it was told, and known to work; it may have listened elsewhere before.
  const auto known = by != nullptr ? by->address : known_address(theirs);
  auto peer = std::make_shared<TcpPeer>(std::move(theirs), std::move(stream), by != nullptr);
  peer->bulk_address =
      net::HostPort{remote.host, static_cast<std::uint16_t>(peer->hello.serving_port())};
  std::string shown = peer->stream->peer();
  if (known) {
    peer->bulk_address = *known;
    shown = net::to_string(*known);
  }
  peers_[id] = peer;
  reported_.erase(id.value);
  if (auto* way = way_to(peer->hello)) {
    ++way->peers;
    log::info("KV between {} and this node goes over {}", id.value,
              way == &stats_.fabric ? peer->hello.fabric() : "TCP");
  }
  message::NodeInfo info = node_info(peer->hello, shown);
  events_.push_now(PeerUp{std::move(info), peer->hello.block_tokens()});
  tasks_.spawn(read_control(peer));
  tasks_.spawn(write_control(peer));
}

void TcpTransport::Impl::lose(std::shared_ptr<TcpPeer> peer, const Error& reason) {
  const auto found = peers_.find(peer->id);
  if (found == peers_.end() || found->second != peer) {
    return;  // lost already
  }
  peers_.erase(found);
  if (auto* way = way_to(peer->hello)) {
    --way->peers;
  }
  peer->stream->close();
  peer->writes.close_and_clear();
  for (const auto& sender : peer->senders) {
    asio::post(sender->executor(), [sender] { sender->stop(); });
  }
  for (const auto& weak : peer->inbound) {
    if (const auto inbound = weak.lock()) {
      asio::post(io_->executor(inbound->loop), [inbound] { inbound->connection->close(); });
    }
  }
  events_.push_now(PeerDown{peer->id, reason});
  for (const auto& [address, dialler] : diallers_) {
    if (dialler->answered && dialler->answered->node_id() == peer->id.value) {
      dialler->peer_lost.set();
    }
  }
}

asio::awaitable<void> TcpTransport::Impl::read_control(std::shared_ptr<TcpPeer> peer) {
  while (true) {
    auto status = co_await read_control_frame(peer);
    if (!status) {
      lose(peer, status.error());
      co_return;
    }
  }
}

// An error ends the connection. A message that is whole but invalid ends its sequence only.
asio::awaitable<Status> TcpTransport::Impl::read_control_frame(std::shared_ptr<TcpPeer> peer) {
  wire::EncodedHeader raw{};
  auto header =
      co_await read_header(peer->stream.get(), &raw, net::kForever, options_.stall_deadline);
  if (!header) {
    co_return fail(std::move(header).error());
  }
  switch (header->type) {
    case wire::FrameType::kHello:
    case wire::FrameType::kHelloReply:
    case wire::FrameType::kBlocks:
    case wire::FrameType::kCommit:
      co_return fail(ErrorCode::kProtocol,
                     fmt::format("a {} does not belong on a control connection",
                                 wire::frame_type_name(header->type)));
    default:
      break;
  }
  auto payload = co_await read_payload(peer->stream.get(), *header, options_.stall_deadline);
  if (!payload) {
    co_return fail(std::move(payload).error());
  }
  auto message = wire::decode_control(*header, *payload);
  if (!message) {
    const bool one_sequence =
        message.error().code == ErrorCode::kProtocol && header->key.request != RequestId{};
    if (!one_sequence) {
      co_return fail(std::move(message).error());
    }
    log::warn("{}: from {}: {}", to_string(header->key), peer->id.value, message.error().message);
    wire::pb::Abort abort;
    abort.set_code(static_cast<std::uint32_t>(message.error().code));
    abort.set_message(message.error().message);
    message = wire::Control(abort);
    (void)send_control(peer->id, header->key, wire::Control(abort));  // its loss ends the peer too
  }
  TransportEvent event = ControlReceived{peer->id, header->key, *std::move(message)};
  co_await events_.push(peer->credit, std::move(event));
  co_return Status{};
}

// A Commit comes by a connection of its own. An Abort that its sender wrote to the other one since
// would be heard after it by a node that slept, and the sequence run for nobody.
asio::awaitable<Result<TransportEvent>> TcpTransport::Impl::next() {
  while (true) {
    auto event = co_await events_.next();
    auto* commit = event ? std::get_if<CommitReceived>(&*event) : nullptr;
    if (commit == nullptr || commit->in_order) {
      co_return event;
    }
    commit->in_order = true;
    co_await hear_control(commit->peer);
    events_.push_now(*std::move(event));
  }
}

asio::awaitable<void> TcpTransport::Impl::hear_control(NodeId from) {
  // A turn lets the loop look at its sockets and run what is due. The last bytes of a frame become
  // an event a few turns after they were read; a reader that has to wait is not waited for.
  constexpr int kQuietTurns = 8;
  constexpr int kMostTurns = 64;
  for (int turn = 0, quiet = 0; turn < kMostTurns && quiet < kQuietTurns; ++turn, ++quiet) {
    co_await asio::post(control_, asio::use_awaitable);
    const auto peer = find(from);
    if (peer && peer->stream->has_unread()) {
      quiet = 0;
    }
  }
}

asio::awaitable<void> TcpTransport::Impl::write_control(std::shared_ptr<TcpPeer> peer) {
  constexpr std::size_t kFramesPerCall = 64;
  while (true) {
    auto first = co_await peer->writes.pop();
    if (!first) {
      co_return;
    }
    std::vector<std::vector<std::byte>> frames;
    frames.push_back(*std::move(first));
    while (frames.size() < kFramesPerCall) {
      auto more = peer->writes.try_pop();
      if (!more) {
        break;
      }
      frames.push_back(*std::move(more));
    }
    std::vector<iovec> parts;
    std::size_t bytes = 0;
    for (auto& frame : frames) {
      parts.push_back(iovec{frame.data(), frame.size()});
      bytes += frame.size();
    }
    auto status = co_await peer->stream->write_all(std::move(parts), options_.stall_deadline);
    peer->queued_bytes -= bytes;
    if (!status) {
      lose(peer, status.error());
      co_return;
    }
  }
}

Status TcpTransport::Impl::send_control(const NodeId& to, const SequenceKey& key,
                                        const wire::Control& message) {
  const auto peer = find(to);
  if (!peer) {
    return fail(ErrorCode::kPeerLost, "no connection to " + to.value);
  }
  BATON_TRY(auto frame, wire::encode_control(key, message));
  const std::size_t bytes = frame.size();
  if (peer->queued_bytes + bytes > kMaxQueuedControlBytes ||
      !peer->writes.try_push(std::move(frame))) {
    const Error error{ErrorCode::kOverloaded,
                      fmt::format("{} takes no messages: its queue is full", to.value)};
    lose(peer, error);
    return fail(error);
  }
  peer->queued_bytes += bytes;
  return {};
}

// ---- bulk -------------------------------------------------------------------------------------

TransportStats::Way* TcpTransport::Impl::way_to(const wire::pb::Hello& theirs) {
  if (theirs.groups().empty() || options_.hello.groups().empty()) {
    return nullptr;  // a router has no KV
  }
  return agree_on_fabric(options_.hello, theirs) ? &stats_.fabric : &stats_.tcp;
}

// An idle connection, else one more up to the bound, else the one with the least to write.
std::shared_ptr<BulkSender> TcpTransport::Impl::pick_sender(TcpPeer* peer) {
  const auto least = std::min_element(
      peer->senders.begin(), peer->senders.end(),
      [](const auto& a, const auto& b) { return a->queued_bytes() < b->queued_bytes(); });
  if (least != peer->senders.end() &&
      ((*least)->queued_bytes() == 0 || peer->senders.size() >= options_.bulk_connections)) {
    return *least;
  }
  const std::size_t loop = io_->pick();
  auto sender = std::make_shared<BulkSender>(io_->executor(loop), peer->bulk_address, peer->hello,
                                             &options_, &stats_);
  peer->senders.push_back(sender);
  start_sender(sender, loop);
  return sender;
}

void TcpTransport::Impl::start_sender(std::shared_ptr<BulkSender> sender, std::size_t loop) {
  asio::post(io_->executor(loop),
             [group = io_tasks_[loop].get(), sender = std::move(sender)] { sender->start(group); });
}

asio::awaitable<Result<BulkSent>> TcpTransport::Impl::send_bulk(NodeId to,
                                                                std::shared_ptr<BulkJob> job) {
  const auto peer = find(to);
  if (!peer) {
    co_return fail(ErrorCode::kPeerLost, "no connection to " + to.value);
  }
  if (peer->bulk_address.port == 0) {
    co_return fail(ErrorCode::kPeerLost, to.value + " accepts no bulk connection");
  }
  if (!pick_sender(peer.get())->push(job)) {
    co_return fail(ErrorCode::kOverloaded, fmt::format("too many frames wait for {}", to.value));
  }
  co_await job->done.wait_uncancellable();  // the I/O thread reads the tiles until then
  co_return std::move(job->result);
}

// ---- end --------------------------------------------------------------------------------------

void TcpTransport::Impl::disconnect(const NodeId& id, const Error& reason) {
  if (const auto peer = find(id)) {
    lose(peer, reason);
  }
}

void TcpTransport::Impl::shutdown() {
  if (stopping_) {
    return;
  }
  stopping_ = true;
  events_.close();
  boost::system::error_code ignored;
  if (acceptor_) {
    acceptor_->close(ignored);
  }
  while (!peers_.empty()) {
    lose(peers_.begin()->second, Error{ErrorCode::kCancelled, "shutting down"});
  }
  tasks_.stop();
  for (const auto& group : io_tasks_) {
    asio::post(group->executor(), [raw = group.get()] { raw->stop(); });
  }
}

asio::awaitable<void> TcpTransport::Impl::stopped() {
  BATON_CHECK(stopping_, "shutdown() first");
  co_await tasks_.wait_empty();
  for (const auto& group : io_tasks_) {
    co_await asio::co_spawn(group->executor(), end_group(group.get()), asio::use_awaitable);
  }
}

// ---- TcpTransport -----------------------------------------------------------------------------

TcpTransport::TcpTransport(asio::any_io_executor control, net::IoPool* io,
                           TcpTransportOptions options)
    : impl_(std::make_unique<Impl>(std::move(control), io, std::move(options))) {}
TcpTransport::~TcpTransport() = default;

Status TcpTransport::start() { return impl_->start(); }

net::HostPort TcpTransport::serving_address() const {
  BATON_CHECK(impl_->acceptor_.has_value(), "start() with a serving_bind first");
  return net::local_address(*impl_->acceptor_);
}

void TcpTransport::add_peer(const net::HostPort& address) { impl_->add_peer(address); }
void TcpTransport::remove_peer(const net::HostPort& address) { impl_->remove_peer(address); }
std::optional<NodeId> TcpTransport::peer_at(const net::HostPort& address) const {
  return impl_->peer_at(address);
}
const TransportStats& TcpTransport::stats() const { return impl_->stats_; }

void TcpTransport::set_bulk_sink(BulkSink* sink) { impl_->sink_ = sink; }

asio::awaitable<Result<TransportEvent>> TcpTransport::next() { co_return co_await impl_->next(); }

Status TcpTransport::send_control(const NodeId& to, const SequenceKey& key, wire::Control message) {
  return impl_->send_control(to, key, message);
}

asio::awaitable<Result<BulkSent>> TcpTransport::send_blocks(
    NodeId to, SequenceKey key, wire::BlocksHeader blocks, std::uint64_t sequence,
    std::vector<std::span<const std::byte>> tiles) {
  if (BATON_FAILPOINT("handoff.frame")) {  // kill: the sender dies in mid transfer
    co_return fail(ErrorCode::kPeerLost, "failpoint handoff.frame");
  }
  auto job = std::make_shared<BulkJob>(impl_->control_);
  job->key = key;
  job->blocks = blocks;
  job->sequence = sequence;
  job->bytes = wire::kHeaderBytes + wire::kBlocksHeaderBytes;
  for (const auto& tile : tiles) {
    job->bytes += tile.size();
  }
  job->tiles = std::move(tiles);
  if (job->bytes > wire::kHeaderBytes + wire::kMaxBlocksBytes) {
    co_return fail(ErrorCode::kPayloadTooLarge,
                   fmt::format("a blocks frame of {} bytes exceeds the protocol's {}", job->bytes,
                               wire::kMaxBlocksBytes));
  }
  co_return co_await impl_->send_bulk(std::move(to), std::move(job));
}

asio::awaitable<Status> TcpTransport::send_commit(NodeId to, SequenceKey key,
                                                  wire::pb::Commit commit) {
  if (BATON_FAILPOINT("handoff.commit")) {  // kill: all is sent but the Commit
    co_return fail(ErrorCode::kPeerLost, "failpoint handoff.commit");
  }
  auto frame = wire::encode_commit(key, commit);
  if (!frame) {
    co_return fail(std::move(frame).error());
  }
  auto job = std::make_shared<BulkJob>(impl_->control_);
  job->key = key;
  job->bytes = frame->size();
  job->commit = *std::move(frame);
  auto sent = co_await impl_->send_bulk(std::move(to), std::move(job));
  co_return sent ? Status{} : fail(std::move(sent).error());
}

void TcpTransport::disconnect(const NodeId& peer, Error reason) { impl_->disconnect(peer, reason); }

void TcpTransport::shutdown() { impl_->shutdown(); }

asio::awaitable<void> TcpTransport::stopped() { co_await impl_->stopped(); }

}  // namespace baton::handoff
