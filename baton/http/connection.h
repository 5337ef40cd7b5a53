// One client connection: reads requests one after another, runs the handler, and keeps a read
// outstanding while the handler works, so that a client that leaves is noticed at once. What it
// reads ahead is the next pipelined request. Everything runs on the connection's strand.
#pragma once

#include "baton/http/body_budget.h"
#include "baton/http/client_stream.h"
#include "baton/http/server.h"
#include "baton/net/async_event.h"

#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>

#include <functional>
#include <memory>
#include <string>

namespace baton::http {

// What a connection tells its server; all calls come from the connection's strand.
// What is read ahead of the parser: more than a head or a line of a chunk may have.
inline constexpr std::size_t kMaxInputBytes = std::size_t{256} << 10U;

class ConnectionOwner {
 public:
  virtual ~ConnectionOwner() = default;
  [[nodiscard]] virtual const ServerOptions& options() const = 0;
  [[nodiscard]] virtual const Handler& handler() const = 0;
  [[nodiscard]] virtual HttpResponse error_page(const Error& error) const = 0;
  [[nodiscard]] virtual bool draining() const = 0;
  virtual void handler_started() = 0;
  virtual void handler_ended() = 0;
  [[nodiscard]] virtual BodyBudget& bodies() = 0;
  // Null: clients speak plain HTTP.
  [[nodiscard]] virtual asio::ssl::context* tls() = 0;
};

class Connection final : public ResponseWriter, public std::enable_shared_from_this<Connection> {
 public:
  // `socket`'s executor is the strand. `owner` outlives the connection.
  Connection(asio::ip::tcp::socket socket, std::shared_ptr<ConnectionOwner> owner);

  // Serves until the connection ends. Call once, on the strand.
  asio::awaitable<void> run();
  // Cuts it now. On the strand.
  void close();
  // Closes it if no request has begun to arrive. On the strand.
  void close_if_idle();

  asio::awaitable<Status> send(HttpResponse response) override;
  asio::awaitable<Status> start_stream(HttpResponse head) override;
  asio::awaitable<Status> write(std::string bytes) override;
  asio::awaitable<Status> finish() override;
  [[nodiscard]] bool client_gone() const override { return gone_; }
  void on_client_gone(std::function<void()> callback) override;
  [[nodiscard]] bool draining() const override { return owner_->draining(); }
  [[nodiscard]] asio::any_io_executor executor() const override { return strand_; }

 private:
  using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;
  enum class Answer : std::uint8_t { kNone, kStreaming, kDone, kBroken };

  asio::awaitable<bool> start_tls();
  asio::awaitable<void> end_tls();
  asio::awaitable<bool> serve_one();
  asio::awaitable<bool> read_head(Parser& parser);
  // Into request->body. False: the client was told why not, or has gone.
  asio::awaitable<bool> read_body(Parser& parser, HttpRequest* request);
  asio::awaitable<bool> readable_body(const Parser& parser);
  asio::awaitable<bool> receive_body(Parser& parser, HttpRequest* request);
  [[nodiscard]] std::size_t largest_body(const Parser& parser) const;
  asio::awaitable<void> run_handler(HttpRequest request);
  asio::awaitable<void> refuse(HttpResponse response);
  asio::awaitable<void> linger();
  asio::awaitable<Status> write_all(std::string head, std::string body);
  std::string head_text(const HttpResponse& response, bool with_length) const;
  void watch();
  void on_watched(boost::beast::error_code error, std::size_t bytes);
  asio::awaitable<void> end_watch();
  void mark_gone();

  std::shared_ptr<ConnectionOwner> owner_;
  ClientStream stream_;
  asio::any_io_executor strand_;
  boost::beast::flat_buffer input_{kMaxInputBytes};
  std::string remote_;
  std::function<void()> on_gone_;
  net::AsyncEvent watch_ended_;
  Answer answer_ = Answer::kNone;
  bool keep_alive_ = true;  // of the request being answered
  bool chunked_ = true;     // the client understands chunks (HTTP/1.1)
  bool head_only_ = false;  // HEAD
  bool idle_ = true;        // no byte of a request yet
  bool closed_ = false;
  bool gone_ = false;
  bool watching_ = false;  // a read is outstanding on behalf of the handler
  bool watch_ending_ = false;
};

}  // namespace baton::http
