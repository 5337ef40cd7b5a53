// TLS: what is wrong with the files, and TcpStream over it on loopback: bytes, deadlines, closing,
// and every way in which two sides do not fit.
#include "baton/net/event_loop.h"
#include "baton/net/stream_pair_for_test.h"

#include <gtest/gtest.h>

#include "tests/support/certificates.h"
#include <cstring>
#include <future>

namespace baton::net {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::TestAuthority;

// ---- files ------------------------------------------------------------------------------------

const TlsNames kNames{"--the-cert", "--the-key", "--the-ca"};

std::string load_error(const TlsFiles& files) {
  const auto made = TlsContext::load(files, kNames, TlsUse::kNodes);
  EXPECT_FALSE(made.has_value());
  return made ? "" : made.error().message;
}

void expect_starts(const std::string& message, const std::string& flag, const std::string& word) {
  EXPECT_EQ(message.rfind(flag + ": ", 0), 0U) << message;
  EXPECT_NE(message.find(word), std::string::npos) << message;
}

TEST(TlsFiles, EachMistakeNamesItsFlag) {
  TestAuthority ca;
  const TlsFiles good = ca.issue("a");
  const TlsFiles other = ca.issue("b");
  EXPECT_TRUE(TlsContext::load(good, kNames, TlsUse::kNodes).has_value());
  expect_starts(load_error({"/nowhere/c.pem", good.key, good.ca}), "--the-cert", "/nowhere/c.pem");
  expect_starts(load_error({good.cert, "/nowhere/k.pem", good.ca}), "--the-key", "/nowhere/k.pem");
  expect_starts(load_error({good.cert, good.key, "/nowhere/a.pem"}), "--the-ca", "/nowhere/a.pem");
  expect_starts(load_error({good.cert, other.key, good.ca}), "--the-key", "is not the key of");
  expect_starts(load_error({good.key, good.key, good.ca}), "--the-cert", "not a certificate");
  expect_starts(load_error({good.cert, good.cert, good.ca}), "--the-key", "not a private key");
  expect_starts(load_error({good.cert, good.key, good.key}), "--the-ca", "no CA certificate");
  expect_starts(load_error({"/tmp", good.key, good.ca}), "--the-cert", "/tmp");
  const std::string empty = ca.write("empty.pem", "");
  expect_starts(load_error({empty, good.key, good.ca}), "--the-cert", "empty");
  // One that is not valid now is for the peers to judge: the clock may be wrong.
  EXPECT_TRUE(TlsContext::load(ca.issue("old", -7200, -3600), kNames, TlsUse::kNodes).has_value());
}

// ---- streams ----------------------------------------------------------------------------------

asio::awaitable<void> start(TcpStream* stream, std::shared_ptr<const TlsContext> context,
                            TlsRole role, Status* status, Duration stall = seconds(10)) {
  *status = co_await stream->start_tls(std::move(context), role, stall);
  if (!*status) {
    stream->shutdown_send();
  }
}

asio::awaitable<void> write(TcpStream* stream, std::vector<iovec> parts, Status* status,
                            Duration stall = seconds(10)) {
  *status = co_await stream->write_all(std::move(parts), stall);
}

asio::awaitable<void> read(TcpStream* stream, std::span<std::byte> into, Status* status,
                           Duration stall = seconds(10)) {
  *status = co_await stream->read_exact(into, stall);
}

std::vector<std::byte> noise(std::size_t bytes) {
  std::vector<std::byte> data(bytes);
  for (std::size_t i = 0; i < data.size(); ++i) {
    data[i] = static_cast<std::byte>(i * 2654435761U >> 13);
  }
  return data;
}

class TlsStreams : public StreamPairTest {
 protected:
  // Both ends' handshakes, to their ends.
  void shake(std::shared_ptr<const TlsContext> client, std::shared_ptr<const TlsContext> server) {
    run(start(pair_.client.get(), std::move(client), TlsRole::kClient, &client_status_),
        start(pair_.server.get(), std::move(server), TlsRole::kServer, &server_status_));
  }
  void shake() {
    shake(ca_.node("client"), ca_.node("server"));
    ASSERT_TRUE(client_status_.has_value()) << client_status_.error().message;
    ASSERT_TRUE(server_status_.has_value()) << server_status_.error().message;
  }
  static void expect_mismatch(const Status& status, const std::string& word) {
    ASSERT_FALSE(status.has_value());
    EXPECT_EQ(status.error().param, "tls") << status.error().message;
    EXPECT_NE(status.error().message.find(word), std::string::npos) << status.error().message;
  }

  TestAuthority ca_;
  Status client_status_;
  Status server_status_;
};

TEST_F(TlsStreams, ManyPartsArriveWholeBothWaysAtOnce) {
  shake();
  const auto sent = noise(10 << 20);
  std::vector<iovec> parts;  // odd sizes, empty ones, some larger than a record
  std::size_t at = 0;
  for (std::size_t i = 0; at < sent.size(); ++i) {
    const std::size_t bytes = std::min(sent.size() - at, i % 100 == 7 ? 70'000 + i : i % 3001);
    parts.push_back(iovec{const_cast<std::byte*>(sent.data()) + at, bytes});
    at += bytes;
  }
  std::vector<std::byte> there(sent.size());
  std::vector<std::byte> back(sent.size());
  Status status[4];
  run(write(pair_.client.get(), parts, &status[0]), read(pair_.server.get(), there, &status[1]),
      write(pair_.server.get(), parts, &status[2]), read(pair_.client.get(), back, &status[3]));
  for (const Status& one : status) {
    EXPECT_TRUE(one.has_value());
  }
  EXPECT_TRUE(sent == there);
  EXPECT_TRUE(sent == back);
}

TEST_F(TlsStreams, GoesOnOnAnotherExecutor) {
  shake();
  EventLoop loop("test-other");
  const auto sent = noise(300'000);
  auto moved = pair_.server->release_to(loop.executor());
  ASSERT_TRUE(moved->is_open());
  EXPECT_FALSE(pair_.server->is_open());
  std::vector<std::byte> got(sent.size());
  Status wrote;
  Status received;
  std::promise<void> done;
  asio::co_spawn(loop.executor(), read(moved.get(), got, &received),
                 [&](const std::exception_ptr&) { done.set_value(); });
  run(write(pair_.client.get(), {iovec{const_cast<std::byte*>(sent.data()), sent.size()}}, &wrote));
  done.get_future().get();
  EXPECT_TRUE(wrote.has_value());
  ASSERT_TRUE(received.has_value()) << received.error().message;
  EXPECT_TRUE(sent == got);
  std::promise<void> closed;
  asio::post(loop.executor(), [&] {
    moved.reset();
    closed.set_value();
  });
  closed.get_future().get();
}

TEST_F(TlsStreams, ClosingIsSeen) {
  shake();
  EXPECT_TRUE(pair_.client->looks_alive());
  EXPECT_TRUE(pair_.server->looks_alive());
  pair_.server->shutdown_send();
  std::vector<std::byte> into(1);
  Status status;
  run(read(pair_.client.get(), into, &status));
  ASSERT_FALSE(status.has_value());
  EXPECT_EQ(status.error().code, ErrorCode::kPeerLost);
  EXPECT_FALSE(pair_.client->looks_alive());
  pair_.client->close();
  run(read(pair_.server.get(), into, &status));
  ASSERT_FALSE(status.has_value());
  EXPECT_EQ(status.error().code, ErrorCode::kPeerLost);
}

TEST_F(TlsStreams, AStalledReaderMeetsTheDeadline) {
  shake();
  std::vector<std::byte> sent(64 << 20);
  Status wrote;
  run(write(pair_.client.get(), {iovec{sent.data(), sent.size()}}, &wrote, milliseconds(50)));
  ASSERT_FALSE(wrote.has_value());
  EXPECT_EQ(wrote.error().code, ErrorCode::kDeadlineExceeded);
  EXPECT_FALSE(pair_.client->is_open());
}

// Client and server with a man between them, who notes what passes and flips one bit of the byte
// `flip_at` of it.
asio::awaitable<void> relay(TcpStream* from, TcpStream* to, std::vector<std::byte>* seen,
                            std::size_t flip_at) {
  std::vector<std::byte> bytes(4096);
  while (true) {
    const std::span<std::byte> into(bytes);
    auto got = co_await from->read_some(into, seconds(10));
    if (!got) {
      to->shutdown_send();
      co_return;
    }
    if (flip_at >= seen->size() && flip_at < seen->size() + *got) {
      bytes[flip_at - seen->size()] ^= std::byte{1};
    }
    seen->insert(seen->end(), bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(*got));
    std::vector<iovec> parts(1, iovec{bytes.data(), *got});
    (void)co_await to->write_all(std::move(parts), seconds(10));
  }
}

class TlsRelay : public TlsStreams {
 protected:
  static constexpr std::size_t kNever = static_cast<std::size_t>(-1);

  // The client says `text`; what the server makes of it. `seen_`: all that the client sent.
  Status say(const std::string& text, std::size_t flip_at) {
    StreamPair behind;
    run(connect_pair(&pair_));
    run(connect_pair(&behind));
    seen_.clear();
    std::vector<std::byte> back;
    Status client;
    Status server;
    got_.assign(text.size(), std::byte{0});
    const auto client_side = [](TcpStream* stream, std::shared_ptr<const TlsContext> tls,
                                std::string what, Status* status) -> asio::awaitable<void> {
      *status = co_await stream->start_tls(std::move(tls), TlsRole::kClient, seconds(10));
      if (*status) {
        std::vector<iovec> parts(1, iovec{what.data(), what.size()});
        *status = co_await stream->write_all(std::move(parts), seconds(10));
      }
      stream->shutdown_send();
    };
    const auto server_side = [](TcpStream* stream, std::shared_ptr<const TlsContext> tls,
                                std::span<std::byte> into,
                                Status* status) -> asio::awaitable<void> {
      *status = co_await stream->start_tls(std::move(tls), TlsRole::kServer, seconds(10));
      if (*status) {
        *status = co_await stream->read_exact(into, seconds(10));
      }
      stream->shutdown_send();
    };
    run(client_side(pair_.client.get(), ca_.node("client"), text, &client),
        relay(pair_.server.get(), behind.client.get(), &seen_, flip_at),
        relay(behind.client.get(), pair_.server.get(), &back, kNever),
        server_side(behind.server.get(), ca_.node("server"), got_, &server));
    return server;
  }

  std::vector<std::byte> seen_;
  std::vector<std::byte> got_;
};

TEST_F(TlsRelay, WhoListensSeesNothingAndWhoFlipsABitIsNoticed) {
  const std::string text(5000, 'p');  // would be a long run of one byte in the clear
  const Status good = say(text, kNever);
  ASSERT_TRUE(good.has_value()) << good.error().message;
  EXPECT_EQ(std::memcmp(got_.data(), text.data(), text.size()), 0);
  const std::string wire(reinterpret_cast<const char*>(seen_.data()), seen_.size());
  EXPECT_EQ(wire.find("pppppppp"), std::string::npos);
  ASSERT_GT(seen_.size(), text.size());
  // Inside the sealed text: its record is near the end, before the goodbye.
  const Status bad = say(text, seen_.size() - 2500);
  ASSERT_FALSE(bad.has_value());
  EXPECT_EQ(bad.error().code, ErrorCode::kPeerLost);
}

// ---- ends that do not fit ---------------------------------------------------------------------

TEST_F(TlsStreams, AnotherCa) {
  TestAuthority other;
  shake(other.node("client"), ca_.node("server"));
  expect_mismatch(client_status_, "its certificate is not accepted");  // and says so:
  expect_mismatch(server_status_, "refused us");
}

// In TLS 1.3 the client has finished before the server looks at its certificate.
TEST_F(TlsStreams, AClientOfAnotherCaThatTrustsTheServer) {
  TestAuthority other;
  TlsFiles files = other.issue("client");
  files.ca = ca_.ca_file();
  Status client;
  std::vector<std::byte> into(1);
  const auto greet_and_read = [](TcpStream* stream, std::shared_ptr<const TlsContext> context,
                                 std::span<std::byte> bytes,
                                 Status* status) -> asio::awaitable<void> {
    *status = co_await stream->start_tls(std::move(context), TlsRole::kClient, seconds(10));
    if (*status) {
      *status = co_await stream->read_exact(bytes, seconds(10));
    }
    stream->close();
  };
  run(greet_and_read(pair_.client.get(), other.context(files), into, &client),
      start(pair_.server.get(), ca_.node("server"), TlsRole::kServer, &server_status_));
  expect_mismatch(server_status_, "its certificate is not accepted");
  expect_mismatch(client, "refused us");
}

TEST_F(TlsStreams, ExpiredOnEitherSide) {
  shake(ca_.node("client"), ca_.context(ca_.issue("server", -7200, -3600)));
  expect_mismatch(client_status_, "certificate has expired");
  expect_mismatch(server_status_, "expired");
  run(connect_pair(&pair_));
  shake(ca_.context(ca_.issue("client", -7200, -3600)), ca_.node("server"));
  expect_mismatch(server_status_, "certificate has expired");
  run(connect_pair(&pair_));
  shake(ca_.context(ca_.issue("client", 3600, 7200)), ca_.node("server"));
  expect_mismatch(server_status_, "not yet valid");
}

TEST_F(TlsStreams, AClientThatSpeaksPlain) {
  std::vector<std::byte> hello(64, std::byte{'B'});
  Status wrote;
  run(start(pair_.server.get(), ca_.node("server"), TlsRole::kServer, &server_status_),
      [](TcpStream* stream, std::vector<std::byte>* bytes,
         Status* status) -> asio::awaitable<void> {
        std::vector<iovec> parts(1, iovec{bytes->data(), bytes->size()});
        *status = co_await stream->write_all(std::move(parts), seconds(1));
        stream->shutdown_send();
      }(pair_.client.get(), &hello, &wrote));
  EXPECT_TRUE(wrote.has_value());
  expect_mismatch(server_status_, "does not speak TLS");
}

TEST_F(TlsStreams, AServerThatClosesOnUs) {
  pair_.server->close();
  run(start(pair_.client.get(), ca_.node("client"), TlsRole::kClient, &client_status_));
  expect_mismatch(client_status_, "does it speak TLS?");
  EXPECT_EQ(client_status_.error().code, ErrorCode::kPeerLost);
}

TEST_F(TlsStreams, ASilentServerMeetsTheDeadline) {
  run(start(pair_.client.get(), ca_.node("client"), TlsRole::kClient, &client_status_,
            milliseconds(50)));
  ASSERT_FALSE(client_status_.has_value());
  EXPECT_EQ(client_status_.error().code, ErrorCode::kDeadlineExceeded);
}

}  // namespace
}  // namespace baton::net
