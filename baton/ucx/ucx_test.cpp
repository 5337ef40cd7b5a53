// Lanes over UCX between two workers of this process, by shared memory and by TCP: messages, who
// may send them, and every way in which an operation can end.
#include "baton/net/event_loop.h"
#include "baton/net/tcp.h"
#include "baton/ucx/fabric.h"

#include <boost/asio/use_future.hpp>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <thread>

namespace baton::ucx {
namespace {

using net::Lane;
using net::LaneMessage;
using std::chrono::milliseconds;
using std::chrono::seconds;
using Bytes = std::vector<std::byte>;

Bytes pattern(std::size_t bytes, std::uint32_t seed) {
  Bytes data(bytes);
  std::uint32_t state = seed * 2654435761U + 1;
  for (auto& byte : data) {
    state = state * 1664525U + 1013904223U;
    byte = static_cast<std::byte>(state >> 24U);
  }
  return data;
}

// Pieces of odd sizes, empty ones among them.
template <class Byte>
std::vector<std::span<Byte>> cut(std::span<Byte> whole, std::size_t step) {
  std::vector<std::span<Byte>> parts;
  for (std::size_t i = 0; !whole.empty(); ++i) {
    const std::size_t bytes = std::min(whole.size(), i % 7 == 3 ? 0 : step + i % 5);
    parts.push_back(whole.first(bytes));
    whole = whole.subspan(bytes);
  }
  return parts;
}

Bytes header_of(std::size_t number) { return pattern(96, static_cast<std::uint32_t>(number)); }

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
    std::packaged_task<std::invoke_result_t<Function>()> task(std::move(function));
    auto result = task.get_future();
    asio::post(loop_.executor(), [&task] { task(); });
    return result.get();
  }
  template <class T>
  std::future<T> start(asio::awaitable<T> work) {
    return asio::co_spawn(loop_.executor(), std::move(work), asio::use_future);
  }

  Status connect(const std::string& address) {
    return on_loop([&] { return lane_->connect(address); });
  }
  std::future<Status> send(Bytes header, std::vector<std::span<const std::byte>> payload,
                           Duration deadline = seconds(10)) {
    return start(lane_->send(std::move(header), std::move(payload), deadline));
  }
  std::future<Result<LaneMessage>> next() { return start(lane_->next()); }
  std::future<Status> take(std::vector<std::span<std::byte>> into,
                           Duration deadline = seconds(10)) {
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

 private:
  net::EventLoop loop_{"test-lane"};
  std::unique_ptr<Lane> lane_;
};

class Lanes : public ::testing::TestWithParam<std::pair<const char*, const char*>> {
 protected:
  void SetUp() override {
    auto opened = open_fabric({GetParam().second});
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
    auto sent = from_->send(header_of(bytes), cut(std::span<const std::byte>(data), piece_sent));
    auto message = to_->next().get();
    ASSERT_TRUE(message.has_value()) << message.error().message;
    EXPECT_TRUE(message->header == header_of(bytes));
    ASSERT_EQ(message->payload_bytes, bytes);
    Bytes room(bytes);
    const Status taken = to_->take(cut(std::span<std::byte>(room), piece_taken)).get();
    ASSERT_TRUE(taken.has_value()) << taken.error().message;
    EXPECT_TRUE(room == data);
    const Status ended = sent.get();
    ASSERT_TRUE(ended.has_value()) << ended.error().message;
  }

  std::shared_ptr<net::Fabric> fabric_;
  std::unique_ptr<End> from_;
  std::unique_ptr<End> to_;
};
INSTANTIATE_TEST_SUITE_P(Ways, Lanes,
                         ::testing::Values(std::pair("shm", "shm,self"),
                                           std::pair("posix", "posix,self"),
                                           std::pair("tcp", "tcp")),
                         [](const auto& param) { return std::string(param.param.first); });

constexpr std::size_t kWhole = std::size_t{1} << 40;

TEST_P(Lanes, PayloadsLandWhereTheyBelong) {
  for (const std::size_t bytes : {1U, 31U, 4096U, 100'003U, 5U << 20U}) {
    transfer(bytes, kWhole, kWhole);
    transfer(bytes, 4'999, kWhole);
    transfer(bytes, kWhole, 7'001);
    transfer(bytes, 65'537, 100'003);
  }
  transfer(16 << 20, kWhole, kWhole);
}

TEST_P(Lanes, WhatIsDroppedIsPassedOver) {
  const Bytes data = pattern(3 << 20, 1);
  auto sent = from_->send(header_of(1), {data});
  ASSERT_TRUE(to_->next().get().has_value());
  to_->drop();
  EXPECT_TRUE(sent.get().has_value());
  transfer(100'000, kWhole, kWhole);
}

TEST_P(Lanes, AStrangersMessageIsNotSeen) {
  End stranger(fabric_.get());
  std::string guess = to_->address();
  guess[0] = static_cast<char>(guess[0] ^ 1);  // all but the key's first bit
  ASSERT_TRUE(stranger.connect(guess).has_value());
  const Bytes data = pattern(1000, 9);
  auto next = to_->next();
  (void)stranger.send(header_of(9), {data}, seconds(2)).get();
  EXPECT_EQ(next.wait_for(milliseconds(100)), std::future_status::timeout);
  const Bytes ours = pattern(2000, 8);
  auto sent = from_->send(header_of(8), {ours});
  const auto message = next.get();
  ASSERT_TRUE(message.has_value());
  EXPECT_TRUE(message->header == header_of(8));
  to_->drop();
  EXPECT_TRUE(sent.get().has_value());
}

TEST_P(Lanes, ASenderWhomNobodyHearsStopsInTime) {
  warm_up();
  Bytes data = pattern(2 << 20, 1);
  auto sent = from_->send(header_of(1), {data}, milliseconds(200));
  const Status status = sent.get();
  ASSERT_FALSE(status.has_value());
  EXPECT_EQ(status.error().code, ErrorCode::kDeadlineExceeded);
  // Closed: nothing more goes.
  EXPECT_EQ(from_->send(header_of(2), {data}).get().error().code, ErrorCode::kPeerLost);
}

// The receiver asks for the payload of a sender that is gone, and gets its memory back untouched.
TEST_P(Lanes, AReceiverWhoseSenderIsGoneStops) {
  warm_up();
  const Bytes data = pattern(32 << 20, 1);
  auto sent = from_->send(header_of(1), {data});
  ASSERT_TRUE(to_->next().get().has_value());
  from_->close();
  EXPECT_EQ(sent.get().error().code, ErrorCode::kPeerLost);
  Bytes room(data.size());
  const Status status = to_->take({room}, milliseconds(500)).get();
  if (!status) {  // shared memory of this very process may still be read
    EXPECT_TRUE(status.error().code == ErrorCode::kPeerLost ||
                status.error().code == ErrorCode::kDeadlineExceeded)
        << status.error().message;
  } else {
    EXPECT_TRUE(room == data);
  }
}

// Either end closes at any moment of a transfer: both operations end, and the receiver's memory is
// at rest from then on, whatever the sender still does.
TEST_P(Lanes, ClosedInMidTransferNothingMovesAnyMore) {
  const Bytes data = pattern(24 << 20, 1);
  Bytes room(data.size());
  for (int round = 0; round < 24; ++round) {
    SCOPED_TRACE(round);
    from_ = std::make_unique<End>(fabric_.get());
    to_ = std::make_unique<End>(fabric_.get());
    ASSERT_TRUE(to_->connect(from_->address()).has_value());
    ASSERT_TRUE(from_->connect(to_->address()).has_value());
    warm_up();
    std::fill(room.begin(), room.end(), std::byte{0});
    auto sent = from_->send(header_of(1), {data}, seconds(2));
    ASSERT_TRUE(to_->next().get().has_value());
    auto taken = to_->take({room}, seconds(2));
    std::this_thread::sleep_for(std::chrono::microseconds(300 * (round / 2)));
    End& closes = round % 2 == 0 ? *to_ : *from_;
    closes.close();
    if (&closes == from_.get()) {  // the receiver is told by the socket beside the lane
      to_->close();
    }
    const Bytes then = room;
    const Status took = taken.get();
    if (took) {
      EXPECT_TRUE(then == data);
    } else {
      EXPECT_EQ(took.error().code, ErrorCode::kPeerLost) << took.error().message;
    }
    std::this_thread::sleep_for(milliseconds(5));
    EXPECT_TRUE(room == then) << "written after the end";
    from_->close();
    const Status ended = sent.get();
    if (!ended) {
      EXPECT_EQ(ended.error().code, ErrorCode::kPeerLost) << ended.error().message;
    }
  }
}

TEST_P(Lanes, ClosingWakesWhoWaits) {
  warm_up();
  auto next = to_->next();
  std::this_thread::sleep_for(milliseconds(20));
  to_->close();
  ASSERT_EQ(next.wait_for(seconds(5)), std::future_status::ready);
  EXPECT_EQ(next.get().error().code, ErrorCode::kPeerLost);
}

TEST_P(Lanes, WaitingCostsNoCpu) {
  warm_up();
  auto next = to_->next();
  const auto cpu_us = [] {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1'000'000 + usage.ru_utime.tv_usec +
           usage.ru_stime.tv_usec;
  };
  std::this_thread::sleep_for(milliseconds(50));
  const auto before = cpu_us();
  std::this_thread::sleep_for(milliseconds(1000));
  EXPECT_LT(cpu_us() - before, 20'000) << "us of one second";
  to_->close();
  EXPECT_FALSE(next.get().has_value());
}

TEST_P(Lanes, ManyLanesComeAndGo) {
  for (int i = 0; i < 40; ++i) {
    from_ = std::make_unique<End>(fabric_.get());
    to_ = std::make_unique<End>(fabric_.get());
    ASSERT_TRUE(to_->connect(from_->address()).has_value());
    ASSERT_TRUE(from_->connect(to_->address()).has_value());
    transfer(50'000, kWhole, 10'000);
  }
}

TEST(Fabric, EndsWithoutAWayInCommonSaySo) {
  const auto shared_memory = open_fabric({"posix,self"});
  const auto tcp = open_fabric({"tcp"});
  ASSERT_TRUE(shared_memory.has_value() && tcp.has_value());
  EXPECT_EQ((*tcp)->name(), "ucx");
  End a(shared_memory->get());
  End b(tcp->get());
  EXPECT_EQ(a.connect(b.address()).error().code, ErrorCode::kUnavailable);
  EXPECT_EQ(b.connect(a.address()).error().code, ErrorCode::kUnavailable);
  EXPECT_EQ(a.connect("short").error().code, ErrorCode::kInvalidArgument);
}

TEST(Fabric, UnknownTransportsAreRefused) {
  const auto opened = open_fabric({"no_such_transport"});
  ASSERT_FALSE(opened.has_value());
  EXPECT_EQ(opened.error().code, ErrorCode::kUnavailable);
}

}  // namespace
}  // namespace baton::ucx
