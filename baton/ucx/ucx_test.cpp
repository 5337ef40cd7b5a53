// Lanes over UCX between two workers of this process, by shared memory and by TCP: messages, who
// may send them, and every way in which an operation can end.
#include "baton/ucx/lane_test_util.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

namespace baton::ucx::test {
namespace {

INSTANTIATE_TEST_SUITE_P(Ways, Lanes,
                         ::testing::Values(std::pair("shm", "shm,self"),
                                           std::pair("posix", "posix,self"),
                                           std::pair("tcp", "tcp")),
                         [](const auto& param) { return std::string(param.param.first); });

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
    auto sent = from_->send(header_of(1), {data});
    ASSERT_TRUE(to_->next().get().has_value());
    auto taken = to_->take({room});
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
  const auto shared_memory = open_fabric(only("posix,self"));
  const auto tcp = open_fabric(only("tcp"));
  ASSERT_TRUE(shared_memory.has_value() && tcp.has_value());
  EXPECT_EQ((*tcp)->name(), "ucx");
  End a(shared_memory->get());
  End b(tcp->get());
  EXPECT_EQ(a.connect(b.address()).error().code, ErrorCode::kUnavailable);
  EXPECT_EQ(b.connect(a.address()).error().code, ErrorCode::kUnavailable);
  EXPECT_EQ(a.connect("short").error().code, ErrorCode::kInvalidArgument);
}

TEST(Fabric, UnknownTransportsAreRefused) {
  const auto opened = open_fabric(only("no_such_transport"));
  ASSERT_FALSE(opened.has_value());
  EXPECT_EQ(opened.error().code, ErrorCode::kUnavailable);
}

}  // namespace
}  // namespace baton::ucx::test
