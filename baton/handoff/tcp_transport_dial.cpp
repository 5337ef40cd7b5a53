// Listening, dialling and handshakes. The three messages: the dialler's Hello, the acceptor's
// HelloReply, the dialler's HelloReply; the connection counts on each side once that side has
// accepted and been accepted. When two nodes dial each other at once, the dial of the lower node id
// stays.
#include "baton/base/log.h"
#include "baton/handoff/tcp_transport_impl.h"

#include <fmt/format.h>

#include <algorithm>

namespace baton::handoff {

namespace {

// Counts a handshake under way for as long as its coroutine lives.
class Counted {
 public:
  explicit Counted(int* count) : count_(count) { ++*count_; }
  ~Counted() { --*count_; }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;

 private:
  int* count_;
};

class Pending {
 public:
  Pending(std::multiset<NodeId>* ids, const NodeId& id) : ids_(ids), place_(ids->insert(id)) {}
  ~Pending() { ids_->erase(place_); }
  Pending(const Pending&) = delete;
  Pending& operator=(const Pending&) = delete;

 private:
  std::multiset<NodeId>* ids_;
  std::multiset<NodeId>::iterator place_;
};

// A refused peer gets our reason only if we do not reset the connection under it: wait for its
// close.
asio::awaitable<void> linger(net::TcpStream* stream, Duration at_most) {
  stream->shutdown_send();
  std::array<std::byte, 64> unread{};
  const std::span<std::byte> into(unread);
  while (true) {
    auto got = co_await stream->read_some(into, at_most);
    if (!got) {
      co_return;
    }
  }
}

}  // namespace

Status TcpTransport::Impl::start() {
  started_ = true;
  if (options_.serving_bind) {
    auto listening = net::listen(control_, *options_.serving_bind);
    if (!listening) {
      started_ = false;
      return fail(std::move(listening).error());
    }
    boost::system::error_code error;
    const tcp::endpoint local = listening->local_endpoint(error);
    if (!options_.allow_insecure_bind && !net::is_loopback(local.address())) {
      started_ = false;
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("refusing to serve nodes on {}: node connections are neither "
                              "authenticated nor encrypted yet; bind a loopback address",
                              net::describe(local)),
                  "serving-bind");
    }
    options_.hello.set_serving_port(local.port());
    acceptor_.emplace(*std::move(listening));
    tasks_.spawn(accept_loop());
  }
  for (const net::HostPort& address : options_.peers) {
    diallers_.push_back(std::make_unique<Dialler>(address, control_));
    tasks_.spawn(dial_loop(diallers_.back().get()));
  }
  return {};
}

bool TcpTransport::Impl::has_lower_id_than(const wire::pb::Hello& theirs) const {
  return options_.hello.node_id() < theirs.node_id();
}

void TcpTransport::Impl::report_unusable(const std::string& address, const std::string& about,
                                         const Error& error) {
  if (reported_.size() >= kMaxRemembered) {
    reported_.clear();
  }
  std::string& last = reported_[about];
  if (last == error.message) {
    return;
  }
  last = error.message;
  log::warn("{}: {}", address, error.message);
  events_.push_now(PeerUnusable{address, error});
}

// ---- accepting --------------------------------------------------------------------------------

asio::awaitable<void> TcpTransport::Impl::accept_loop() {
  net::SystemAsyncClock clock;
  while (true) {
    auto [error, socket] = co_await acceptor_->async_accept(kTuple);
    if (stopping_) {
      co_return;
    }
    if (error) {  // out of descriptors, or the peer left again: never the end of the node
      log::warn("accepting a node connection failed: {}", error.message());
      co_await clock.sleep_for(std::chrono::milliseconds(100));
      continue;
    }
    if (pending_handshakes_ >= kMaxPendingHandshakes) {
      continue;  // closes it
    }
    net::SocketOptions socket_options;
    socket_options.buffer_bytes = options_.bulk_socket_buffer_bytes;
    net::apply_options(socket, socket_options);
    auto stream = std::make_unique<net::TcpStream>(std::move(socket));
    tasks_.spawn(greet_inbound(std::move(stream)));
  }
}

asio::awaitable<void> TcpTransport::Impl::greet_inbound(std::unique_ptr<net::TcpStream> stream) {
  const Counted counted(&pending_handshakes_);
  net::SystemAsyncClock clock;
  std::string what = "handshake with " + stream->peer();
  auto answering = answer_hello(stream.get());
  auto theirs = co_await net::with_deadline(clock, options_.handshake_deadline, std::move(what),
                                            std::move(answering));
  if (!theirs) {
    const bool silent =
        theirs.error().code == ErrorCode::kPeerLost || theirs.error().code == ErrorCode::kCancelled;
    if (!silent) {
      log::warn("node connection from {} refused: {}", stream->peer(), theirs.error().message);
    }
    co_return;
  }
  if (theirs->bulk()) {
    admit_bulk(*theirs, std::move(stream));
  } else {
    admit_inbound(*std::move(theirs), std::move(stream));
  }
}

asio::awaitable<Result<wire::pb::Hello>> TcpTransport::Impl::answer_hello(net::TcpStream* stream) {
  const Duration stall = options_.handshake_deadline;
  auto theirs = co_await read_hello(stream, stall);
  if (!theirs) {
    co_return fail(std::move(theirs).error());
  }
  auto mismatch = judge_inbound(*theirs);
  wire::pb::HelloReply reply = mismatch ? refusing(*mismatch) : accepting();
  *reply.mutable_hello() = options_.hello;
  const std::string name = theirs->node_id();
  if (mismatch) {
    if (mismatch->field != kConnectionField) {
      report_unusable(stream->peer(), name, mismatch_error(*mismatch, name));
    }
    auto told = co_await write_hello_reply(stream, std::move(reply), stall);
    if (told) {
      co_await linger(stream, stall);
    }
    co_return fail(ErrorCode::kCancelled, "refused");  // said above
  }
  const Pending pending(&pending_inbound_, NodeId{name});
  auto told = co_await write_hello_reply(stream, std::move(reply), stall);
  if (!told) {
    co_return fail(std::move(told).error());
  }
  auto confirmed = co_await read_hello_reply(stream, stall);
  if (!confirmed) {
    co_return fail(std::move(confirmed).error());
  }
  if (!confirmed->accepted()) {
    const Mismatch theirs_of = mismatch_of(*confirmed);
    if (theirs_of.field != kConnectionField) {
      report_unusable(stream->peer(), name, mismatch_error(theirs_of, name));
    }
    co_return fail(ErrorCode::kCancelled, "refused");
  }
  co_return std::move(theirs);
}

std::optional<Mismatch> TcpTransport::Impl::judge_inbound(const wire::pb::Hello& theirs) {
  if (auto mismatch = find_mismatch(options_.hello, theirs)) {
    return mismatch;
  }
  const auto old = find(NodeId{theirs.node_id()});
  if (theirs.bulk()) {
    if (!old || !same_boot(old->hello, theirs)) {
      return Mismatch{kConnectionField, "no control connection of that node", "bulk"};
    }
    std::erase_if(old->inbound, [](const auto& weak) { return weak.expired(); });
    if (old->inbound.size() >= kMaxBulkPerPeer) {
      return Mismatch{kConnectionField, fmt::format("at most {} bulk", kMaxBulkPerPeer),
                      "one more"};
    }
    return std::nullopt;
  }
  if (!old) {
    if (peers_.size() >= kMaxPeers) {
      return Mismatch{"peers", fmt::format("at most {}", kMaxPeers), "one more"};
    }
    return std::nullopt;
  }
  if (!same_boot(old->hello, theirs)) {
    // Two processes under one name, or a restart that we have not noticed: the old one must be seen
    // dead (reset, missing Beats) before the name is free.
    return Mismatch{"node_id",
                    fmt::format("{} is connected from {} (boot {})", theirs.node_id(),
                                old->stream->peer(), boot_text(old->hello)),
                    fmt::format("{} (boot {})", theirs.node_id(), boot_text(theirs))};
  }
  if (old->dialled && has_lower_id_than(theirs)) {
    return Mismatch{kConnectionField, "connected already", "a second connection"};
  }
  return std::nullopt;
}

// The world may have changed while the handshake ran.
void TcpTransport::Impl::admit_inbound(wire::pb::Hello theirs,
                                       std::unique_ptr<net::TcpStream> stream) {
  const auto old = find(NodeId{theirs.node_id()});
  const bool keep_old =
      old && (!same_boot(old->hello, theirs) || (old->dialled && has_lower_id_than(theirs)));
  if (!keep_old) {
    admit(std::move(theirs), std::move(stream), false);
  }
}

void TcpTransport::Impl::admit_bulk(const wire::pb::Hello& theirs,
                                    std::unique_ptr<net::TcpStream> stream) {
  const auto peer = find(NodeId{theirs.node_id()});
  if (!peer || !same_boot(peer->hello, theirs) || stopping_) {
    return;
  }
  const std::size_t loop = io_->pick();
  tcp::socket socket = stream->release_to(io_->executor(loop));
  if (!socket.is_open()) {
    return;
  }
  auto inbound = std::make_shared<BulkInbound>(peer->id, std::move(socket), loop);
  peer->inbound.push_back(inbound);
  asio::post(io_->executor(loop), [this, inbound] {
    io_tasks_[inbound->loop]->spawn(serve_bulk(inbound, sink_, &events_, options_.stall_deadline));
  });
}

// ---- dialling ---------------------------------------------------------------------------------

asio::awaitable<void> TcpTransport::Impl::dial_loop(Dialler* dialler) {
  net::SystemAsyncClock clock;
  Duration backoff = options_.redial_first;
  while (!stopping_) {
    if (dialler->answered && find(*dialler->answered)) {
      backoff = options_.redial_first;
      co_await dialler->peer_lost.wait();
      continue;
    }
    auto status = co_await dial_once(dialler);
    if (status && find(*dialler->answered)) {
      continue;
    }
    if (!status && status.error().param != kConnectionField) {
      report_unusable(net::to_string(dialler->address), net::to_string(dialler->address),
                      status.error());
    }
    const double share = 0.5 + 0.5 * std::uniform_real_distribution<double>()(random_);
    const auto pause =
        std::chrono::duration<double, std::nano>(share * static_cast<double>(backoff.count()));
    co_await clock.sleep_for(std::chrono::duration_cast<Duration>(pause));
    backoff = std::min(backoff * 2, options_.redial_most);
  }
}

asio::awaitable<Status> TcpTransport::Impl::dial_once(Dialler* dialler) {
  net::SocketOptions socket_options;
  auto socket = co_await net::connect(dialler->address, options_.connect_deadline, socket_options);
  if (!socket) {
    co_return fail(std::move(socket).error());
  }
  auto stream = std::make_unique<net::TcpStream>(*std::move(socket));
  net::SystemAsyncClock clock;
  std::string what = "handshake with " + net::to_string(dialler->address);
  auto shaking = shake_hands(stream.get(), dialler);
  auto reply = co_await net::with_deadline(clock, options_.handshake_deadline, std::move(what),
                                           std::move(shaking));
  if (!reply) {
    co_return fail(std::move(reply).error());
  }
  // While our confirmation was written, theirs of the other direction may have come.
  const NodeId id{reply->hello().node_id()};
  if (!find(id) || has_lower_id_than(reply->hello())) {
    admit(reply->hello(), std::move(stream), true);
  }
  reported_.erase(net::to_string(dialler->address));
  co_return Status{};
}

asio::awaitable<Result<wire::pb::HelloReply>> TcpTransport::Impl::shake_hands(
    net::TcpStream* stream, Dialler* dialler) {
  const Duration stall = options_.handshake_deadline;
  wire::pb::Hello ours = options_.hello;
  auto reply = co_await offer_hello(stream, std::move(ours), stall);
  if (!reply) {
    co_return fail(std::move(reply).error());
  }
  const std::string name =
      fmt::format("{} at {}", reply->hello().node_id(), net::to_string(dialler->address));
  dialler->answered = NodeId{reply->hello().node_id()};
  if (!reply->accepted()) {
    co_return fail(mismatch_error(mismatch_of(*reply), name));
  }
  const auto mismatch = judge_answer(reply->hello());
  wire::pb::HelloReply confirmation = mismatch ? refusing(*mismatch) : accepting();
  auto told = co_await write_hello_reply(stream, std::move(confirmation), stall);
  if (mismatch) {
    co_return fail(mismatch_error(*mismatch, name));
  }
  if (!told) {
    co_return fail(std::move(told).error());
  }
  co_return std::move(reply);
}

std::optional<Mismatch> TcpTransport::Impl::judge_answer(const wire::pb::Hello& theirs) {
  if (auto mismatch = find_mismatch(options_.hello, theirs)) {
    return mismatch;
  }
  const NodeId id{theirs.node_id()};
  if (const auto old = find(id)) {
    if (!same_boot(old->hello, theirs)) {
      return Mismatch{"node_id",
                      fmt::format("{} is connected at {} (boot {})", id.value, old->stream->peer(),
                                  boot_text(old->hello)),
                      fmt::format("{} (boot {})", id.value, boot_text(theirs))};
    }
    return Mismatch{kConnectionField, "connected already", "a second connection"};
  }
  if (pending_inbound_.contains(id) && !has_lower_id_than(theirs)) {
    return Mismatch{kConnectionField, "the lower id's dial is under way", "a second connection"};
  }
  return std::nullopt;
}

}  // namespace baton::handoff
