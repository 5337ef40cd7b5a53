// TCP for everybody: listen and connect with clear errors and deadlines, and TcpStream, which reads
// and writes whole buffers with few system calls, in the clear or over TLS.
#pragma once

#include "baton/base/clock.h"
#include "baton/net/address.h"
#include "baton/net/asio.h"
#include "baton/net/tls.h"

#include <sys/uio.h>

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

namespace baton::net {

// No deadline.
inline constexpr Duration kForever = Duration::max();

struct SocketOptions {
  bool no_delay = true;
  std::size_t buffer_bytes = 0;  // SO_SNDBUF and SO_RCVBUF; 0 leaves the kernel's own tuning
};
void apply_options(tcp::socket& socket, const SocketOptions& options);

// Binds and listens. Names are looked up, blocking: at start-up only. Errors: kIo naming host:port
// and the reason ("address already in use: another process listens on 127.0.0.1:8000").
Result<tcp::acceptor> listen(const asio::any_io_executor& executor, const HostPort& address);
bool is_loopback(const asio::ip::address& address);
HostPort local_address(const tcp::acceptor& acceptor);
std::string describe(const tcp::endpoint& endpoint);  // "127.0.0.1:80", "[::1]:80"

// Looks the name up and tries its addresses in turn. Errors: kPeerLost naming host:port and the
// reason, kDeadlineExceeded, kCancelled. Runs on the caller's executor, which also gets the socket.
asio::awaitable<Result<tcp::socket>> connect(HostPort address, Duration deadline,
                                             SocketOptions options);

// A connected socket. System calls are tried first and waited for only when they would block, with
// every buffer in one call (up to IOV_MAX, where Asio stops at 64): at most one reader and one
// writer at a time. A wait that exceeds `stall` closes the socket, so both directions fail.
// Errors of all: kPeerLost (closed or reset by the peer, or by close()), kDeadlineExceeded,
// kCancelled; kHandshakeMismatch with param "tls" from start_tls, and from the first read when the
// peer refuses our certificate. Thread: the socket's executor. The object must outlive its
// operations.
class TcpStream {
 public:
  explicit TcpStream(tcp::socket socket);
  ~TcpStream();
  TcpStream(const TcpStream&) = delete;
  TcpStream& operator=(const TcpStream&) = delete;

  // From here on everything is TLS. Before any other operation; on failure the peer is told and
  // only linger() and close() are left.
  asio::awaitable<Status> start_tls(std::shared_ptr<const TlsContext> context, TlsRole role,
                                    Duration stall);

  // At least one byte; kPeerLost at the end of the stream.
  asio::awaitable<Result<std::size_t>> read_some(std::span<std::byte> into, Duration stall);
  // Into several buffers, in order, by one call: at least one byte in all.
  asio::awaitable<Result<std::size_t>> read_some(std::vector<iovec> into, Duration stall);
  asio::awaitable<Status> read_exact(std::span<std::byte> into, Duration stall);
  // All bytes of all buffers. The buffers behind `parts` must live until it returns; also when the
  // coroutine is cancelled nothing reads them after that.
  asio::awaitable<Status> write_all(std::vector<iovec> parts, Duration stall);

  // False when the peer has closed or reset (a look, not a promise). Does not wait.
  [[nodiscard]] bool looks_alive();
  // Whether bytes have come that no read has taken from the socket yet (a look). Does not wait.
  [[nodiscard]] bool has_unread() const;
  // FIN after what was written.
  void shutdown_send();
  // The last words to a peer that is refused: shutdown_send, then what still comes is thrown away
  // until the peer closes, since closing at once would reset what it has not read yet. Has no bound
  // of its own but `stall` between bytes.
  asio::awaitable<void> linger(Duration stall);
  // Ends operations under way with kPeerLost. Idempotent.
  void close();
  [[nodiscard]] bool is_open() const;
  [[nodiscard]] const std::string& peer() const { return peer_; }
  [[nodiscard]] asio::any_io_executor executor() const;
  [[nodiscard]] HostPort remote_address() const;  // empty when the peer is gone
  // The same connection on another executor, TLS and all; this one is closed. No operation may be
  // under way. Not open on failure.
  std::unique_ptr<TcpStream> release_to(const asio::any_io_executor& executor);

 private:
  struct State;
  // Which of the two that may wait at a time: each has its own timer.
  enum class Side : std::uint8_t { kReader, kWriter };
  asio::awaitable<Status> wait(Side side, tcp::socket::wait_type what, Duration stall);
  asio::awaitable<Result<std::size_t>> read_tls(std::vector<iovec> into, Duration stall);
  asio::awaitable<Status> write_tls(std::vector<iovec> parts, Duration stall);
  asio::awaitable<Status> seal(std::span<const std::byte> plain, Duration stall);
  asio::awaitable<Status> flush_tls(Side side, Duration stall);
  Error error_now(int code) const;
  Error tls_error() const;

  std::shared_ptr<State> state_;
  std::string peer_;
};

}  // namespace baton::net
