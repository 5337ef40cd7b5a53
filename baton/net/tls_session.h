// One connection's TLS state between plain bytes and a socket; private to TcpStream. It never
// waits: each call says what it needs next. Sealed bytes gather in `outgoing` and leave by flush()
// in large writes, where OpenSSL's own socket layer would make a system call of each 16 KiB record.
#pragma once

#include "baton/base/error.h"
#include "baton/net/asio.h"
#include "baton/net/tls.h"

#include <cstddef>
#include <span>
#include <string>
#include <vector>

struct bio_st;
struct ssl_st;

namespace baton::net {

// Largest plain text of a record (RFC 8446, 5.1).
inline constexpr std::size_t kTlsRecordBytes = std::size_t{16} << 10;
// So much is gathered before it is sent: a full window of a fast network, and still in L2.
inline constexpr std::size_t kTlsFlushBytes = std::size_t{256} << 10;

// Thread: the socket's executor. Reads and writes may alternate in any order.
class TlsSession {
 public:
  enum class Step : std::uint8_t {
    kDone,
    kWantRead,   // nothing to read: wait for the socket, call again
    kWantWrite,  // flush() until kDone, call again
    kFailed,     // for good: error() says why
  };

  TlsSession(const TlsContext& context, TlsRole role, tcp::socket* socket);
  ~TlsSession();
  TlsSession(const TlsSession&) = delete;
  TlsSession& operator=(const TlsSession&) = delete;

  // The same connection under another socket object.
  void attach(tcp::socket* socket) { socket_ = socket; }

  Step handshake();
  // At least one byte with kDone.
  Step read(std::span<std::byte> into, std::size_t* got);
  // Seals bytes into outgoing; at most a record is taken.
  Step seal(std::span<const std::byte> plain, std::size_t* taken);
  // Sends what is sealed. kWantWrite: the socket takes no more now.
  Step flush();
  [[nodiscard]] std::size_t outgoing_bytes() const { return outgoing_.size() - sent_; }
  // False when the peer has closed, reset or said so. Does not wait.
  [[nodiscard]] bool looks_alive();
  // Queues close_notify: nothing is sealed after it.
  void say_goodbye();

  // After kFailed, of the peer with that name. kHandshakeMismatch: the two cannot agree (not TLS, a
  // certificate that one side does not take), param "tls". kPeerLost: the connection broke.
  [[nodiscard]] Error error(const std::string& peer) const;

  // Gathers small pieces into records, for the one writer.
  std::vector<std::byte> staged;

 private:
  friend struct TlsBio;
  int receive(char* into, int bytes);
  int send_later(const char* from, int bytes);
  Step step_of(int result);
  void keep_failure();

  ssl_st* ssl_;
  bio_st* bio_ = nullptr;  // owned by ssl_
  tcp::socket* socket_;
  std::vector<std::byte> outgoing_;
  std::size_t sent_ = 0;  // of outgoing_
  int system_error_ = 0;
  bool end_seen_ = false;  // the peer closed the socket
  bool greeted_ = false;   // the handshake is over
  bool heard_ = false;     // the peer has sent plain bytes
  bool mismatch_ = false;
  std::string failure_;
};

}  // namespace baton::net
