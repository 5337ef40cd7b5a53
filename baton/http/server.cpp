#include "baton/http/server.h"

#include "baton/base/check.h"
#include "baton/base/log.h"
#include "baton/http/connection.h"
#include "baton/net/asio.h"
#include "baton/net/async_event.h"
#include "baton/net/tcp.h"

#include <boost/asio/buffer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/beast/http/status.hpp>

#include <array>
#include <atomic>
#include <mutex>
#include <unordered_map>

namespace baton::http {

namespace {

// accept() fails when the process has no descriptors left: try again a little later, not at once.
constexpr Duration kAcceptPause = std::chrono::milliseconds(100);

HttpResponse plain_error_page(const Error& error) {
  HttpResponse response;
  switch (error.code) {
    case ErrorCode::kNotFound:
      response.status = 404;
      break;
    case ErrorCode::kMethodNotAllowed:
      response.status = 405;
      break;
    case ErrorCode::kPayloadTooLarge:
      response.status = 413;
      break;
    case ErrorCode::kOverloaded:
    case ErrorCode::kUnavailable:
      response.status = 503;
      break;
    case ErrorCode::kInternal:
      response.status = 500;
      break;
    default:
      response.status = 400;
  }
  response.content_type = "text/plain";
  response.body = error.message + "\n";
  return response;
}

}  // namespace

struct HttpServer::Core final : ConnectionOwner, std::enable_shared_from_this<Core> {
  Core(std::vector<asio::any_io_executor> executors, ServerOptions server_options, Handler handle)
      : executors_(std::move(executors)),
        options_(std::move(server_options)),
        handler_(std::move(handle)),
        bodies_(std::make_shared<BodyBudget>(options_.max_bodies_bytes)) {
    BATON_CHECK(!executors_.empty() && handler_ != nullptr);
    if (options_.tls) {
      SSL_CTX_up_ref(options_.tls->native());
      tls_.emplace(options_.tls->native());  // takes the reference
    }
    accept_strand_ = asio::make_strand(executors_.front());
    accept_pause_ = std::make_unique<net::AsyncEvent>(accept_strand_);
  }

  [[nodiscard]] const ServerOptions& options() const override { return options_; }
  [[nodiscard]] const Handler& handler() const override { return handler_; }
  [[nodiscard]] HttpResponse error_page(const Error& error) const override {
    return options_.error_page ? options_.error_page(error) : plain_error_page(error);
  }
  [[nodiscard]] bool draining() const override { return draining_.load(); }
  void handler_started() override { active_.fetch_add(1); }
  void handler_ended() override { active_.fetch_sub(1); }
  [[nodiscard]] BodyBudget& bodies() override { return *bodies_; }
  [[nodiscard]] asio::ssl::context* tls() override { return tls_ ? &*tls_ : nullptr; }

  asio::awaitable<void> accept_loop();
  void admit(tcp::socket socket);
  void turn_away(tcp::socket socket) const;
  static asio::awaitable<void> serve(std::shared_ptr<Core> core, std::uint64_t id,
                                     std::shared_ptr<Connection> connection);
  void stop_accepting();
  // Runs `act` on every open connection's strand.
  void on_each(void (Connection::*act)());
  [[nodiscard]] std::size_t open() const {
    std::lock_guard lock(mutex_);
    return connections_.size();
  }

  const std::vector<asio::any_io_executor> executors_;
  const ServerOptions options_;
  const Handler handler_;
  const std::shared_ptr<BodyBudget> bodies_;
  std::optional<asio::ssl::context> tls_;
  asio::any_io_executor accept_strand_;
  std::unique_ptr<net::AsyncEvent> accept_pause_;
  std::optional<tcp::acceptor> acceptor_;  // touched on accept_strand_ once listening
  std::uint16_t port_ = 0;
  std::atomic<bool> draining_{false};
  std::atomic<std::size_t> active_{0};

  mutable std::mutex mutex_;
  std::unordered_map<std::uint64_t, std::weak_ptr<Connection>> connections_;
  std::uint64_t last_id_ = 0;
  std::shared_ptr<net::AsyncEvent> all_closed_;  // somebody drains
};

asio::awaitable<void> HttpServer::Core::accept_loop() {
  const auto self = shared_from_this();
  while (!draining_.load()) {
    tcp::socket socket(asio::make_strand(executors_[last_id_ % executors_.size()]));
    auto [error] = co_await acceptor_->async_accept(socket, kTuple);
    if (!error) {
      admit(std::move(socket));
    } else if (error == asio::error::operation_aborted || error == asio::error::bad_descriptor) {
      break;
    } else if (error != asio::error::connection_aborted) {
      log::warn("cannot accept a connection: {}", error.message());
      (void)co_await accept_pause_->wait_for(kAcceptPause);
    }
  }
}

void HttpServer::Core::admit(tcp::socket socket) {
  if (open() >= options_.max_connections) {
    turn_away(std::move(socket));
    return;
  }
  const auto strand = socket.get_executor();
  auto connection = std::make_shared<Connection>(std::move(socket), shared_from_this());
  std::uint64_t id = 0;
  {
    std::lock_guard lock(mutex_);
    id = ++last_id_;
    connections_.emplace(id, connection);
  }
  asio::co_spawn(strand, serve(shared_from_this(), id, std::move(connection)), asio::detached);
}

// One try, no waiting: the few bytes fit the socket's empty buffer.
void HttpServer::Core::turn_away(tcp::socket socket) const {
  if (options_.tls) {
    return;  // closes it: there is no saying anything before a handshake
  }
  const HttpResponse page = error_page(
      {ErrorCode::kUnavailable, "the server has no connection left, try again later", {}, 1000});
  const std::string text = "HTTP/1.1 " + std::to_string(page.status) +
                           " Service Unavailable\r\nContent-Type: " + page.content_type +
                           "\r\nRetry-After: 1\r\nConnection: close\r\nContent-Length: " +
                           std::to_string(page.body.size()) + "\r\n\r\n" + page.body;
  boost::system::error_code ignored;
  socket.non_blocking(true, ignored);
  socket.write_some(asio::buffer(text), ignored);
  socket.shutdown(tcp::socket::shutdown_send, ignored);
}

asio::awaitable<void> HttpServer::Core::serve(std::shared_ptr<Core> core, std::uint64_t id,
                                              std::shared_ptr<Connection> connection) {
  try {
    co_await connection->run();
  } catch (const std::exception& exception) {
    log::error("a connection ended badly: {}", exception.what());
    connection->close();
  }
  std::shared_ptr<net::AsyncEvent> all_closed;
  {
    std::lock_guard lock(core->mutex_);
    core->connections_.erase(id);
    if (core->connections_.empty()) {
      all_closed = core->all_closed_;
    }
  }
  if (all_closed) {
    all_closed->set();
  }
}

void HttpServer::Core::stop_accepting() {
  draining_.store(true);
  asio::post(accept_strand_, [self = shared_from_this()] {
    boost::system::error_code ignored;
    if (self->acceptor_) {
      self->acceptor_->close(ignored);
    }
    self->accept_pause_->set();
  });
}

void HttpServer::Core::on_each(void (Connection::*act)()) {
  std::vector<std::shared_ptr<Connection>> open_now;
  {
    std::lock_guard lock(mutex_);
    for (const auto& [id, weak] : connections_) {
      if (auto connection = weak.lock()) {
        open_now.push_back(std::move(connection));
      }
    }
  }
  for (auto& connection : open_now) {
    const auto strand = connection->executor();
    asio::post(strand, [connection = std::move(connection), act] { (connection.get()->*act)(); });
  }
}

HttpServer::HttpServer(asio::any_io_executor executor, ServerOptions options, Handler handler)
    : HttpServer(std::vector<asio::any_io_executor>{std::move(executor)}, std::move(options),
                 std::move(handler)) {}

HttpServer::HttpServer(std::vector<asio::any_io_executor> executors, ServerOptions options,
                       Handler handler)
    : core_(std::make_shared<Core>(std::move(executors), std::move(options), std::move(handler))) {}

HttpServer::~HttpServer() { stop(); }

Status HttpServer::listen() {
  const net::HostPort address{core_->options_.host, core_->options_.port};
  auto acceptor = net::listen(core_->accept_strand_, address);
  if (!acceptor) {
    return fail(std::move(acceptor).error());
  }
  core_->acceptor_ = *std::move(acceptor);
  core_->port_ = net::local_address(*core_->acceptor_).port;
  asio::co_spawn(core_->accept_strand_, core_->accept_loop(), asio::detached);
  return {};
}

std::uint16_t HttpServer::port() const { return core_->port_; }
std::size_t HttpServer::connections() const { return core_->open(); }
std::size_t HttpServer::body_bytes() const { return core_->bodies_->taken(); }
std::size_t HttpServer::active() const { return core_->active_.load(); }

asio::awaitable<std::size_t> HttpServer::drain(Duration at_most) {
  const auto core = core_;
  const auto executor = co_await asio::this_coro::executor;
  const auto all_closed = std::make_shared<net::AsyncEvent>(executor);
  {
    std::lock_guard lock(core->mutex_);
    core->all_closed_ = all_closed;
  }
  core->stop_accepting();
  core->on_each(&Connection::close_if_idle);
  std::size_t left = core->open();
  if (left > 0) {
    (void)co_await all_closed->wait_for(at_most);
    left = core->open();
    core->on_each(&Connection::close);
  }
  {
    std::lock_guard lock(core->mutex_);
    core->all_closed_.reset();  // its timer is of the caller's loop, which connections may outlive
  }
  co_return left;
}

void HttpServer::stop() {
  core_->stop_accepting();
  core_->on_each(&Connection::close);
}

}  // namespace baton::http
