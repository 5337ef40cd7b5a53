// What TcpStream shares with its operations under way; private to tcp_stream*.cpp.
#pragma once

#include "baton/net/tcp.h"
#include "baton/net/tls_session.h"

#include <cstddef>
#include <cstdint>
#include <memory>

namespace baton::net {

// After so many bytes without a wait the coroutine lets others of its loop run.
inline constexpr std::size_t kYieldBytes = std::size_t{4} << 20;

struct TcpStream::State {
  explicit State(tcp::socket given)
      : socket(std::move(given)),
        read_timer(socket.get_executor()),
        write_timer(socket.get_executor()) {}

  void close() {
    boost::system::error_code ignored;
    socket.close(ignored);
  }

  tcp::socket socket;
  std::unique_ptr<TlsSession> tls;  // null: in the clear
  asio::steady_timer read_timer;
  asio::steady_timer write_timer;
  std::uint64_t read_wait = 0;  // number of the wait: a timer that fires late must not end the next
  std::uint64_t write_wait = 0;
  std::size_t read_since_yield = 0;
  std::size_t written_since_yield = 0;
  bool timed_out = false;
};

}  // namespace baton::net
