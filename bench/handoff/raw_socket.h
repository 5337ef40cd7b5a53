// The yardstick of a transfer: one plain TCP connection over loopback between the cores of two
// nodes, which moves so many bytes and waits for one byte back.
#pragma once

#include "baton/base/clock.h"
#include "baton/base/result.h"

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <thread>
#include <vector>

namespace baton::bench_handoff {

// Thread: one for all calls; the receiver has its own.
class RawSocket {
 public:
  // `stop` cuts the connection. Errors: kIo.
  static Result<std::unique_ptr<RawSocket>> open(const std::vector<int>& send_cpus,
                                                 const std::vector<int>& receive_cpus,
                                                 const std::stop_token& stop);
  ~RawSocket();
  RawSocket(const RawSocket&) = delete;
  RawSocket& operator=(const RawSocket&) = delete;

  // The median time of some transfers. The calling thread runs on send_cpus meanwhile. Errors: kIo,
  // also once stopped.
  Result<Duration> transfer(std::size_t bytes);

 private:
  RawSocket() = default;
  static void receive(int stream, const std::vector<int>& cpus);
  [[nodiscard]] Result<Duration> transfer_once(const std::vector<std::byte>& data) const;

  std::vector<int> send_cpus_;
  int sender_ = -1;
  int receiver_ = -1;
  std::thread thread_;
  std::optional<std::stop_callback<std::function<void()>>> on_stop_;
};

}  // namespace baton::bench_handoff
