// HTTP/1.1 server, with or without TLS: keep-alive, pipelining, chunked streams, deadlines and
// bounds on everything, and notice of a client that leaves while its handler works. Knows nothing
// of LLMs. One strand per connection on the given executor (an io_context run by any number of
// threads); a handler runs on its connection's strand and must not block it.
#pragma once

#include "baton/base/clock.h"
#include "baton/base/result.h"
#include "baton/http/message.h"
#include "baton/net/tls.h"

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace baton::http {

namespace asio = boost::asio;

// The answer to one request: either send(), or start_stream(), write()..., finish(). A handler that
// returns without an answer gets a 500; one that leaves a stream unfinished gets the connection
// cut, so that a short stream never looks complete. Valid until the handler returns. Thread: the
// strand.
class ResponseWriter {
 public:
  virtual ~ResponseWriter() = default;

  // A whole response. Errors: kCancelled (the client left), kDeadlineExceeded (write timeout).
  virtual asio::awaitable<Status> send(HttpResponse response) = 0;

  // Status line and headers of a stream (chunked; by Connection: close for HTTP/1.0 clients);
  // `head.body` is written as the first bytes when not empty. Errors: as send.
  virtual asio::awaitable<Status> start_stream(HttpResponse head) = 0;
  // One chunk of bytes (see append_event, append_comment). Errors: as send.
  virtual asio::awaitable<Status> write(std::string bytes) = 0;
  virtual asio::awaitable<Status> finish() = 0;

  // True once the client closed its end or a write failed. A half-closed client counts as gone.
  [[nodiscard]] virtual bool client_gone() const = 0;
  // Called on the strand at most once, within milliseconds of the client's leaving; at once when it
  // is gone already. Dropped unheard when the handler returns. Replaces an earlier one.
  virtual void on_client_gone(std::function<void()> callback) = 0;
  // True once drain() began: a long stream may want to say so.
  [[nodiscard]] virtual bool draining() const = 0;
  // The connection's strand: post here to get back to the handler's side from another thread.
  [[nodiscard]] virtual asio::any_io_executor executor() const = 0;
};

// `request` is moved in; `writer` outlives the call. Exceptions become a 500 and a log line.
using Handler = std::function<asio::awaitable<void>(HttpRequest request, ResponseWriter& writer)>;
// Runs on the head of every request, before its body is read (HttpRequest::body is empty): the
// place for the key check, so that nothing is done, or even read, for a stranger. A response
// refuses.
using Gate = std::function<std::optional<HttpResponse>(const HttpRequest& head)>;
// How to answer what never reaches the handler: malformed (400), too large (413, 431), too many
// connections (503). Gives the body its shape. What is too slow is cut without an answer.
using ErrorPage = std::function<HttpResponse(const Error& error)>;

struct ServerOptions {
  std::string host = "127.0.0.1";
  std::uint16_t port = 0;                        // 0 = any free one, see HttpServer::port
  std::size_t max_header_bytes = 16 * 1024;      // 431 above: more is an attack, not a client
  std::size_t max_body_bytes = 8 * 1024 * 1024;  // 413 above: a 1M-token prompt as ids fits
  std::size_t max_bodies_bytes = 256U
                                 << 20;  // of all requests together; error page kOverloaded above
  std::size_t max_connections = 4096;    // about 32 KiB each when idle; 503 above
  std::size_t max_pipelined_bytes = 64 * 1024;          // read ahead while a handler works
  Duration header_deadline = std::chrono::seconds(10);  // from the first byte to the blank line
  Duration body_deadline = std::chrono::seconds(60);
  Duration idle_timeout = std::chrono::seconds(75);   // keep-alive between requests
  Duration write_timeout = std::chrono::seconds(30);  // one write that makes no end
  Gate gate;                                          // may be empty
  ErrorPage error_page;                               // may be empty: plain text then
  std::shared_ptr<const net::TlsContext> tls;         // null: plain HTTP
};

class HttpServer {
 public:
  HttpServer(asio::any_io_executor executor, ServerOptions options, Handler handler);
  // Connections are given these executors in turn (the loops of a net::IoPool). Not empty.
  HttpServer(std::vector<asio::any_io_executor> executors, ServerOptions options, Handler handler);
  ~HttpServer();  // stop() must have been called and the executor have run dry, or have ended
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // Binds and starts to accept. Errors: kIo naming host:port (in use, not permitted, unknown host).
  Status listen();
  [[nodiscard]] std::uint16_t port() const;  // the bound one
  // Stops accepting, closes idle connections, lets requests under way finish; after `at_most` the
  // rest is cut. Returns the number of connections cut. Thread: any, once; the awaiting coroutine's
  // executor must be serial.
  asio::awaitable<std::size_t> drain(Duration at_most);
  // Stops accepting and closes every connection now. Thread: any; idempotent.
  void stop();
  [[nodiscard]] std::size_t connections() const;  // open now; any thread
  [[nodiscard]] std::size_t body_bytes() const;   // of requests under way; any thread
  [[nodiscard]] std::size_t active() const;       // with a handler running; any thread

 private:
  struct Core;
  std::shared_ptr<Core> core_;
};

}  // namespace baton::http
