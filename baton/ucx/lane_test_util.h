// For tests of lanes: two ends in this process, each on a thread of its own.
#pragma once

#include "baton/net/event_loop.h"
#include "baton/net/tcp.h"
#include "baton/ucx/fabric.h"

#include <boost/asio/use_future.hpp>
#include <gtest/gtest.h>

#include "tests/support/on_loop.h"
#include "tests/support/pieces.h"
#include <algorithm>
#include <chrono>
#include <future>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace baton::ucx::test {

using net::Lane;
using net::LaneMessage;
using std::chrono::milliseconds;
using std::chrono::seconds;
using Bytes = std::vector<std::byte>;

inline Bytes pattern(std::size_t bytes, std::uint32_t seed) {
  Bytes data(bytes);
  std::uint32_t state = seed * 2654435761U + 1;
  for (auto& byte : data) {
    state = state * 1664525U + 1013904223U;
    byte = static_cast<std::byte>(state >> 24U);
  }
  return data;
}

// Far above what anything here takes: only what hangs meets it, however busy the machine is.
inline constexpr Duration kPatience = seconds(60);

// For pieces(): one.
inline constexpr std::size_t kWhole = std::size_t{1} << 40;
using testing::pieces;

inline Bytes header_of(std::size_t number) {
  return pattern(96, static_cast<std::uint32_t>(number));
}

inline UcxOptions only(std::string transports) {
  UcxOptions options;
  options.transports = std::move(transports);
  return options;
}

// A lane on a thread of its own; its calls block the test.
class End {
 public:
  explicit End(net::Fabric* fabric) {
    auto opened = on_loop([&] { return fabric->open_lane(loop_.executor()); });
    EXPECT_TRUE(opened.has_value()) << (opened ? "" : opened.error().message);
    lane_ = *std::move(opened);
  }
  ~End() {
    on_loop([&] {
      lane_.reset();
      return 0;
    });
  }

  template <class Function>
  std::invoke_result_t<Function> on_loop(Function function) {
    return testing::on_loop(loop_, std::move(function));
  }
  template <class T>
  std::future<T> start(asio::awaitable<T> work) {
    return asio::co_spawn(loop_.executor(), std::move(work), asio::use_future);
  }

  Status connect(const std::string& address) {
    return on_loop([&] { return lane_->connect(address); });
  }
  std::future<Status> send(Bytes header, std::vector<std::span<const std::byte>> payload,
                           Duration deadline = kPatience) {
    return start(lane_->send(std::move(header), std::move(payload), deadline));
  }
  std::future<Result<LaneMessage>> next() { return start(lane_->next()); }
  std::future<Status> take(std::vector<std::span<std::byte>> into, Duration deadline = kPatience) {
    return start(lane_->take(std::move(into), deadline));
  }
  void drop() {
    on_loop([&] {
      lane_->drop();
      return 0;
    });
  }
  void close() {
    on_loop([&] {
      lane_->close();
      return 0;
    });
  }
  std::string address() { return lane_->address(); }
  std::thread::id thread() {
    return on_loop([] { return std::this_thread::get_id(); });
  }
  template <class Function>
  void post(Function function) {
    asio::post(loop_.executor(), [this, function = std::move(function)] { function(lane_.get()); });
  }

 private:
  net::EventLoop loop_{"test-lane"};
  std::unique_ptr<Lane> lane_;
};

class Lanes : public ::testing::TestWithParam<std::pair<const char*, const char*>> {
 protected:
  void SetUp() override {
    auto opened = open_fabric(only(GetParam().second));
    ASSERT_TRUE(opened.has_value()) << opened.error().message;
    fabric_ = *std::move(opened);
    from_ = std::make_unique<End>(fabric_.get());
    to_ = std::make_unique<End>(fabric_.get());
    ASSERT_TRUE(to_->connect(from_->address()).has_value());
    ASSERT_TRUE(from_->connect(to_->address()).has_value());
  }
  // One small message, so that both ends have found each other.
  void warm_up() {
    const Bytes data = pattern(100, 1);
    auto sent = from_->send(header_of(0), {data});
    ASSERT_TRUE(to_->next().get().has_value());
    Bytes room(100);
    ASSERT_TRUE(to_->take({room}).get().has_value());
    ASSERT_TRUE(sent.get().has_value());
  }
  // Sent as a whole or in pieces, taken as a whole or in pieces.
  void transfer(std::size_t bytes, std::size_t piece_sent, std::size_t piece_taken) {
    const Bytes data = pattern(bytes, static_cast<std::uint32_t>(bytes));
    auto sent = from_->send(header_of(bytes), pieces(std::span<const std::byte>(data), piece_sent));
    auto message = to_->next().get();
    ASSERT_TRUE(message.has_value()) << message.error().message;
    EXPECT_TRUE(message->header == header_of(bytes));
    ASSERT_EQ(message->payload_bytes, bytes);
    Bytes room(bytes);
    const Status taken = to_->take(pieces(std::span<std::byte>(room), piece_taken)).get();
    ASSERT_TRUE(taken.has_value()) << taken.error().message;
    EXPECT_TRUE(room == data);
    const Status ended = sent.get();
    ASSERT_TRUE(ended.has_value()) << ended.error().message;
  }

  std::shared_ptr<net::Fabric> fabric_;
  std::unique_ptr<End> from_;
  std::unique_ptr<End> to_;
};

}  // namespace baton::ucx::test
