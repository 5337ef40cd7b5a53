// Listening, and the acceptor's side of a handshake. TLS first if there is any, then three
// messages: the dialler's Hello, the acceptor's HelloReply, the dialler's HelloReply; the
// connection counts on each side once that side has accepted and been accepted. Whoever dials may
// be anybody: what a stranger can hold, log or change is bounded here.
#include "baton/base/log.h"
#include "baton/handoff/tcp_transport_impl.h"

#include <fmt/format.h>

#include <algorithm>

namespace baton::handoff {

namespace {

// Counts a handshake under way for as long as its coroutine lives.
class Counted {
 public:
  Counted(int* all, std::map<std::string, int>* by_host, const std::string& host)
      : all_(all), by_host_(by_host), place_(by_host->try_emplace(host).first) {
    ++*all_;
    ++place_->second;
  }
  ~Counted() {
    --*all_;
    if (--place_->second == 0) {
      by_host_->erase(place_);
    }
  }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;

 private:
  int* all_;
  std::map<std::string, int>* by_host_;
  std::map<std::string, int>::iterator place_;
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

std::string host_of(const net::TcpStream& stream) {  // "127.0.0.1", "[::1]", "a peer that is gone"
  return stream.peer().substr(0, stream.peer().rfind(':'));
}

}  // namespace

Status check_guarded(const net::HostPort& local, bool guarded) {
  boost::system::error_code error;
  const auto address = asio::ip::make_address(local.host, error);
  if (guarded || (!error && net::is_loopback(address))) {
    return {};
  }
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("refusing to serve nodes on {}: nothing keeps strangers out. Give every "
                          "node --node-tls-cert, --node-tls-key and --node-tls-ca (mutual TLS: "
                          "authenticates and encrypts), or --cluster-token-file (authenticates, "
                          "does not encrypt), or bind a loopback address",
                          net::to_string(local)),
              "serving-bind");
}

Status TcpTransport::Impl::start() {
  if (options_.fabric && options_.tls) {
    return fail(
        ErrorCode::kInvalidArgument,
        options_.fabric->name() + " does not encrypt: with TLS between nodes KV goes over TCP",
        "kv-transport");
  }
  started_ = true;
  if (options_.serving_bind) {
    auto listening = net::listen(control_, *options_.serving_bind);
    if (!listening) {
      started_ = false;
      return fail(std::move(listening).error());
    }
    const net::HostPort local = net::local_address(*listening);
    if (auto guarded = check_guarded(local, options_.tls || options_.token); !guarded) {
      started_ = false;
      return guarded;
    }
    options_.hello.set_serving_port(local.port);
    acceptor_.emplace(*std::move(listening));
    tasks_.spawn(accept_loop());
  }
  for (const net::HostPort& address : options_.peers) {
    add_peer(address);
  }
  return {};
}

// Of a connection from somebody who may be anybody: a line, and no event.
void TcpTransport::Impl::log_refusal(const net::TcpStream& stream, const Error& error) {
  const std::string host = host_of(stream);
  std::string message = error.message;
  if (const std::size_t at = message.find(stream.peer()); at != std::string::npos) {
    message.replace(at, stream.peer().size(), host);  // its port differs with each try
  }
  const TimePoint now = net::SystemAsyncClock().now();
  if (refused_.size() >= kMaxRemembered) {
    refused_.clear();
  }
  const auto [line, is_new] = refused_.try_emplace({host, message}, now);
  if (!is_new && now - line->second < kRefusalRepeat) {
    return;
  }
  line->second = now;
  if (now - refusals_since_ >= kRefusalWindow) {
    if (refusals_unsaid_ > 0) {
      log::warn("{} more node connections were refused", refusals_unsaid_);
    }
    refusals_since_ = now;
    refusal_lines_ = 0;
    refusals_unsaid_ = 0;
  }
  if (++refusal_lines_ > kMaxRefusalLines) {
    ++refusals_unsaid_;
    return;
  }
  log::warn("node connection from {} refused: {}", host, message);
}

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
    const auto from = pending_from_.find(host_of(*stream));
    if (from != pending_from_.end() && from->second >= kMaxPendingPerHost) {
      continue;
    }
    tasks_.spawn(greet_inbound(std::move(stream)));
  }
}

asio::awaitable<void> TcpTransport::Impl::greet_inbound(std::unique_ptr<net::TcpStream> stream) {
  const Counted counted(&pending_handshakes_, &pending_from_, host_of(*stream));
  net::SystemAsyncClock clock;
  std::string what = "handshake with " + stream->peer();
  auto answering = answer_hello(stream.get());
  auto theirs = co_await net::with_deadline(clock, options_.handshake_deadline, std::move(what),
                                            std::move(answering));
  if (!theirs) {
    const bool silent =
        theirs.error().code == ErrorCode::kPeerLost || theirs.error().code == ErrorCode::kCancelled;
    if (!silent) {
      log_refusal(*stream, advised(std::move(theirs).error()));
    }
    co_return;
  }
  if (theirs->bulk()) {
    admit_bulk(*theirs, std::move(stream));
  } else {
    admit_inbound(*std::move(theirs), std::move(stream));
  }
}

// With a token, nothing that the dialler says of itself has an effect before its proof has come.
asio::awaitable<Result<wire::pb::Hello>> TcpTransport::Impl::answer_hello(net::TcpStream* stream) {
  const Duration stall = options_.handshake_deadline;
  auto secured = co_await secure(stream, options_.tls, End::kAcceptor, stall);
  if (!secured) {
    co_return fail(std::move(secured).error());
  }
  auto theirs = co_await read_hello(stream, stall);
  if (!theirs) {
    co_return fail(std::move(theirs).error());
  }
  const ClusterToken* token = options_.token.get();
  if (const auto mismatch = find_token_mismatch(token, *theirs)) {
    Mismatch why = *mismatch;
    co_return co_await refuse_stranger(stream, std::move(why));
  }
  const std::string name = theirs->node_id();
  auto mismatch = judge_inbound(*theirs);
  wire::pb::Hello ours = options_.hello;
  wire::pb::HelloReply reply = mismatch ? refusing(*mismatch) : accepting();
  if (token != nullptr) {
    ours.set_nonce(make_nonce());
    reply.set_proof(make_proof(*token, End::kAcceptor, *theirs, ours));
  }
  *reply.mutable_hello() = ours;
  std::optional<Pending> pending;
  if (token == nullptr && !mismatch) {
    pending.emplace(&pending_inbound_, NodeId{name});
  }
  auto told = co_await write_hello_reply(stream, std::move(reply), stall);
  if (mismatch) {
    if (told) {
      co_await stream->linger(stall);
    }
  } else if (!told) {
    co_return fail(std::move(told).error());
  } else {
    auto confirmed = co_await read_hello_reply(stream, stall);
    if (!confirmed) {
      co_return fail(std::move(confirmed).error());
    }
    if (!confirmed->accepted()) {
      mismatch = mismatch_of(*confirmed);
    } else if (token != nullptr &&
               !is_proof(*token, End::kDialler, *theirs, ours, confirmed->proof())) {
      Mismatch why = unlike_tokens();
      co_return co_await refuse_stranger(stream, std::move(why));
    }
  }
  if (!mismatch) {
    co_return std::move(theirs);
  }
  if (mismatch->field == kConnectionField) {
    co_return fail(ErrorCode::kCancelled, "refused");  // no reason to report
  }
  const Error error = mismatch_error(*mismatch, name);
  if (token != nullptr) {
    co_return fail(error);
  }
  report_unusable(stream->peer(), name, error);
  co_return fail(ErrorCode::kCancelled, "refused");  // said above
}

// Says why and nothing else: who we are is for those who have the token.
asio::awaitable<Result<wire::pb::Hello>> TcpTransport::Impl::refuse_stranger(net::TcpStream* stream,
                                                                             Mismatch mismatch) {
  wire::pb::HelloReply reply = refusing(mismatch);
  auto told = co_await write_hello_reply(stream, std::move(reply), options_.handshake_deadline);
  if (told) {
    co_await stream->linger(options_.handshake_deadline);
  }
  co_return fail(mismatch_error(mismatch, stream->peer()));
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
    admit(std::move(theirs), std::move(stream), nullptr);
  }
}

void TcpTransport::Impl::admit_bulk(const wire::pb::Hello& theirs,
                                    std::unique_ptr<net::TcpStream> stream) {
  const auto peer = find(NodeId{theirs.node_id()});
  if (!peer || !same_boot(peer->hello, theirs) || stopping_) {
    return;
  }
  const std::size_t loop = io_->pick();
  auto moved = stream->release_to(io_->executor(loop));
  if (!moved->is_open()) {
    return;
  }
  auto inbound = std::make_shared<BulkInbound>(peer->id, std::move(moved), loop);
  peer->inbound.push_back(inbound);
  BulkServing serving{sink_,
                      &events_,
                      &stats_,
                      nullptr,
                      io_tasks_[loop].get(),
                      options_.handshake_deadline,
                      options_.stall_deadline};
  if (agree_on_fabric(options_.hello, theirs)) {
    serving.fabric = options_.fabric.get();
  }
  asio::post(io_->executor(loop),
             [inbound, serving] { serving.group->spawn(serve_bulk(inbound, serving)); });
}

}  // namespace baton::handoff
