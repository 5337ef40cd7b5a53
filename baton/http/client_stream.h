// A client's connection, in the clear or over TLS: what Beast and Asio need of a stream, and the
// deadlines of the socket below, which hold for TLS too. Private to Connection. Thread: its strand.
#pragma once

#include "baton/net/asio.h"

#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/beast/core/tcp_stream.hpp>

#include <optional>
#include <utility>

namespace baton::http {

class ClientStream {
 public:
  using executor_type = boost::beast::tcp_stream::executor_type;
  using Tls = asio::ssl::stream<boost::beast::tcp_stream&>;

  // `tls` may be null; else it outlives the stream, and nothing is read or written before its
  // handshake.
  ClientStream(asio::ip::tcp::socket socket, asio::ssl::context* tls) : tcp_(std::move(socket)) {
    if (tls != nullptr) {
      tls_.emplace(tcp_, *tls);
    }
  }

  // The socket's own: time-outs, cancelling, what passes TLS by.
  boost::beast::tcp_stream& tcp() { return tcp_; }
  // Null in the clear.
  Tls* tls() { return tls_ ? &*tls_ : nullptr; }
  // From here on in the clear, for a client that does not speak TLS.
  void forget_tls() { tls_.reset(); }

  executor_type get_executor() { return tcp_.get_executor(); }

  template <class Buffers, class Token>
  auto async_read_some(const Buffers& buffers, Token&& token) {
    if (tls_) {
      return tls_->async_read_some(buffers, std::forward<Token>(token));
    }
    return tcp_.async_read_some(buffers, std::forward<Token>(token));
  }
  template <class Buffers, class Token>
  auto async_write_some(const Buffers& buffers, Token&& token) {
    if (tls_) {
      return tls_->async_write_some(buffers, std::forward<Token>(token));
    }
    return tcp_.async_write_some(buffers, std::forward<Token>(token));
  }

 private:
  boost::beast::tcp_stream tcp_;
  std::optional<Tls> tls_;
};

}  // namespace baton::http
