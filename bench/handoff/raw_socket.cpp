#include "bench/handoff/raw_socket.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>

namespace baton::bench_handoff {

namespace {

constexpr std::size_t kTransfers = 5;  // counted ones

tl::unexpected<Error> failed(const char* what) {
  return fail(ErrorCode::kIo, fmt::format("raw socket: {}: {}", what, std::strerror(errno)));
}

// True: all of it.
bool send_all(int stream, const void* data, std::size_t bytes) {
  const auto* at = static_cast<const std::byte*>(data);
  while (bytes > 0) {
    const ssize_t sent = send(stream, at, bytes, MSG_NOSIGNAL);
    if (sent < 0 && errno != EINTR) {
      return false;
    }
    at += std::max<ssize_t>(sent, 0);
    bytes -= static_cast<std::size_t>(std::max<ssize_t>(sent, 0));
  }
  return true;
}

bool receive_all(int stream, void* data, std::size_t bytes) {
  auto* at = static_cast<std::byte*>(data);
  while (bytes > 0) {
    const ssize_t got = recv(stream, at, bytes, 0);
    if (got == 0 || (got < 0 && errno != EINTR)) {
      return false;
    }
    at += std::max<ssize_t>(got, 0);
    bytes -= static_cast<std::size_t>(std::max<ssize_t>(got, 0));
  }
  return true;
}

// The calling thread's CPUs, put back at the end.
class OnCpus {
 public:
  explicit OnCpus(const std::vector<int>& cpus) {
    sched_getaffinity(0, sizeof before_, &before_);
    cpu_set_t wanted;
    CPU_ZERO(&wanted);
    for (const int cpu : cpus) {
      CPU_SET(static_cast<std::size_t>(cpu), &wanted);
    }
    sched_setaffinity(0, sizeof wanted, &wanted);
  }
  ~OnCpus() { sched_setaffinity(0, sizeof before_, &before_); }
  OnCpus(const OnCpus&) = delete;
  OnCpus& operator=(const OnCpus&) = delete;

 private:
  cpu_set_t before_{};
};

// A listener on a port of loopback that the system picks, and its address.
Result<int> listen_somewhere(sockaddr_in& address) {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  if (listener < 0 || bind(listener, generic, length) != 0 || listen(listener, 1) != 0 ||
      getsockname(listener, generic, &length) != 0) {
    auto error = failed("cannot listen");
    close(listener);
    return error;
  }
  return listener;
}

}  // namespace

Result<std::unique_ptr<RawSocket>> RawSocket::open(const std::vector<int>& send_cpus,
                                                   const std::vector<int>& receive_cpus,
                                                   const std::stop_token& stop) {
  std::unique_ptr<RawSocket> raw(new RawSocket());
  raw->send_cpus_ = send_cpus;
  sockaddr_in address{};
  BATON_TRY(const int listener, listen_somewhere(address));
  raw->sender_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int one = 1;
  const bool connected =
      raw->sender_ >= 0 &&
      connect(raw->sender_, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 &&
      setsockopt(raw->sender_, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) == 0;
  if (connected) {
    raw->receiver_ = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  }
  const int error = errno;
  close(listener);
  if (raw->receiver_ < 0) {
    errno = error;
    return failed("cannot connect");
  }
  raw->thread_ = std::thread(
      [stream = raw->receiver_, receive_cpus] { RawSocket::receive(stream, receive_cpus); });
  raw->on_stop_.emplace(stop, [stream = raw->sender_] { shutdown(stream, SHUT_RDWR); });
  return raw;
}

RawSocket::~RawSocket() {
  on_stop_.reset();
  if (sender_ >= 0) {
    shutdown(sender_, SHUT_RDWR);  // the receiver reads an end
  }
  if (thread_.joinable()) {
    thread_.join();
  }
  for (const int stream : {sender_, receiver_}) {
    if (stream >= 0) {
      close(stream);
    }
  }
}

// Reads a length and so many bytes into one buffer, says so, and again.
void RawSocket::receive(int stream, const std::vector<int>& cpus) {
  const OnCpus here(cpus);
  std::vector<std::byte> buffer;
  std::uint64_t bytes = 0;
  const std::byte done{};
  while (receive_all(stream, &bytes, sizeof bytes)) {
    if (buffer.size() < bytes) {
      buffer.resize(bytes);
    }
    if (!receive_all(stream, buffer.data(), bytes) || !send_all(stream, &done, 1)) {
      return;
    }
  }
}

Result<Duration> RawSocket::transfer_once(const std::vector<std::byte>& data) const {
  const SystemClock clock;
  const std::uint64_t bytes = data.size();
  std::byte done{};
  const TimePoint begin = clock.now();
  if (!send_all(sender_, &bytes, sizeof bytes) || !send_all(sender_, data.data(), data.size()) ||
      !receive_all(sender_, &done, 1)) {
    return fail(ErrorCode::kIo, "raw socket: the connection broke");
  }
  return clock.now() - begin;
}

Result<Duration> RawSocket::transfer(std::size_t bytes) {
  const OnCpus here(send_cpus_);
  const std::vector<std::byte> data(bytes);
  std::vector<Duration> taken;
  for (std::size_t number = 0; number <= kTransfers; ++number) {
    BATON_TRY(taken.emplace_back(), transfer_once(data));
  }
  taken.erase(taken.begin());  // the receiver's memory was new
  std::nth_element(taken.begin(), taken.begin() + kTransfers / 2, taken.end());
  return taken[kTransfers / 2];
}

}  // namespace baton::bench_handoff
