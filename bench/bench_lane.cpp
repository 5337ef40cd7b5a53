// What a lane of UCX moves on one machine, beside a socket: frames of 4 MiB between two threads, in
// GB/s and in CPU seconds of each side's thread per GB. One line of JSON for each way.
// Usage: bench_lane [GIB]
#include "baton/base/check.h"
#include "baton/net/event_loop.h"
#include "baton/net/tcp.h"
#include "baton/ucx/fabric.h"

#include <boost/asio/use_future.hpp>
#include <fmt/format.h>

#include "bench/thread_clock.h"
#include <chrono>
#include <cstdlib>
#include <functional>
#include <future>
#include <string>

namespace {

using namespace baton;  // NOLINT(google-build-using-namespace): a program of its own
using bench::thread_cpu_s;
using std::chrono::seconds;

constexpr std::size_t kFrameBytes = std::size_t{4} << 20;  // as handoffs send
constexpr std::size_t kReadBytes = std::size_t{256} << 10;

void check(const Status& status) {
  BATON_CHECK(status.has_value(), "{}", status ? "" : status.error().message);
}

asio::awaitable<double> send_by_lane(net::Lane* lane, std::size_t frames) {
  const std::vector<std::byte> frame(kFrameBytes, std::byte{0x5a});
  const double begin = thread_cpu_s();
  for (std::size_t i = 0; i < frames; ++i) {
    std::vector<std::byte> header(96);
    std::vector<std::span<const std::byte>> payload{frame};
    check(co_await lane->send(std::move(header), std::move(payload), seconds(60)));
  }
  co_return thread_cpu_s() - begin;
}

asio::awaitable<double> receive_by_lane(net::Lane* lane, std::size_t frames) {
  std::vector<std::byte> into(kFrameBytes);
  const double begin = thread_cpu_s();
  for (std::size_t i = 0; i < frames; ++i) {
    auto message = co_await lane->next();
    BATON_CHECK(message.has_value());
    std::vector<std::span<std::byte>> memory{into};
    check(co_await lane->take(std::move(memory), seconds(60)));
  }
  co_return thread_cpu_s() - begin;
}

asio::awaitable<double> send_by_socket(net::HostPort to, std::size_t frames) {
  const net::SocketOptions options;
  auto socket = co_await net::connect(to, seconds(5), options);
  BATON_CHECK(socket.has_value(), "{}", socket.error().message);
  net::TcpStream stream(*std::move(socket));
  std::vector<std::byte> frame(kFrameBytes, std::byte{0x5a});
  const double begin = thread_cpu_s();
  for (std::size_t i = 0; i < frames; ++i) {
    std::vector<iovec> parts(1, iovec{frame.data(), frame.size()});
    check(co_await stream.write_all(std::move(parts), seconds(60)));
  }
  co_return thread_cpu_s() - begin;
}

asio::awaitable<double> receive_by_socket(tcp::acceptor* acceptor, std::size_t frames) {
  auto accepted = co_await acceptor->async_accept(asio::use_awaitable);
  net::TcpStream stream(std::move(accepted));
  std::vector<std::byte> into(kFrameBytes);
  const double begin = thread_cpu_s();
  for (std::size_t left = frames * kFrameBytes; left > 0;) {
    const std::size_t at = left % kFrameBytes;
    const std::span<std::byte> piece = std::span(into)
                                           .subspan(at == 0 ? 0 : kFrameBytes - at)
                                           .first(std::min(at == 0 ? kFrameBytes : at, kReadBytes));
    auto got = co_await stream.read_some(piece, seconds(60));
    BATON_CHECK(got.has_value());
    left -= *got;
  }
  co_return thread_cpu_s() - begin;
}

void print(const std::string& way, std::size_t frames, std::future<double> sent,
           std::future<double> received, std::chrono::steady_clock::time_point begin) {
  const double gigabytes = 1e-9 * static_cast<double>(frames * kFrameBytes);
  const double send_s = sent.get() / gigabytes;
  const double receive_s = received.get() / gigabytes;
  const double took =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  fmt::print(
      "{{\"way\":\"{}\",\"gigabytes\":{:.2f},\"gb_per_s\":{:.2f},\"cpu_s_per_gb\":"
      "{{\"send\":{:.3f},\"receive\":{:.3f}}}}}\n",
      way, gigabytes, gigabytes / took, send_s, receive_s);
}

void by_socket(std::size_t frames) {
  net::EventLoop sending("bench-send");
  net::EventLoop receiving("bench-receive");
  auto acceptor = net::listen(receiving.executor(), net::HostPort{"127.0.0.1", 0});
  BATON_CHECK(acceptor.has_value());
  const net::HostPort address = net::local_address(*acceptor);
  const auto begin = std::chrono::steady_clock::now();
  auto received =
      asio::co_spawn(receiving.executor(), receive_by_socket(&*acceptor, frames), asio::use_future);
  auto sent = asio::co_spawn(sending.executor(), send_by_socket(address, frames), asio::use_future);
  print("socket", frames, std::move(sent), std::move(received), begin);
  acceptor->close();
}

std::unique_ptr<net::Lane> open(net::Fabric* fabric, net::EventLoop* loop) {
  auto lane = fabric->open_lane(loop->executor());
  BATON_CHECK(lane.has_value(), "{}", lane ? "" : lane.error().message);
  return *std::move(lane);
}

void by_lane(const std::string& transports, std::size_t frames) {
  auto fabric = ucx::open_fabric({transports});
  BATON_CHECK(fabric.has_value(), "{}", fabric ? "" : fabric.error().message);
  net::EventLoop sending("bench-send");
  net::EventLoop receiving("bench-receive");
  auto from = open(fabric->get(), &sending);
  auto to = open(fabric->get(), &receiving);
  check(to->connect(from->address()));
  check(from->connect(to->address()));
  const auto begin = std::chrono::steady_clock::now();
  auto received =
      asio::co_spawn(receiving.executor(), receive_by_lane(to.get(), frames), asio::use_future);
  auto sent =
      asio::co_spawn(sending.executor(), send_by_lane(from.get(), frames), asio::use_future);
  print("ucx " + transports, frames, std::move(sent), std::move(received), begin);
  sending.stop();
  receiving.stop();
}

}  // namespace

int main(int argc, char** argv) {
  const std::size_t frames = (argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 2) * 256;
  by_socket(frames);
  for (const char* transports : {"tcp", "shm,self", "posix,self"}) {
    by_lane(transports, frames);
  }
  return 0;
}
