// The HTTP server over TLS: the same answers, and clients that do not speak it, show no
// certificate, leave, stall or say nothing.
#include "baton/http/routes.h"
#include "baton/http/server.h"
#include "baton/net/asio.h"
#include "baton/net/async_event.h"
#include "baton/net/event_loop.h"

#include <boost/asio/use_future.hpp>
#include <boost/asio/write.hpp>
#include <gtest/gtest.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include "tests/support/certificates.h"
#include <atomic>
#include <future>

namespace baton::http {
namespace {

using namespace std::chrono_literals;
using testing::TestAuthority;

// A blocking client with a deadline of 10 s on each read.
class TlsClient {
 public:
  explicit TlsClient(std::uint16_t port) : socket_(context_) {
    socket_.connect({asio::ip::make_address("127.0.0.1"), port});
    timeval deadline{10, 0};
    setsockopt(socket_.native_handle(), SOL_SOCKET, SO_RCVTIMEO, &deadline, sizeof(deadline));
  }
  ~TlsClient() { SSL_free(ssl_); }
  TlsClient(const TlsClient&) = delete;
  TlsClient& operator=(const TlsClient&) = delete;

  bool shake(const net::TlsContext& tls) {
    ssl_ = SSL_new(tls.native());
    SSL_set_fd(ssl_, socket_.native_handle());
    return SSL_connect(ssl_) == 1;
  }
  // The system's send, below TLS.
  void send_raw(std::string_view bytes) {
    boost::system::error_code ignored;
    asio::write(socket_, asio::buffer(bytes), ignored);
  }
  void send(std::string_view bytes) {
    while (!bytes.empty()) {
      std::size_t put = 0;  // a record at most
      ASSERT_EQ(SSL_write_ex(ssl_, bytes.data(), bytes.size(), &put), 1);
      bytes.remove_prefix(put);
    }
  }
  // Up to and with `text`; what came until the end when it does not come.
  std::string until(std::string_view text) {
    std::size_t end = 0;
    while ((end = seen_.find(text)) == std::string::npos && more()) {
    }
    end = end == std::string::npos ? seen_.size() : end + text.size();
    std::string out = seen_.substr(0, end);
    seen_.erase(0, end);
    return out;
  }
  std::string rest() {
    while (more()) {
    }
    return std::exchange(seen_, {});
  }
  // After rest(): the server said that this is the end, nobody cut it.
  [[nodiscard]] bool ended_well() const { return last_error_ == SSL_ERROR_ZERO_RETURN; }
  void close() { socket_.close(); }

 private:
  bool more() {
    char bytes[4096];
    std::size_t count = 0;
    if (ssl_ == nullptr) {
      const ssize_t got = ::recv(socket_.native_handle(), bytes, sizeof(bytes), 0);
      EXPECT_TRUE(got >= 0 || errno == ECONNRESET) << "nothing came in time";
      count = static_cast<std::size_t>(std::max<ssize_t>(got, 0));
    } else if (const int ok = SSL_read_ex(ssl_, bytes, sizeof(bytes), &count); ok != 1) {
      last_error_ = SSL_get_error(ssl_, ok);
      EXPECT_NE(errno, EAGAIN) << "nothing came in time";
      count = 0;
    }
    seen_.append(bytes, count);
    return count > 0;
  }

  asio::io_context context_;
  tcp::socket socket_;
  SSL* ssl_ = nullptr;
  int last_error_ = 0;
  std::string seen_;
};

std::string get(std::string_view path, std::string_view version = "1.1") {
  return "GET " + std::string(path) + " HTTP/" + std::string(version) + "\r\nHost: x\r\n\r\n";
}

asio::awaitable<void> echo(HttpRequest request, ResponseWriter& writer) {
  HttpResponse response;
  response.body = request.path + "#" + request.body;
  (void)co_await writer.send(std::move(response));
}

asio::awaitable<void> stream_many(HttpRequest, ResponseWriter& writer) {
  HttpResponse head;
  head.content_type = "text/event-stream";
  (void)co_await writer.start_stream(std::move(head));
  for (int event = 0; event < 1000; ++event) {
    std::string bytes;
    append_event(bytes, std::to_string(event));
    (void)co_await writer.write(std::move(bytes));
  }
  (void)co_await writer.finish();
}

class HttpsTest : public ::testing::Test {
 protected:
  // With a ca, clients must show a certificate.
  void serve(ServerOptions options = {}, bool clients_too = false) {
    net::TlsFiles files = ca_.issue("server");
    files.ca = clients_too ? files.ca : "";
    options.tls = ca_.context(files, net::TlsUse::kHttp);
    Routes routes;
    routes.add("GET", "/echo", echo);
    routes.add("POST", "/echo", echo);
    routes.add("GET", "/stream", stream_many);
    routes.add("GET", "/wait",
               [this](HttpRequest, ResponseWriter& writer) { return wait(writer); });
    routes.add("GET", "/flood",
               [this](HttpRequest, ResponseWriter& writer) { return flood(writer); });
    const ErrorPage page = [](const Error& error) {
      HttpResponse response;
      response.status = 400;
      response.body = error.message;
      return response;
    };
    options.error_page = page;
    server_ = std::make_unique<HttpServer>(
        std::vector<asio::any_io_executor>{pool_.executor(0), pool_.executor(1)}, options,
        routes.handler(page));
    const Status listening = server_->listen();
    ASSERT_TRUE(listening.has_value());
  }
  void TearDown() override {
    auto drained = asio::co_spawn(control_.executor(), server_->drain(10s), asio::use_future);
    ASSERT_EQ(drained.wait_for(20s), std::future_status::ready);
    EXPECT_EQ(drained.get(), 0U);
    server_.reset();
    pool_.stop();
  }
  asio::awaitable<void> wait(ResponseWriter& writer) {
    net::AsyncEvent gone(writer.executor());
    writer.on_client_gone([&gone] { gone.set(); });
    waiting_.set_value();
    (void)co_await gone.wait_for(10s);
    left_.set_value(writer.client_gone());
  }
  asio::awaitable<void> flood(ResponseWriter& writer) {
    HttpResponse head;
    (void)co_await writer.start_stream(std::move(head));
    while (true) {
      const Status status = co_await writer.write(std::string(1 << 20, 'x'));
      if (!status) {
        flood_end_.set_value(status.error().code);
        break;
      }
    }
  }
  // A client's view: any certificate of the CA, and one of its own.
  std::shared_ptr<const net::TlsContext> client() {
    return ca_.context(ca_.issue("client"), net::TlsUse::kHttp);
  }

  TestAuthority ca_;
  net::EventLoop control_{"control"};
  net::IoPool pool_{2};
  std::promise<void> waiting_;
  std::promise<bool> left_;
  std::promise<ErrorCode> flood_end_;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpsTest, AnswersAndKeepsTheConnection) {
  serve();
  const auto tls = client();
  TlsClient client(server_->port());
  ASSERT_TRUE(client.shake(*tls));
  for (int i = 0; i < 3; ++i) {
    client.send(get("/echo"));
    const std::string head = client.until("\r\n\r\n");
    EXPECT_EQ(head.find("HTTP/1.1 200"), 0U) << head;
    EXPECT_EQ(client.until("/echo#"), "/echo#");
  }
  client.send(get("/echo") + get("/echo"));  // pipelined
  client.until("/echo#");
  client.until("/echo#");
}

TEST_F(HttpsTest, ALargeBodyComesBackWhole) {
  serve();
  const auto tls = client();
  TlsClient client(server_->port());
  ASSERT_TRUE(client.shake(*tls));
  std::string body(3 << 20, '\0');
  for (std::size_t i = 0; i < body.size(); ++i) {
    body[i] = static_cast<char>('a' + i * 2654435761U % 26);
  }
  client.send("POST /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: " +
              std::to_string(body.size()) + "\r\n\r\n");
  client.send(body);
  client.until("/echo#");
  EXPECT_TRUE(client.rest() == body);
  EXPECT_TRUE(client.ended_well());
}

TEST_F(HttpsTest, StreamsAreWholeAndTheirEndIsSaid) {
  serve();
  const auto tls = client();
  TlsClient client(server_->port());
  ASSERT_TRUE(client.shake(*tls));
  client.send(get("/stream"));
  client.until("data: 999\n\n");
  client.until("0\r\n\r\n");
  client.send(get("/stream", "1.0"));  // whose end is the connection's: only TLS can vouch for it
  const std::string text = client.rest();
  EXPECT_NE(text.find("data: 0\n\n"), std::string::npos);
  EXPECT_NE(text.find("data: 999\n\n"), std::string::npos);
  EXPECT_TRUE(client.ended_well());
}

TEST_F(HttpsTest, APlainClientIsToldInPlainHttp) {
  serve();
  TlsClient client(server_->port());
  client.send_raw(get("/echo"));
  const std::string text = client.rest();
  EXPECT_EQ(text.find("HTTP/1.1 400"), 0U) << text;
  EXPECT_NE(text.find("HTTPS only"), std::string::npos) << text;
}

TEST_F(HttpsTest, AClientWithoutACertificateIsRefusedWhereOneIsAskedFor) {
  serve({}, true);
  {
    const auto tls = client();
    TlsClient good(server_->port());
    ASSERT_TRUE(good.shake(*tls));
    good.send(get("/echo"));
    EXPECT_EQ(good.until("/echo#").find("HTTP/1.1 200"), 0U);
  }
  const std::unique_ptr<SSL_CTX, void (*)(SSL_CTX*)> bare(SSL_CTX_new(TLS_client_method()),
                                                          SSL_CTX_free);
  asio::io_context context;
  tcp::socket socket(context);
  socket.connect({asio::ip::make_address("127.0.0.1"), server_->port()});
  const std::unique_ptr<SSL, void (*)(SSL*)> ssl(SSL_new(bare.get()), SSL_free);
  SSL_set_fd(ssl.get(), socket.native_handle());
  (void)SSL_connect(ssl.get());  // in TLS 1.3 the refusal comes after it
  char byte = 0;
  std::size_t got = 0;
  EXPECT_NE(SSL_read_ex(ssl.get(), &byte, 1, &got), 1);
  EXPECT_EQ(ERR_GET_REASON(ERR_peek_error()), SSL_R_TLSV13_ALERT_CERTIFICATE_REQUIRED);
  ERR_clear_error();
}

TEST_F(HttpsTest, SilentAndHalfHandshakesAreCut) {
  ServerOptions options;
  options.header_deadline = 200ms;
  serve(options);
  TlsClient silent(server_->port());
  EXPECT_EQ(silent.rest(), "");
  TlsClient half(server_->port());
  half.send_raw(std::string("\x16\x03\x01\x02\x00\x01", 6));
  EXPECT_EQ(half.rest(), "");
  TlsClient noise(server_->port());
  noise.send_raw("\x16" + std::string(3000, 'x'));
  (void)noise.rest();  // perhaps an alert
  EXPECT_EQ(server_->active(), 0U);
}

TEST_F(HttpsTest, TheHandlerLearnsThatTheClientLeft) {
  serve();
  const auto tls = client();
  TlsClient client(server_->port());
  ASSERT_TRUE(client.shake(*tls));
  client.send(get("/wait"));
  ASSERT_EQ(waiting_.get_future().wait_for(10s), std::future_status::ready);
  client.close();
  auto left = left_.get_future();
  ASSERT_EQ(left.wait_for(5s), std::future_status::ready);
  EXPECT_TRUE(left.get());
}

TEST_F(HttpsTest, AStalledReaderMeetsTheWriteTimeout) {
  ServerOptions options;
  options.write_timeout = 200ms;
  serve(options);
  const auto tls = client();
  TlsClient client(server_->port());
  ASSERT_TRUE(client.shake(*tls));
  client.send(get("/flood"));
  auto end = flood_end_.get_future();
  ASSERT_EQ(end.wait_for(20s), std::future_status::ready);
  EXPECT_EQ(end.get(), ErrorCode::kDeadlineExceeded);
}

TEST_F(HttpsTest, DrainingClosesIdleConnections) {
  serve();
  const auto tls = client();
  TlsClient client(server_->port());
  ASSERT_TRUE(client.shake(*tls));
  client.send(get("/echo"));
  client.until("/echo#");
  auto drained = asio::co_spawn(control_.executor(), server_->drain(10s), asio::use_future);
  ASSERT_EQ(drained.wait_for(5s), std::future_status::ready);
  EXPECT_EQ(drained.get(), 0U);
}

}  // namespace
}  // namespace baton::http
