// The HTTP server over real loopback sockets: limits, deadlines, pipelining, streams, departures.
#include "baton/http/server.h"

#include "baton/http/body_budget.h"
#include "baton/http/routes.h"
#include "baton/net/asio.h"
#include "baton/net/async_event.h"
#include "baton/net/event_loop.h"

#include <boost/asio/connect.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/use_future.hpp>
#include <boost/asio/write.hpp>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <optional>
#include <thread>

namespace baton::http {
namespace {

using namespace std::chrono_literals;

constexpr auto kSoon = 10s;  // how long a test waits for what should take milliseconds

// A blocking client that reads with a deadline, so that a silent server fails a test, not hangs it.
class Client {
 public:
  explicit Client(std::uint16_t port) : socket_(context_) {
    socket_.connect({asio::ip::make_address("127.0.0.1"), port});
    timeval deadline{10, 0};
    setsockopt(socket_.native_handle(), SOL_SOCKET, SO_RCVTIMEO, &deadline, sizeof(deadline));
  }
  void send(std::string_view bytes) {
    boost::system::error_code ignored;
    asio::write(socket_, asio::buffer(bytes), ignored);
  }
  // Reads until `text` was seen; what came, up to and with it. Empty at the end of the stream.
  std::string until(std::string_view text) {
    while (seen_.find(text) == std::string::npos) {
      if (!more()) {
        return {};
      }
    }
    const std::size_t end = seen_.find(text) + text.size();
    std::string out = seen_.substr(0, end);
    seen_.erase(0, end);
    return out;
  }
  // Everything until the server closes.
  std::string rest() {
    while (more()) {
    }
    return std::exchange(seen_, {});
  }
  void half_close() { socket_.shutdown(tcp::socket::shutdown_send); }
  void close() { socket_.close(); }

 private:
  bool more() {
    char bytes[4096];
    const ssize_t count = ::recv(socket_.native_handle(), bytes, sizeof(bytes), 0);
    EXPECT_TRUE(count >= 0 || errno == ECONNRESET) << "nothing came in time";
    if (count <= 0) {
      return false;
    }
    seen_.append(bytes, static_cast<std::size_t>(count));
    return true;
  }
  asio::io_context context_;
  tcp::socket socket_;
  std::string seen_;
};

std::string get(std::string_view path) {
  return "GET " + std::string(path) + " HTTP/1.1\r\nHost: x\r\n\r\n";
}
std::string post(std::string_view path, std::string_view body) {
  return "POST " + std::string(path) +
         " HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" +
         std::string(body);
}

HttpResponse page(const Error& error) {
  HttpResponse response;
  response.status = error.code == ErrorCode::kNotFound           ? 404
                    : error.code == ErrorCode::kMethodNotAllowed ? 405
                    : error.code == ErrorCode::kPayloadTooLarge  ? 413
                    : error.code == ErrorCode::kUnavailable      ? 503
                    : error.code == ErrorCode::kOverloaded       ? 503
                    : error.code == ErrorCode::kInternal         ? 500
                                                                 : 400;
  response.body = "{\"error\":\"" + error.message + "\"}";
  return response;
}

asio::awaitable<void> echo(HttpRequest request, ResponseWriter& writer) {
  HttpResponse response;
  response.body =
      request.method + " " + request.path + " ? " + request.query + " # " + request.body;
  (void)co_await writer.send(std::move(response));
}

asio::awaitable<void> stream_three(HttpRequest, ResponseWriter& writer) {
  HttpResponse head;
  head.content_type = "text/event-stream";
  (void)co_await writer.start_stream(std::move(head));
  for (int event = 0; event < 3; ++event) {
    std::string bytes;
    append_event(bytes, "{\"n\":" + std::to_string(event) + "}");
    append_comment(bytes, "ping");
    (void)co_await writer.write(std::move(bytes));
  }
  (void)co_await writer.finish();
}

asio::awaitable<void> throws(HttpRequest, ResponseWriter&) {
  throw std::runtime_error("meant");
  co_return;
}
asio::awaitable<void> silent(HttpRequest, ResponseWriter&) { co_return; }
asio::awaitable<void> half_stream(HttpRequest, ResponseWriter& writer) {
  HttpResponse head;
  (void)co_await writer.start_stream(std::move(head));
  (void)co_await writer.write("half");
}

// Waits until it is released or its client leaves.
struct Waiter {
  std::promise<void> started;
  std::promise<void> gone;
  std::shared_ptr<net::AsyncEvent> wake;

  asio::awaitable<void> run(HttpRequest, ResponseWriter& writer) {
    wake = std::make_shared<net::AsyncEvent>(writer.executor());
    writer.on_client_gone([this] { wake->set(); });
    started.set_value();
    co_await wake->wait();
    if (writer.client_gone()) {
      gone.set_value();
    }
    HttpResponse response;
    response.body = "released";
    (void)co_await writer.send(std::move(response));
  }
};

class ServerTest : public ::testing::Test {
 protected:
  void serve(ServerOptions options = {}) {
    Routes routes;
    routes.add("GET", "/echo", echo);
    routes.add("POST", "/echo", echo);
    routes.add("GET", "/stream", stream_three);
    routes.add("GET", "/throws", throws);
    routes.add("GET", "/silent", silent);
    routes.add("GET", "/half", half_stream);
    for (const char* method : {"GET", "POST"}) {
      routes.add(method, "/wait", [this](HttpRequest request, ResponseWriter& writer) {
        return waiter_.run(std::move(request), writer);
      });
    }
    routes.add("GET", "/flood", [this](HttpRequest request, ResponseWriter& writer) {
      return flood(std::move(request), writer);
    });
    options.error_page = page;
    server_ = std::make_unique<HttpServer>(
        std::vector<asio::any_io_executor>{pool_.executor(0), pool_.executor(1)}, options,
        routes.handler(page));
    const Status listening = server_->listen();
    ASSERT_TRUE(listening.has_value()) << listening.error().message;
  }
  void TearDown() override {
    if (server_) {
      EXPECT_TRUE(ended(server_->drain(kSoon)).has_value());
      EXPECT_EQ(server_->active(), 0U);
      server_.reset();
    }
    pool_.stop();
  }
  std::optional<std::size_t> ended(asio::awaitable<std::size_t> drain) {
    auto future = asio::co_spawn(control_.executor(), std::move(drain), asio::use_future);
    if (future.wait_for(kSoon) != std::future_status::ready) {
      return std::nullopt;
    }
    return future.get();
  }
  asio::awaitable<void> flood(HttpRequest, ResponseWriter& writer) {
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
  static bool soon(std::promise<void>& promise) {
    return promise.get_future().wait_for(kSoon) == std::future_status::ready;
  }

  net::EventLoop control_{"control"};
  net::IoPool pool_{2};
  Waiter waiter_;
  std::promise<ErrorCode> flood_end_;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(ServerTest, AnswersAndKeepsTheConnection) {
  serve();
  Client client(server_->port());
  for (int turn = 0; turn < 3; ++turn) {
    client.send(post("/echo?a=%20b&c", "body"));
    const std::string head = client.until("\r\n\r\n");
    EXPECT_EQ(head.find("HTTP/1.1 200 OK\r\n"), 0U) << head;
    EXPECT_NE(head.find("Content-Type: application/json\r\n"), std::string::npos);
    EXPECT_EQ(head.find("Connection: close"), std::string::npos);
    EXPECT_EQ(client.until("# body"), "POST /echo ? a=%20b&c # body");
  }
  client.send("GET /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  EXPECT_NE(client.rest().find("Connection: close\r\n"), std::string::npos);
}

TEST_F(ServerTest, PipelinedRequestsAreAnsweredInOrder) {
  serve();
  Client client(server_->port());
  std::string all;
  for (int number = 0; number < 50; ++number) {
    all += post("/echo", "number " + std::to_string(number) + ".");
  }
  client.send(all);
  for (int number = 0; number < 50; ++number) {
    EXPECT_NE(client.until("number " + std::to_string(number) + "."), "");
  }
}

TEST_F(ServerTest, PipelinedBehindAWaitingHandler) {
  serve();
  Client client(server_->port());
  client.send(get("/wait"));
  ASSERT_TRUE(soon(waiter_.started));
  client.send(post("/echo", "second"));
  waiter_.wake->set();
  EXPECT_NE(client.until("released"), "");
  EXPECT_NE(client.until("# second"), "");
}

TEST_F(ServerTest, RoutesAreExact) {
  serve();
  for (const char* path : {"//echo", "/echo/", "/./echo", "/x/../echo", "/Echo", "/ECHO",
                           "/echo%20", "/%65cho", "/", "/ech", "/echo/x", "http://x/echo", "*"}) {
    Client client(server_->port());
    client.send("GET " + std::string(path) + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    EXPECT_EQ(client.rest().find("HTTP/1.1 404 "), 0U) << path;
  }
  Client client(server_->port());
  client.send("DELETE /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  const std::string answer = client.rest();
  EXPECT_EQ(answer.find("HTTP/1.1 405 "), 0U) << answer;
  EXPECT_NE(answer.find("Allow: GET, HEAD, POST\r\n"), std::string::npos);
}

TEST_F(ServerTest, HeadHasNoBody) {
  serve();
  Client client(server_->port());
  client.send("HEAD /echo HTTP/1.1\r\nHost: x\r\n\r\n" + get("/echo"));
  const std::string head = client.until("\r\n\r\n");
  EXPECT_NE(head.find("Content-Length: "), std::string::npos);
  EXPECT_EQ(client.until("HTTP/1.1 200"), "HTTP/1.1 200") << "the next answer follows at once";
}

TEST_F(ServerTest, GateSeesEveryPathBeforeTheBody) {
  ServerOptions options;
  std::atomic<int> asked{0};
  options.gate = [&](const HttpRequest& head) -> std::optional<HttpResponse> {
    asked.fetch_add(1);
    EXPECT_TRUE(head.body.empty());
    if (head.header("authorization") == "open") {
      return std::nullopt;
    }
    HttpResponse refusal;
    refusal.status = 401;
    return refusal;
  };
  options.max_body_bytes = 100;
  serve(options);
  for (const char* path : {"/echo", "//echo", "/nothing", "/echo/../echo", "/wait"}) {
    Client client(server_->port());
    client.send(get(path));
    EXPECT_EQ(client.rest().find("HTTP/1.1 401 "), 0U) << path;
  }
  {
    // A stranger's body is not waited for, whatever its size.
    Client client(server_->port());
    client.send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n");
    EXPECT_NE(client.until("HTTP/1.1 401 "), "");
  }
  EXPECT_EQ(asked.load(), 6);
  Client client(server_->port());
  client.send("GET /echo HTTP/1.1\r\nHost: x\r\nAUTHORIZATION: open\r\n\r\n");
  EXPECT_NE(client.until("HTTP/1.1 200 "), "");
}

TEST_F(ServerTest, BodyLimit) {
  ServerOptions options;
  options.max_body_bytes = 1000;
  serve(options);
  {
    Client client(server_->port());
    client.send(post("/echo", std::string(1000, 'a')));
    EXPECT_NE(client.until("HTTP/1.1 200 "), "");
  }
  {
    Client client(server_->port());
    client.send(post("/echo", std::string(1001, 'a')));
    client.half_close();
    EXPECT_EQ(client.rest().find("HTTP/1.1 413 "), 0U);
  }
  {
    Client client(server_->port());
    client.send("POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
    for (int chunk = 0; chunk < 11; ++chunk) {
      client.send("64\r\n" + std::string(100, 'a') + "\r\n");
    }
    client.half_close();
    EXPECT_EQ(client.rest().find("HTTP/1.1 413 "), 0U);
  }
  {
    Client client(server_->port());
    client.send(
        "POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: "
        "chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n");
    EXPECT_NE(client.until("# abc"), "");
  }
}

TEST_F(ServerTest, BodiesAreBoundedInSum) {
  ServerOptions options;
  options.max_body_bytes = 1000;
  options.max_bodies_bytes = 2500;
  serve(options);
  const auto taken = [this](std::size_t bytes) {
    const auto end = std::chrono::steady_clock::now() + kSoon;
    while (server_->body_bytes() != bytes && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(1ms);
    }
    return server_->body_bytes() == bytes;
  };
  const auto status = [this](std::string_view request) {
    Client client(server_->port());
    client.send(request);
    return client.until("\r\n").substr(0, 12);
  };
  const std::string head = "POST /wait HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n";
  const auto chunked = [](std::size_t bytes) {
    return "POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" +
           fmt::format("{:x}\r\n", bytes) + std::string(bytes, 'a') + "\r\n0\r\n\r\n";
  };
  {
    Client whole(server_->port());
    whole.send(head + std::string(1000, 'a'));
    ASSERT_TRUE(soon(waiter_.started));
    Client announced(server_->port());
    announced.send(head);  // words
    Client partly(server_->port());
    partly.send(head + std::string(999, 'a'));
    ASSERT_TRUE(taken(1999));
    EXPECT_EQ(status(post("/echo", std::string(501, 'a'))), "HTTP/1.1 200");
    EXPECT_EQ(status(post("/echo", std::string(502, 'a'))), "HTTP/1.1 503");
    EXPECT_EQ(status(chunked(502)), "HTTP/1.1 503");
    EXPECT_EQ(status(chunked(200)), "HTTP/1.1 200");
    EXPECT_EQ(status(get("/echo")), "HTTP/1.1 200");
  }
  ASSERT_TRUE(taken(0));
  for (int again = 0; again < 4; ++again) {
    EXPECT_EQ(status(post("/echo", std::string(1000, 'a'))), "HTTP/1.1 200");
    EXPECT_EQ(status(chunked(1000)), "HTTP/1.1 200");
  }
  ASSERT_TRUE(taken(0));
}

// Whoever may ask for a page without a key cannot leave much there.
TEST_F(ServerTest, OnlyPostHasLargeBodies) {
  serve();
  const auto first_line = [this](const std::string& method, std::size_t bytes) {
    Client client(server_->port());
    client.send(method + " /echo HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(bytes) +
                "\r\n\r\n" + std::string(bytes, 'a'));
    return client.until("\r\n").substr(0, 12);
  };
  EXPECT_EQ(first_line("GET", 64 * 1024), "HTTP/1.1 200");
  EXPECT_EQ(first_line("GET", 64 * 1024 + 1), "HTTP/1.1 413");
  EXPECT_EQ(first_line("POST", 64 * 1024 + 1), "HTTP/1.1 200");
}

TEST(BodyBudget, HoldsAndGivesBack) {
  const auto budget = std::make_shared<BodyBudget>(100);
  {
    const auto one = budget->room();
    const auto two = budget->room();
    EXPECT_TRUE(one->hold(60));
    EXPECT_FALSE(two->hold(41));
    EXPECT_TRUE(two->hold(40));
    EXPECT_FALSE(one->hold(61));
    EXPECT_TRUE(one->hold(10));
    EXPECT_EQ(budget->taken(), 50U);
    EXPECT_TRUE(two->hold(90));
  }
  EXPECT_EQ(budget->taken(), 0U);
}

TEST_F(ServerTest, MalformedRequestsAreRefused) {
  serve();
  const auto expect_refused = [&](const std::string& bytes) {
    Client client(server_->port());
    client.send(bytes);
    client.half_close();
    EXPECT_EQ(client.rest().find("HTTP/1.1 400 "), 0U) << bytes;
  };
  for (const char* bytes :
       {"nonsense\r\n\r\n", "GET /echo HTTP/9.9\r\n\r\n", "GET  HTTP/1.1\r\n\r\n",
        "GET /echo HTTP/1.1\r\nHost: x\r\nbad header\r\n\r\n", "GET /echo HTTP/1.1\r\n\r\n",
        "GET /echo HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", "GET /echo HTTP/1.1\nHost: x\n\n"}) {
    expect_refused(bytes);
  }
  for (const char* rest : {"Content-Length: x\r\n\r\n", "Content-Length: -1\r\n\r\n",
                           "Content-Length: 1\r\nContent-Length: 2\r\n\r\na",
                           "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
                           "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
                           "Transfer-Encoding: gzip\r\n\r\n",
                           "Transfer-Encoding: gzip, chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",
                           "Transfer-Encoding: chunked\r\n\r\nzz\r\n",
                           "Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n"}) {
    expect_refused("POST /echo HTTP/1.1\r\nHost: x\r\n" + std::string(rest));
  }
}

TEST_F(ServerTest, EncodedBodiesAreRefused) {
  serve();
  for (const char* encoding :
       {"gzip", "br", "identity, gzip", "identity\r\nContent-Encoding: gzip"}) {
    Client client(server_->port());
    client.send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Encoding: " +
                std::string(encoding) + "\r\n\r\na");
    client.half_close();
    EXPECT_EQ(client.rest().find("HTTP/1.1 415 "), 0U) << encoding;
  }
  Client client(server_->port());
  client.send(
      "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Encoding: "
      "identity\r\n\r\nabc");
  EXPECT_NE(client.until("# abc"), "");
}

TEST_F(ServerTest, HeaderLimit) {
  ServerOptions options;
  options.max_header_bytes = 2048;
  serve(options);
  Client client(server_->port());
  client.send("GET /echo HTTP/1.1\r\nX: " + std::string(4096, 'a') + "\r\n\r\n");
  client.half_close();
  EXPECT_EQ(client.rest().find("HTTP/1.1 431 "), 0U);
}

TEST_F(ServerTest, SlowHeadersAndBodiesAreCut) {
  ServerOptions options;
  options.header_deadline = 50ms;
  options.body_deadline = 50ms;
  options.idle_timeout = 50ms;
  serve(options);
  for (const char* bytes :
       {"", "GET /echo HT", "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nabc"}) {
    Client client(server_->port());
    client.send(bytes);
    EXPECT_EQ(client.rest(), "") << bytes;
  }
}

TEST_F(ServerTest, ExpectContinue) {
  serve();
  Client client(server_->port());
  client.send(
      "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_EQ(client.until("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  client.send("abc");
  EXPECT_NE(client.until("# abc"), "");
}

// The name of a chunk has no end: no more of it is kept than of any other line.
TEST_F(ServerTest, AnEndlessChunkExtensionIsCut) {
  serve();
  Client client(server_->port());
  client.send("POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1;");
  const std::string more(64U << 10U, 'a');
  for (int i = 0; i < 16; ++i) {
    client.send(more);
  }
  EXPECT_EQ(client.until("\r\n").substr(0, 12), "HTTP/1.1 413");
}

TEST_F(ServerTest, StreamsInChunks) {
  serve();
  Client client(server_->port());
  client.send(get("/stream") + get("/echo"));
  const std::string head = client.until("\r\n\r\n");
  EXPECT_NE(head.find("Transfer-Encoding: chunked\r\n"), std::string::npos);
  EXPECT_NE(head.find("Content-Type: text/event-stream\r\n"), std::string::npos);
  EXPECT_EQ(client.until("0\r\n\r\n"),
            "16\r\ndata: {\"n\":0}\n\n: ping\n\r\n16\r\ndata: {\"n\":1}\n\n: ping\n\r\n"
            "16\r\ndata: {\"n\":2}\n\n: ping\n\r\n0\r\n\r\n");
  EXPECT_NE(client.until("GET /echo"), "") << "the connection lives on";
}

TEST_F(ServerTest, StreamsToOldClientsUntilClose) {
  serve();
  Client client(server_->port());
  client.send("GET /stream HTTP/1.0\r\n\r\n");
  const std::string answer = client.rest();
  EXPECT_EQ(answer.find("Transfer-Encoding"), std::string::npos);
  EXPECT_NE(answer.find("Connection: close"), std::string::npos);
  EXPECT_NE(answer.find("\r\n\r\ndata: {\"n\":0}\n\n"), std::string::npos);
}

TEST_F(ServerTest, BrokenHandlers) {
  serve();
  for (const char* path : {"/throws", "/silent"}) {
    Client client(server_->port());
    client.send(get(path));
    EXPECT_NE(client.until("HTTP/1.1 500 "), "") << path;
  }
  Client client(server_->port());
  client.send(get("/half"));
  const std::string answer = client.rest();
  EXPECT_NE(answer.find("half"), std::string::npos);
  EXPECT_EQ(answer.find("0\r\n\r\n"), std::string::npos) << "it must not look complete";
}

TEST_F(ServerTest, HandlerLearnsThatTheClientLeft) {
  serve();
  {
    Client client(server_->port());
    client.send(get("/wait"));
    ASSERT_TRUE(soon(waiter_.started));
    EXPECT_EQ(server_->active(), 1U);
  }
  EXPECT_TRUE(soon(waiter_.gone));
}

TEST_F(ServerTest, StoppingTellsHandlersToo) {
  serve();
  Client client(server_->port());
  client.send(get("/wait"));
  ASSERT_TRUE(soon(waiter_.started));
  server_->stop();
  EXPECT_TRUE(soon(waiter_.gone));
  EXPECT_EQ(client.rest(), "");
}

TEST_F(ServerTest, WriteTimeoutEndsAStalledReader) {
  ServerOptions options;
  options.write_timeout = 100ms;
  serve(options);
  Client client(server_->port());
  client.send(get("/flood"));
  auto end = flood_end_.get_future();
  ASSERT_EQ(end.wait_for(kSoon), std::future_status::ready);
  EXPECT_EQ(end.get(), ErrorCode::kDeadlineExceeded);
}

TEST_F(ServerTest, ClientGoneEndsAStream) {
  serve();
  Client client(server_->port());
  client.send(get("/flood"));
  EXPECT_NE(client.until("xxxx"), "");
  client.close();
  auto end = flood_end_.get_future();
  ASSERT_EQ(end.wait_for(kSoon), std::future_status::ready);
  EXPECT_EQ(end.get(), ErrorCode::kCancelled);
}

TEST_F(ServerTest, ConnectionsAreBounded) {
  ServerOptions options;
  options.max_connections = 2;
  serve(options);
  Client first(server_->port());
  Client second(server_->port());
  for (Client* client : {&first, &second}) {
    client->send(get("/echo"));
    EXPECT_NE(client->until("HTTP/1.1 200 "), "");
  }
  Client third(server_->port());
  const std::string answer = third.rest();
  EXPECT_EQ(answer.find("HTTP/1.1 503 "), 0U) << answer;
  EXPECT_EQ(server_->connections(), 2U);
}

TEST_F(ServerTest, DrainWaitsForRequestsUnderWay) {
  serve();
  Client idle(server_->port());
  idle.send(get("/echo"));
  EXPECT_NE(idle.until("HTTP/1.1 200 "), "");
  Client busy(server_->port());
  busy.send(get("/wait"));
  ASSERT_TRUE(soon(waiter_.started));
  auto drained = asio::co_spawn(control_.executor(), server_->drain(kSoon), asio::use_future);
  idle.rest();  // the idle connection is closed at once
  EXPECT_EQ(server_->active(), 1U);
  waiter_.wake->set();
  const std::string answer = busy.rest();
  EXPECT_NE(answer.find("released"), std::string::npos);
  EXPECT_NE(answer.find("Connection: close"), std::string::npos);
  ASSERT_EQ(drained.wait_for(kSoon), std::future_status::ready);
  EXPECT_EQ(drained.get(), 0U);
  boost::system::error_code refused;
  asio::io_context context;
  tcp::socket late(context);
  late.connect({asio::ip::make_address("127.0.0.1"), server_->port()}, refused);
  EXPECT_TRUE(refused) << "nothing listens any more";
}

TEST_F(ServerTest, DrainCutsWhatIsLeftAtItsDeadline) {
  serve();
  Client busy(server_->port());
  busy.send(get("/wait"));
  ASSERT_TRUE(soon(waiter_.started));
  EXPECT_EQ(ended(server_->drain(20ms)), 1U);
  EXPECT_TRUE(soon(waiter_.gone));
  EXPECT_EQ(busy.rest(), "");
}

TEST_F(ServerTest, PortInUseIsNamed) {
  serve();
  ServerOptions options;
  options.port = server_->port();
  HttpServer second(pool_.executor(0), options, echo);
  const Status status = second.listen();
  ASSERT_FALSE(status.has_value());
  EXPECT_NE(status.error().message.find("127.0.0.1:" + std::to_string(server_->port())),
            std::string::npos)
      << status.error().message;
}

TEST(Events, AsTheyAreSent) {
  std::string out;
  append_event(out, "{}");
  append_event(out, "[1]", "error");
  append_event(out, "x", {}, "7.1");
  append_comment(out, "ping");
  EXPECT_EQ(out, "data: {}\n\nevent: error\ndata: [1]\n\nid: 7.1\ndata: x\n\n: ping\n");
}

TEST(HttpResponse, HeaderValuesCannotBreakOut) {
  net::IoPool pool(1);
  Routes routes;
  routes.add("GET", "/", [](HttpRequest, ResponseWriter& writer) -> asio::awaitable<void> {
    HttpResponse response;
    response.headers.emplace_back("X", "a\r\nY: b");
    (void)co_await writer.send(std::move(response));
  });
  HttpServer server(pool.executor(0), {}, routes.handler(page));
  ASSERT_TRUE(server.listen().has_value());
  Client client(server.port());
  client.send(get("/"));
  EXPECT_NE(client.until("\r\n\r\n").find("X: a  Y: b\r\n"), std::string::npos);
  server.stop();
  client.rest();
  pool.stop();
}

}  // namespace
}  // namespace baton::http
