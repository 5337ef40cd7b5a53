#include "baton/http/connection.h"

#include "baton/base/log.h"
#include "baton/http/read_error.h"

#include <boost/asio/buffer.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/status.hpp>

#include <algorithm>
#include <array>
#include <cctype>

namespace baton::http {

namespace beast = boost::beast;

namespace {

constexpr std::size_t kWatchReadBytes = 4096;
// A refused upload is read and thrown away that far, or the reset of a close with unread bytes
// would destroy the answer on its way.
constexpr std::size_t kLingerBytes = 64U << 20;
constexpr Duration kLingerTime = std::chrono::seconds(5);
// For the client's answer to our close_notify: most close at once, none must.
constexpr Duration kTlsEndTime = std::chrono::seconds(1);
constexpr unsigned char kTlsHandshakeRecord = 22;

// Response headers are ours, but a value may hold a peer's text: a line break would let it write
// headers of its own.
void append_header(std::string& out, std::string_view name, std::string_view value) {
  out.append(name).append(": ");
  for (const char c : value) {
    out.push_back(static_cast<unsigned char>(c) < 0x20 && c != '\t' ? ' ' : c);
  }
  out.append("\r\n");
}

HttpRequest to_request(const beast::http::request<beast::http::string_body>& message) {
  HttpRequest request;
  request.method = std::string(message.method_string());
  request.target = std::string(message.target());
  split_target(request.target, request.path, request.query);
  for (const auto& field : message) {
    std::string name(field.name_string());
    std::transform(name.begin(), name.end(), name.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    request.headers.emplace_back(std::move(name), std::string(field.value()));
  }
  return request;
}

}  // namespace

Connection::Connection(asio::ip::tcp::socket socket, std::shared_ptr<ConnectionOwner> owner)
    : owner_(std::move(owner)),
      stream_(std::move(socket), owner_->tls()),
      strand_(stream_.get_executor()),
      watch_ended_(strand_) {
  beast::error_code error;
  stream_.tcp().socket().set_option(asio::ip::tcp::no_delay(true), error);
  const auto endpoint = stream_.tcp().socket().remote_endpoint(error);
  if (!error) {
    remote_ = endpoint.address().to_string() + ":" + std::to_string(endpoint.port());
  }
}

asio::awaitable<void> Connection::run() {
  const auto self = shared_from_this();
  bool open = true;
  if (stream_.tls() != nullptr) {
    open = co_await start_tls();
  }
  while (open && !closed_) {
    if (!co_await serve_one()) {
      break;
    }
  }
  co_await end_tls();
  close();
}

// False: no request will come. A client that speaks plain HTTP is told so, in plain HTTP.
asio::awaitable<bool> Connection::start_tls() {
  stream_.tcp().expires_after(owner_->options().header_deadline);
  auto [error, bytes] =
      co_await stream_.tcp().async_read_some(input_.prepare(kWatchReadBytes), kTuple);
  if (error) {
    co_return false;
  }
  input_.commit(bytes);
  if (static_cast<const unsigned char*>(input_.data().data())[0] != kTlsHandshakeRecord) {
    stream_.forget_tls();
    keep_alive_ = false;
    Error why{ErrorCode::kInvalidArgument, "this port speaks HTTPS only", {}, 0};
    co_await refuse(owner_->error_page(why));
    co_return false;
  }
  auto [failed, taken] = co_await stream_.tls()->async_handshake(asio::ssl::stream_base::server,
                                                                 input_.data(), kTuple);
  input_.consume(input_.size());  // the rest of what was read is within the TLS stream
  (void)taken;
  if (failed) {
    log::debug("TLS with client {} failed: {}", remote_, failed.message());
    stream_.forget_tls();  // no goodbye
  }
  co_return !failed;
}

// Says that the answer was whole: without it a client may take the end for an attacker's cut.
asio::awaitable<void> Connection::end_tls() {
  if (stream_.tls() == nullptr || gone_ || closed_ || answer_ != Answer::kDone) {
    co_return;
  }
  stream_.tcp().expires_after(kTlsEndTime);
  (void)co_await stream_.tls()->async_shutdown(kTuple);
}

void Connection::close() {
  if (closed_) {
    return;
  }
  closed_ = true;
  beast::error_code ignored;
  stream_.tcp().socket().shutdown(asio::ip::tcp::socket::shutdown_both, ignored);
  stream_.tcp().close();
  mark_gone();
}

void Connection::close_if_idle() {
  if (idle_) {
    close();
  }
}

// One request and its answer. False: the connection is over.
asio::awaitable<bool> Connection::serve_one() {
  Parser parser;
  // The gate comes before the body's size is judged: a stranger learns nothing but 401.
  parser.header_limit(static_cast<std::uint32_t>(owner_->options().max_header_bytes));
  parser.body_limit(boost::none);
  keep_alive_ = false;
  chunked_ = true;
  head_only_ = false;
  answer_ = Answer::kNone;
  if (!co_await read_head(parser)) {
    co_return false;
  }
  chunked_ = parser.get().version() >= 11;
  head_only_ = parser.get().method() == beast::http::verb::head;
  HttpRequest head = to_request(parser.get());
  head.remote = remote_;
  const std::size_t hosts = parser.get().count(beast::http::field::host);
  if (hosts > 1 || (hosts == 0 && chunked_)) {
    Error why{ErrorCode::kInvalidArgument, "a request of HTTP/1.1 has one Host header", "Host", 0};
    co_await refuse(owner_->error_page(why));
    co_return false;
  }
  if (owner_->options().gate) {
    std::optional<HttpResponse> refusal = owner_->options().gate(head);
    if (refusal) {
      co_await refuse(std::move(*refusal));
      co_return false;
    }
  }
  if (!co_await read_body(parser, &head)) {
    co_return false;
  }
  keep_alive_ = parser.keep_alive();
  co_await run_handler(std::move(head));
  if (answer_ != Answer::kDone) {
    co_return false;
  }
  co_return keep_alive_ && !gone_ && !closed_ && !owner_->draining();
}

asio::awaitable<bool> Connection::read_head(Parser& parser) {
  idle_ = input_.size() == 0;
  if (idle_) {
    if (owner_->draining()) {
      co_return false;
    }
    stream_.tcp().expires_after(owner_->options().idle_timeout);
    auto [error, bytes] = co_await stream_.async_read_some(input_.prepare(kWatchReadBytes), kTuple);
    if (error) {
      co_return false;  // nothing was asked, so nothing is answered
    }
    input_.commit(bytes);
    idle_ = false;
  }
  stream_.tcp().expires_after(owner_->options().header_deadline);
  auto [error, bytes] = co_await beast::http::async_read_header(stream_, input_, parser, kTuple);
  (void)bytes;
  if (!error) {
    co_return true;
  }
  if (error == beast::error::timeout) {
    // Beast has closed the socket; a client this slow reads no answer either.
    co_return false;
  }
  if (!is_disconnect(error)) {
    Error why = read_error(error);
    HttpResponse response = owner_->error_page(why);
    if (why.param == "headers") {
      response.status = 431;
    }
    co_await refuse(std::move(response));
  }
  co_return false;
}

asio::awaitable<void> Connection::run_handler(HttpRequest request) {
  const std::string what = request.method + " " + request.path;
  owner_->handler_started();
  watch();
  bool threw = false;
  try {
    co_await owner_->handler()(std::move(request), *this);
  } catch (const std::exception& exception) {
    threw = true;
    log::error("{} from {}: {}", what, remote_, exception.what());
  }
  on_gone_ = nullptr;
  if (answer_ == Answer::kNone && !gone_) {
    if (!threw) {
      log::error("{} from {}: the handler gave no answer", what, remote_);
    }
    Error why{ErrorCode::kInternal, "the server failed to answer", {}, 0};
    (void)co_await send(owner_->error_page(why));
  }
  owner_->handler_ended();
  co_await end_watch();
}

// An answer to a request that was not read to its end: no other can follow on this connection.
asio::awaitable<void> Connection::refuse(HttpResponse response) {
  keep_alive_ = false;
  const Status sent = co_await send(std::move(response));
  if (sent) {
    co_await linger();
  }
}

asio::awaitable<void> Connection::linger() {
  co_await end_tls();
  stream_.forget_tls();  // what still comes is thrown away as it is
  beast::error_code ignored;
  stream_.tcp().socket().shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
  input_.clear();
  stream_.tcp().expires_after(kLingerTime);
  for (std::size_t total = 0; total < kLingerBytes;) {
    auto [error, bytes] =
        co_await stream_.async_read_some(input_.prepare(16 * kWatchReadBytes), kTuple);
    if (error) {
      break;
    }
    total += bytes;
  }
}

std::string Connection::head_text(const HttpResponse& response, bool with_length) const {
  std::string out = "HTTP/1.1 " + std::to_string(response.status) + " ";
  out += beast::http::obsolete_reason(
      beast::http::int_to_status(static_cast<unsigned>(response.status)));
  out += "\r\nServer: baton\r\n";
  append_header(out, "Content-Type", response.content_type);
  for (const auto& [name, value] : response.headers) {
    append_header(out, name, value);
  }
  if (with_length) {
    append_header(out, "Content-Length", std::to_string(response.body.size()));
  } else if (chunked_) {
    append_header(out, "Transfer-Encoding", "chunked");
  }
  if (!keep_alive_) {
    append_header(out, "Connection", "close");
  } else if (!chunked_) {
    append_header(out, "Connection", "keep-alive");  // HTTP/1.0 asks for it by name
  }
  out += "\r\n";
  return out;
}

asio::awaitable<Status> Connection::write_all(std::string head, std::string body) {
  if (gone_ || closed_) {
    co_return fail(ErrorCode::kCancelled, "the client has left");
  }
  stream_.tcp().expires_after(owner_->options().write_timeout);
  if (stream_.tls() != nullptr) {  // it makes a record, and a packet, of each buffer
    head += body;
    body.clear();
  }
  const std::array<asio::const_buffer, 2> buffers{asio::buffer(head), asio::buffer(body)};
  auto [error, bytes] = co_await asio::async_write(stream_, buffers, kTuple);
  (void)bytes;
  if (error) {
    const bool slow = error == beast::error::timeout;
    answer_ = Answer::kBroken;
    mark_gone();
    co_return fail(slow ? ErrorCode::kDeadlineExceeded : ErrorCode::kCancelled,
                   slow ? "the client does not read" : "the client has left");
  }
  co_return Status{};
}

asio::awaitable<Status> Connection::send(HttpResponse response) {
  if (answer_ != Answer::kNone) {
    co_return fail(ErrorCode::kInternal, "the request was answered already");
  }
  keep_alive_ = keep_alive_ && !owner_->draining();
  answer_ = Answer::kBroken;  // until all of it is out
  std::string head = head_text(response, true);
  std::string body = head_only_ ? std::string() : std::move(response.body);
  Status status = co_await write_all(std::move(head), std::move(body));
  if (status) {
    answer_ = Answer::kDone;
  }
  co_return status;
}

asio::awaitable<Status> Connection::start_stream(HttpResponse response) {
  if (answer_ != Answer::kNone) {
    co_return fail(ErrorCode::kInternal, "the request was answered already");
  }
  keep_alive_ = keep_alive_ && chunked_ && !owner_->draining();
  answer_ = Answer::kStreaming;
  std::string head = head_text(response, false);
  std::string first = std::move(response.body);
  Status status = co_await write_all(std::move(head), {});
  if (status && !first.empty()) {
    status = co_await write(std::move(first));
  }
  co_return status;
}

asio::awaitable<Status> Connection::write(std::string bytes) {
  if (answer_ != Answer::kStreaming) {
    co_return fail(gone_ ? ErrorCode::kCancelled : ErrorCode::kInternal, "no stream is open");
  }
  if (bytes.empty() || head_only_) {
    co_return Status{};  // an empty chunk would end the stream
  }
  std::string frame;
  if (chunked_) {
    frame = fmt::format("{:x}\r\n", bytes.size());
    bytes += "\r\n";
  }
  Status status = co_await write_all(std::move(frame), std::move(bytes));
  co_return status;
}

asio::awaitable<Status> Connection::finish() {
  if (answer_ != Answer::kStreaming) {
    co_return fail(gone_ ? ErrorCode::kCancelled : ErrorCode::kInternal, "no stream is open");
  }
  if (chunked_ && !head_only_) {
    Status status = co_await write_all("0\r\n\r\n", {});
    if (!status) {
      co_return status;
    }
  }
  answer_ = Answer::kDone;
  co_return Status{};
}

void Connection::on_client_gone(std::function<void()> callback) {
  if (gone_) {
    callback();
    return;
  }
  on_gone_ = std::move(callback);
}

void Connection::mark_gone() {
  if (gone_) {
    return;
  }
  gone_ = true;
  if (on_gone_) {
    const auto callback = std::exchange(on_gone_, nullptr);
    callback();
  }
}

void Connection::watch() {
  if (closed_ || input_.size() >= owner_->options().max_pipelined_bytes) {
    return;  // so much read ahead: a departure shows at the next write
  }
  watching_ = true;
  stream_.tcp().expires_never();  // the write in progress, if any, keeps its own deadline
  stream_.async_read_some(input_.prepare(kWatchReadBytes),
                          [self = shared_from_this()](beast::error_code error, std::size_t bytes) {
                            self->on_watched(error, bytes);
                          });
}

void Connection::on_watched(beast::error_code error, std::size_t bytes) {
  watching_ = false;
  input_.commit(bytes);
  if (error && !(watch_ending_ && error == asio::error::operation_aborted)) {
    mark_gone();
  }
  if (!error && !watch_ending_) {
    watch();
  }
  if (watch_ending_) {
    watch_ended_.set();
  }
}

// The outstanding read must be over before the next request is read. Its bytes are not lost.
asio::awaitable<void> Connection::end_watch() {
  if (!watching_) {
    co_return;
  }
  watch_ending_ = true;
  stream_.tcp().cancel();
  co_await watch_ended_.wait_uncancellable();
  watch_ending_ = false;
}

}  // namespace baton::http
