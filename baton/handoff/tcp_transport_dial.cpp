// Dialling, and the dialler's side of a handshake (tcp_transport_accept.cpp has the other). When
// two nodes dial each other at once, the dial of the lower node id stays.
#include "baton/base/log.h"
#include "baton/handoff/tcp_transport_impl.h"

#include <fmt/format.h>

#include <algorithm>

namespace baton::handoff {

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

void TcpTransport::Impl::add_peer(const net::HostPort& address) {
  const auto [place, is_new] = diallers_.try_emplace(address);
  if (is_new) {
    place->second = std::make_shared<Dialler>(address, control_);
    place->second->task = tasks_.spawn(dial_loop(place->second));
  }
}

void TcpTransport::Impl::remove_peer(const net::HostPort& address) {
  const auto found = diallers_.find(address);
  if (found == diallers_.end()) {
    return;
  }
  const std::shared_ptr<Dialler> dialler = found->second;
  diallers_.erase(found);
  dialler->removed = true;
  tasks_.cancel(dialler->task);
  const std::string name = net::to_string(address);
  reported_.erase(name);
  const auto peer = reached(*dialler);
  const bool has_other_address =
      std::any_of(diallers_.begin(), diallers_.end(),
                  [&](const auto& other) { return reached(*other.second) == peer; });
  if (peer && !has_other_address) {
    disconnect(peer->id, Error{ErrorCode::kPeerLost, name + " has left the cluster"});
  }
  events_.push_now(PeerForgotten{name});
}

std::optional<NodeId> TcpTransport::Impl::peer_at(const net::HostPort& address) const {
  const auto found = diallers_.find(address);
  const auto peer = found == diallers_.end() ? nullptr : reached(*found->second);
  return peer ? std::optional(peer->id) : std::nullopt;
}

asio::awaitable<void> TcpTransport::Impl::dial_loop(std::shared_ptr<Dialler> dialler) {
  net::SystemAsyncClock clock;
  Duration backoff = options_.redial_first;
  while (!stopping_ && !dialler->removed) {
    if (reached(*dialler)) {
      backoff = options_.redial_first;
      co_await dialler->peer_lost.wait();
      continue;
    }
    auto status = co_await dial_once(dialler.get());
    if (dialler->removed) {
      co_return;
    }
    if (status && reached(*dialler)) {
      continue;
    }
    if (!status && status.error().param != kConnectionField) {
      dialler->answered.reset();  // whoever it was: nobody of use is there now
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
  if (dialler->removed) {
    co_return fail(ErrorCode::kCancelled, "not wanted any more");
  }
  if (!find(id) || has_lower_id_than(reply->hello())) {
    admit(reply->hello(), std::move(stream), dialler);
  }
  reported_.erase(net::to_string(dialler->address));
  co_return Status{};
}

asio::awaitable<Result<wire::pb::HelloReply>> TcpTransport::Impl::shake_hands(
    net::TcpStream* stream, Dialler* dialler) {
  const Duration stall = options_.handshake_deadline;
  auto secured = co_await secure(stream, options_.tls, End::kDialler, stall);
  if (!secured) {
    co_return fail(advised(std::move(secured).error()));
  }
  wire::pb::Hello ours = options_.hello;
  auto answered = co_await offer_hello(stream, std::move(ours), options_.token.get(), stall);
  if (!answered) {
    co_return fail(advised(std::move(answered).error()));
  }
  wire::pb::HelloReply& reply = answered->reply;
  const std::string name =
      fmt::format("{} at {}", reply.hello().node_id(), net::to_string(dialler->address));
  if (!reply.accepted()) {
    const Mismatch refused = mismatch_of(reply);
    if (refused.field == kConnectionField) {  // we are connected already, or soon
      dialler->answered = reply.hello();
    }
    co_return fail(mismatch_error(refused, name));
  }
  const auto mismatch = judge_answer(reply.hello());
  if (!mismatch || mismatch->field == kConnectionField) {
    dialler->answered = reply.hello();
  }
  wire::pb::HelloReply confirmation =
      mismatch ? refusing(*mismatch) : accepting(std::move(answered->proof));
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
