#include "baton/net/tls_session.h"

#include "baton/base/check.h"

#include <fmt/format.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

namespace baton::net {

namespace {

// Above kTlsFlushBytes by more than a record, so that only a peer that asks for ever for new keys
// and reads nothing meets it.
constexpr std::size_t kMaxOutgoingBytes = 2 * kTlsFlushBytes;

bool is_not_tls(int reason) {
  return reason == SSL_R_WRONG_VERSION_NUMBER || reason == SSL_R_HTTP_REQUEST ||
         reason == SSL_R_HTTPS_PROXY_REQUEST;
}

// The code of the TLS layer itself in OpenSSL's queue (below it lie those of the layers that
// it asked, such as a signature that is wrong); 0: there is none. Empties the queue.
unsigned long take_tls_error() {
  unsigned long found = 0;
  while (const unsigned long code = ERR_get_error()) {
    if (found == 0 || ERR_GET_LIB(code) == ERR_LIB_SSL) {
      found = code;
    }
  }
  return found;
}

// What an operator makes of the reason.
std::string explained(int reason, const std::string& text, long verified) {
  if (reason == SSL_R_CERTIFICATE_VERIFY_FAILED) {
    return fmt::format("its certificate is not accepted: {}",
                       X509_verify_cert_error_string(verified));
  }
  if (reason == SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE) {
    return "it showed no certificate";
  }
  if (is_not_tls(reason)) {
    return "it does not speak TLS";
  }
  if (reason >= SSL_AD_REASON_OFFSET) {
    return fmt::format("it refused us: {}", text);  // an alert, "tlsv1 alert unknown ca"
  }
  return text;
}

}  // namespace

// OpenSSL's view of the socket.
struct TlsBio {
  static TlsSession* session(BIO* bio) { return static_cast<TlsSession*>(BIO_get_data(bio)); }
  static int read(BIO* bio, char* into, int bytes) {
    BIO_clear_retry_flags(bio);
    return session(bio)->receive(into, bytes);
  }
  static int write(BIO* bio, const char* from, int bytes) {
    BIO_clear_retry_flags(bio);
    return session(bio)->send_later(from, bytes);
  }
  static long control(BIO* bio, int command, long, void*) {
    if (command == BIO_CTRL_EOF) {
      return session(bio)->end_seen_ ? 1 : 0;
    }
    return command == BIO_CTRL_FLUSH ? 1 : 0;
  }
  static const BIO_METHOD* method() {
    static const BIO_METHOD* const made = [] {
      BIO_METHOD* fresh = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "baton socket");
      BATON_CHECK(fresh != nullptr);
      BIO_meth_set_read(fresh, &TlsBio::read);
      BIO_meth_set_write(fresh, &TlsBio::write);
      BIO_meth_set_ctrl(fresh, &TlsBio::control);
      return fresh;
    }();
    return made;
  }
};

TlsSession::TlsSession(const TlsContext& context, TlsRole role, tcp::socket* socket)
    : ssl_(SSL_new(context.native())), bio_(BIO_new(TlsBio::method())), socket_(socket) {
  BATON_CHECK(ssl_ != nullptr && bio_ != nullptr, "out of memory");
  BIO_set_data(bio_, this);
  BIO_set_init(bio_, 1);
  SSL_set_bio(ssl_, bio_, bio_);
  if (role == TlsRole::kClient) {
    SSL_set_connect_state(ssl_);
  } else {
    SSL_set_accept_state(ssl_);
  }
}

TlsSession::~TlsSession() { SSL_free(ssl_); }

int TlsSession::receive(char* into, int bytes) {
  if (!socket_->is_open()) {
    system_error_ = ECONNABORTED;
    return -1;
  }
  while (true) {
    const ssize_t got =
        ::recv(socket_->native_handle(), into, static_cast<std::size_t>(bytes), MSG_DONTWAIT);
    if (got > 0) {
      return static_cast<int>(got);
    }
    if (got == 0) {
      end_seen_ = true;
      return 0;
    }
    if (errno == EINTR) {
      continue;
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK) {
      BIO_set_retry_read(bio_);
    } else {
      system_error_ = errno;
    }
    return -1;
  }
}

int TlsSession::send_later(const char* from, int bytes) {
  const auto* begin = reinterpret_cast<const std::byte*>(from);
  if (outgoing_bytes() + static_cast<std::size_t>(bytes) > kMaxOutgoingBytes) {
    BIO_set_retry_write(bio_);
    return -1;
  }
  outgoing_.insert(outgoing_.end(), begin, begin + bytes);
  return bytes;
}

TlsSession::Step TlsSession::flush() {
  while (sent_ < outgoing_.size()) {
    if (!socket_->is_open()) {
      system_error_ = ECONNABORTED;
      return Step::kFailed;
    }
    const ssize_t put = ::send(socket_->native_handle(), outgoing_.data() + sent_,
                               outgoing_.size() - sent_, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (put >= 0) {
      sent_ += static_cast<std::size_t>(put);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return Step::kWantWrite;
    } else if (errno != EINTR) {
      system_error_ = errno;
      return Step::kFailed;
    }
  }
  outgoing_.clear();
  sent_ = 0;
  return Step::kDone;
}

void TlsSession::keep_failure() {
  if (!failure_.empty() || system_error_ != 0) {
    return;  // the first one is the cause
  }
  const unsigned long code = take_tls_error();
  const int reason = ERR_GET_LIB(code) == ERR_LIB_SSL ? ERR_GET_REASON(code) : 0;
  if (code == 0 || reason == SSL_R_UNEXPECTED_EOF_WHILE_READING) {
    end_seen_ = true;
    return;
  }
  const char* text = ERR_reason_error_string(code);
  failure_ =
      explained(reason, text != nullptr ? text : "unknown reason", SSL_get_verify_result(ssl_));
  if (is_not_tls(reason)) {
    // OpenSSL says nothing to such a peer. One of ours knows an alert (fatal, unexpected message).
    static constexpr char kAlert[] = {21, 3, 1, 0, 2, 2, 10};
    (void)send_later(kAlert, sizeof(kAlert));
  }
  // In TLS 1.3 a server judges its client's certificate when the client's handshake is over: the
  // alert then comes in place of its first bytes.
  mismatch_ = !greeted_ || (!heard_ && reason >= SSL_AD_REASON_OFFSET);
}

TlsSession::Step TlsSession::step_of(int result) {
  if (result == 1) {
    return Step::kDone;
  }
  switch (SSL_get_error(ssl_, result)) {
    case SSL_ERROR_WANT_READ:
      return Step::kWantRead;
    case SSL_ERROR_WANT_WRITE:
      return Step::kWantWrite;
    case SSL_ERROR_ZERO_RETURN:
      end_seen_ = true;
      return Step::kFailed;
    default:
      keep_failure();
      return Step::kFailed;
  }
}

TlsSession::Step TlsSession::handshake() {
  ERR_clear_error();
  const Step step = step_of(SSL_do_handshake(ssl_));
  greeted_ = greeted_ || step == Step::kDone;
  return step;
}

TlsSession::Step TlsSession::read(std::span<std::byte> into, std::size_t* got) {
  *got = 0;
  ERR_clear_error();
  const Step step = step_of(SSL_read_ex(ssl_, into.data(), into.size(), got));
  heard_ = heard_ || step == Step::kDone;
  return step;
}

TlsSession::Step TlsSession::seal(std::span<const std::byte> plain, std::size_t* taken) {
  *taken = 0;
  ERR_clear_error();
  return step_of(SSL_write_ex(ssl_, plain.data(), std::min(plain.size(), kTlsRecordBytes), taken));
}

bool TlsSession::looks_alive() {
  std::byte byte{};
  std::size_t got = 0;
  ERR_clear_error();
  const Step step = step_of(SSL_peek_ex(ssl_, &byte, 1, &got));
  return step == Step::kDone || step == Step::kWantRead;
}

void TlsSession::say_goodbye() {
  if (greeted_ && failure_.empty()) {
    ERR_clear_error();
    (void)SSL_shutdown(ssl_);
  }
}

Error TlsSession::error(const std::string& peer) const {
  if (!failure_.empty()) {
    return Error{mismatch_ ? ErrorCode::kHandshakeMismatch : ErrorCode::kPeerLost,
                 fmt::format("TLS with {} failed: {}", peer, failure_), mismatch_ ? "tls" : ""};
  }
  if (!greeted_) {  // a node without TLS closes when it sees our first bytes
    return Error{
        ErrorCode::kPeerLost,
        fmt::format("{} closed the connection within the TLS handshake: does it speak TLS?", peer),
        "tls"};
  }
  if (system_error_ != 0) {
    return Error{
        ErrorCode::kPeerLost,
        fmt::format(
            "connection to {} lost: {}", peer,
            boost::system::error_code(system_error_, boost::system::system_category()).message())};
  }
  return Error{ErrorCode::kPeerLost, fmt::format("{} closed the connection", peer)};
}

}  // namespace baton::net
