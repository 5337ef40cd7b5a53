// What TLS costs a node connection: bytes over loopback through TcpStream, in the clear and over
// mutual TLS, in CPU seconds of each side's thread (so that other work on the machine does not
// count), beside OpenSSL's AES-128-GCM alone. One line of JSON.
// Usage: bench_tls [GIB]
#include "baton/base/check.h"
#include "baton/net/event_loop.h"
#include "baton/net/tcp.h"

#include <boost/asio/use_future.hpp>
#include <fmt/format.h>
#include <openssl/evp.h>

#include "bench/thread_clock.h"
#include "tests/support/certificates.h"
#include <array>
#include <cstdlib>
#include <future>
#include <string>

namespace {

using namespace baton;  // NOLINT(google-build-using-namespace): a program of its own
using bench::thread_cpu_s;
using std::chrono::seconds;

constexpr std::size_t kFrameBytes = std::size_t{4} << 20;  // as handoffs send
constexpr std::size_t kReadBytes = std::size_t{256} << 10;

struct Cost {
  double cpu_s = 0;
  Status status;
};

using Context = std::shared_ptr<const net::TlsContext>;

asio::awaitable<Cost> send(net::HostPort to, Context tls, std::size_t frames) {
  Cost cost;
  const net::SocketOptions options;
  auto socket = co_await net::connect(to, seconds(5), options);
  BATON_CHECK(socket.has_value(), "{}", socket.error().message);
  net::TcpStream stream(*std::move(socket));
  if (tls) {
    cost.status = co_await stream.start_tls(std::move(tls), net::TlsRole::kClient, seconds(10));
  }
  std::vector<std::byte> frame(kFrameBytes, std::byte{0x5a});
  const double begin = thread_cpu_s();
  for (std::size_t i = 0; i < frames && cost.status; ++i) {
    std::vector<iovec> parts(1, iovec{frame.data(), frame.size()});
    cost.status = co_await stream.write_all(std::move(parts), seconds(60));
  }
  cost.cpu_s = thread_cpu_s() - begin;
  co_return cost;
}

asio::awaitable<Cost> receive(tcp::acceptor* acceptor, Context tls, std::size_t frames) {
  Cost cost;
  auto accepted = co_await acceptor->async_accept(asio::use_awaitable);
  net::TcpStream stream(std::move(accepted));
  if (tls) {
    cost.status = co_await stream.start_tls(std::move(tls), net::TlsRole::kServer, seconds(10));
  }
  std::vector<std::byte> into(kReadBytes);
  const double begin = thread_cpu_s();
  std::size_t left = frames * kFrameBytes;
  while (left > 0 && cost.status) {
    const std::span<std::byte> piece = std::span(into).first(std::min(left, into.size()));
    auto got = co_await stream.read_some(piece, seconds(60));
    if (!got) {
      cost.status = fail(got.error());
    } else {
      left -= *got;
    }
  }
  cost.cpu_s = thread_cpu_s() - begin;
  co_return cost;
}

// CPU seconds of both sides.
std::array<double, 2> transfer(const Context& client, const Context& server, std::size_t frames) {
  net::EventLoop sending("bench-send");
  net::EventLoop receiving("bench-receive");
  auto acceptor = net::listen(receiving.executor(), net::HostPort{"127.0.0.1", 0});
  BATON_CHECK(acceptor.has_value());
  const net::HostPort address = net::local_address(*acceptor);
  auto sent = asio::co_spawn(sending.executor(), send(address, client, frames), asio::use_future);
  auto received =
      asio::co_spawn(receiving.executor(), receive(&*acceptor, server, frames), asio::use_future);
  const Cost cost[] = {sent.get(), received.get()};
  for (const Cost& one : cost) {
    BATON_CHECK(one.status.has_value(), "{}", one.status.error().message);
  }
  acceptor->close();
  sending.stop();
  receiving.stop();
  return {cost[0].cpu_s, cost[1].cpu_s};
}

// CPU seconds to seal the same bytes in records of 16 KiB, and nothing else.
double cipher_alone(std::size_t frames) {
  std::vector<unsigned char> plain(16 << 10, 0x5a);
  std::vector<unsigned char> sealed(plain.size());
  const std::array<unsigned char, 16> key{1};
  std::array<unsigned char, 12> nonce{};
  std::array<unsigned char, 16> tag{};
  EVP_CIPHER_CTX* context = EVP_CIPHER_CTX_new();
  BATON_CHECK(EVP_EncryptInit_ex(context, EVP_aes_128_gcm(), nullptr, key.data(), nullptr) == 1);
  const double begin = thread_cpu_s();
  for (std::size_t i = 0; i < frames * (kFrameBytes / plain.size()); ++i) {
    ++nonce[i % nonce.size()];
    int bytes = 0;
    EVP_EncryptInit_ex(context, nullptr, nullptr, nullptr, nonce.data());
    EVP_EncryptUpdate(context, sealed.data(), &bytes, plain.data(), static_cast<int>(plain.size()));
    EVP_EncryptFinal_ex(context, sealed.data() + bytes, &bytes);
    EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_GCM_GET_TAG, 16, tag.data());
  }
  const double cpu_s = thread_cpu_s() - begin;
  EVP_CIPHER_CTX_free(context);
  return cpu_s;
}

}  // namespace

int main(int argc, char** argv) {
  const std::size_t frames = (argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 4) * 256;
  const double gigabytes = 1e-9 * static_cast<double>(frames * kFrameBytes);
  testing::TestAuthority authority;
  const Context client = authority.node("client");
  const Context server = authority.node("server");
  transfer(nullptr, nullptr, frames / 8 + 1);  // warm
  const auto plain = transfer(nullptr, nullptr, frames);
  const auto tls = transfer(client, server, frames);
  const double cipher = cipher_alone(frames);
  fmt::print(
      "{{\"gigabytes\":{:.2f},\"cpu_s_per_gb\":{{\"plain_send\":{:.3f},\"plain_receive\":"
      "{:.3f},\"tls_send\":{:.3f},\"tls_receive\":{:.3f},\"aes_128_gcm\":{:.3f}}}}}\n",
      gigabytes, plain[0] / gigabytes, plain[1] / gigabytes, tls[0] / gigabytes, tls[1] / gigabytes,
      cipher / gigabytes);
  return 0;
}
