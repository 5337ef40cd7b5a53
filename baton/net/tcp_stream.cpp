// TcpStream: direct recvmsg and sendmsg on the socket, waiting by Asio only when they would block.
// What differs over TLS is in tcp_stream_tls.cpp; here it costs a branch per call.
#include "baton/base/failpoints.h"
#include "baton/net/tcp_stream_state.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstring>

namespace baton::net {

TcpStream::TcpStream(tcp::socket socket) : state_(std::make_shared<State>(std::move(socket))) {
  boost::system::error_code error;
  const tcp::endpoint remote = state_->socket.remote_endpoint(error);
  peer_ = error ? "a peer that is gone" : describe(remote);
}

TcpStream::~TcpStream() {
  if (state_) {
    state_->close();
  }
}

Error TcpStream::error_now(int code) const {
  if (state_->timed_out) {
    return Error{ErrorCode::kDeadlineExceeded, fmt::format("{} made no progress in time", peer_)};
  }
  if (code == 0) {
    return Error{ErrorCode::kPeerLost, fmt::format("{} closed the connection", peer_)};
  }
  return Error{
      ErrorCode::kPeerLost,
      fmt::format("connection to {} lost: {}", peer_,
                  boost::system::error_code(code, boost::system::system_category()).message())};
}

asio::awaitable<Status> TcpStream::wait(Side side, tcp::socket::wait_type what, Duration stall) {
  auto state = state_;
  const bool reading = side == Side::kReader;
  asio::steady_timer& timer = reading ? state->read_timer : state->write_timer;
  std::uint64_t& current = reading ? state->read_wait : state->write_wait;
  struct Ending {
    ~Ending() {
      ++*current;
      if (timer != nullptr) {
        timer->cancel();
      }
    }
    std::uint64_t* current;
    asio::steady_timer* timer;
  };
  const Ending ending{&current, stall == kForever ? nullptr : &timer};
  if (stall != kForever) {
    timer.expires_after(stall);
    timer.async_wait([weak = std::weak_ptr<State>(state), reading,
                      number = current](const boost::system::error_code& error) {
      const auto alive = weak.lock();
      if (error || !alive || number != (reading ? alive->read_wait : alive->write_wait)) {
        return;
      }
      alive->timed_out = true;
      alive->close();
    });
  }
  auto [error] = co_await state->socket.async_wait(what, kTuple);
  if (state->timed_out || !state->socket.is_open()) {
    co_return fail(error_now(ECONNABORTED));
  }
  if (error == asio::error::operation_aborted) {
    co_return fail(ErrorCode::kCancelled, "cancelled");
  }
  if (error) {
    co_return fail(error_now(error.value()));
  }
  co_return Status{};
}

asio::awaitable<Result<std::size_t>> TcpStream::read_some(std::vector<iovec> into, Duration stall) {
  auto state = state_;
  if (state->tls) {
    co_return co_await read_tls(std::move(into), stall);
  }
  if (state->read_since_yield >= kYieldBytes) {
    state->read_since_yield = 0;
    co_await asio::post(state->socket.get_executor(), asio::use_awaitable);
  }
  msghdr message{};
  message.msg_iov = into.data();
  message.msg_iovlen = std::min<std::size_t>(into.size(), IOV_MAX);
  while (true) {
    if (!state->socket.is_open()) {
      co_return fail(error_now(ECONNABORTED));
    }
    const ssize_t got = ::recvmsg(state->socket.native_handle(), &message, MSG_DONTWAIT);
    if (got > 0) {
      state->read_since_yield += static_cast<std::size_t>(got);
      co_return static_cast<std::size_t>(got);
    }
    if (got == 0) {
      co_return fail(error_now(0));
    }
    if (errno == EINTR) {
      continue;
    }
    if (errno != EAGAIN && errno != EWOULDBLOCK) {
      co_return fail(error_now(errno));
    }
    state->read_since_yield = 0;
    auto ready = co_await wait(Side::kReader, tcp::socket::wait_read, stall);
    if (!ready) {
      co_return fail(std::move(ready).error());
    }
  }
}

asio::awaitable<Result<std::size_t>> TcpStream::read_some(std::span<std::byte> into,
                                                          Duration stall) {
  std::vector<iovec> parts(1, iovec{into.data(), into.size()});
  co_return co_await read_some(std::move(parts), stall);
}

asio::awaitable<Status> TcpStream::read_exact(std::span<std::byte> into, Duration stall) {
  while (!into.empty()) {
    auto got = co_await read_some(into, stall);
    if (!got) {
      co_return fail(std::move(got).error());
    }
    into = into.subspan(*got);
  }
  co_return Status{};
}

asio::awaitable<Status> TcpStream::write_all(std::vector<iovec> parts, Duration stall) {
  auto state = state_;
  if (state->tls) {
    co_return co_await write_tls(std::move(parts), stall);
  }
  std::size_t first = 0;
  while (true) {
    while (first < parts.size() && parts[first].iov_len == 0) {
      ++first;
    }
    if (first == parts.size()) {
      co_return Status{};
    }
    if (!state->socket.is_open()) {
      co_return fail(error_now(ECONNABORTED));
    }
    msghdr message{};
    message.msg_iov = parts.data() + first;
    message.msg_iovlen = std::min<std::size_t>(parts.size() - first, IOV_MAX);
    if (BATON_FAILPOINT("net.write")) {
      co_return fail(error_now(ECONNRESET));
    }
    // The kernel may take any part of it: here half of the first piece.
    iovec half{parts[first].iov_base, (parts[first].iov_len + 1) / 2};
    if (BATON_FAILPOINT("net.short_write")) {
      message.msg_iov = &half;
      message.msg_iovlen = 1;
    }
    const ssize_t put =
        ::sendmsg(state->socket.native_handle(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (put < 0) {
      if (errno == EINTR) {
        continue;
      }
      if (errno != EAGAIN && errno != EWOULDBLOCK) {
        co_return fail(error_now(errno));
      }
      state->written_since_yield = 0;
      auto ready = co_await wait(Side::kWriter, tcp::socket::wait_write, stall);
      if (!ready) {
        co_return fail(std::move(ready).error());
      }
      continue;
    }
    auto left = static_cast<std::size_t>(put);
    state->written_since_yield += left;
    while (left > 0) {
      const std::size_t step = std::min(left, parts[first].iov_len);
      parts[first].iov_base = static_cast<std::byte*>(parts[first].iov_base) + step;
      parts[first].iov_len -= step;
      left -= step;
      first += parts[first].iov_len == 0 ? 1 : 0;
    }
    if (state->written_since_yield >= kYieldBytes) {
      state->written_since_yield = 0;
      co_await asio::post(state->socket.get_executor(), asio::use_awaitable);
    }
  }
}

bool TcpStream::looks_alive() {
  if (!state_->socket.is_open()) {
    return false;
  }
  if (state_->tls) {
    return state_->tls->looks_alive();
  }
  std::byte byte{};
  const ssize_t got = ::recv(state_->socket.native_handle(), &byte, 1, MSG_DONTWAIT | MSG_PEEK);
  return got > 0 || (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR));
}

bool TcpStream::has_unread() const {
  boost::system::error_code error;
  return state_->socket.is_open() && state_->socket.available(error) > 0 && !error;
}

void TcpStream::shutdown_send() {
  if (state_->tls && state_->socket.is_open()) {
    state_->tls->say_goodbye();
    (void)state_->tls->flush();  // a socket that is full gets the FIN alone
  }
  boost::system::error_code ignored;
  state_->socket.shutdown(tcp::socket::shutdown_send, ignored);
}

void TcpStream::close() { state_->close(); }

bool TcpStream::is_open() const { return state_->socket.is_open(); }

asio::any_io_executor TcpStream::executor() const { return state_->socket.get_executor(); }

HostPort TcpStream::remote_address() const {
  boost::system::error_code error;
  const tcp::endpoint remote = state_->socket.remote_endpoint(error);
  return error ? HostPort{} : HostPort{remote.address().to_string(), remote.port()};
}

asio::awaitable<void> TcpStream::linger(Duration stall) {
  auto state = state_;
  shutdown_send();
  std::array<std::byte, 4096> unread{};
  while (state->socket.is_open()) {
    const ssize_t got =
        ::recv(state->socket.native_handle(), unread.data(), unread.size(), MSG_DONTWAIT);
    const bool would_block = got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
    if (got == 0 || (got < 0 && !would_block && errno != EINTR)) {
      co_return;
    }
    if (would_block) {
      auto ready = co_await wait(Side::kReader, tcp::socket::wait_read, stall);
      if (!ready) {
        co_return;
      }
    }
  }
}

std::unique_ptr<TcpStream> TcpStream::release_to(const asio::any_io_executor& executor) {
  boost::system::error_code error;
  const tcp::endpoint local = state_->socket.local_endpoint(error);
  tcp::socket moved(executor);
  if (!error) {
    const int handle = state_->socket.release(error);
    if (!error) {
      moved.assign(local.protocol(), handle, error);
    }
  }
  auto stream = std::make_unique<TcpStream>(std::move(moved));  // not open when the system refused
  stream->peer_ = peer_;
  stream->state_->tls = std::move(state_->tls);
  if (stream->state_->tls) {
    stream->state_->tls->attach(&stream->state_->socket);
  }
  return stream;
}

}  // namespace baton::net
