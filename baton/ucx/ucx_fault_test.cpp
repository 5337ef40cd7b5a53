// Lanes whose connections die, or that are closed at the worst moment: what UCX would not survive.
#include "baton/ucx/abandoned.h"
#include "baton/ucx/lane_test_util.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <functional>

namespace {

// What a thread asks of the system for its lane ends badly after so many calls. The first call
// after them is a short write; from the next on the other side is gone.
std::atomic<std::thread::id> failing_thread{};
std::atomic<int> calls_left{0};
std::atomic<bool> reads_end{false};  // an orderly end, instead of a reset
// Called once, by that thread, when it copies from another process.
std::function<void()> on_copy;

int calls_before_the_end() {
  return failing_thread.load() == std::this_thread::get_id() ? calls_left.fetch_sub(1) : 1;
}

ssize_t fails_with(int error) {
  errno = error;
  return -1;
}

}  // namespace

// In the place of the C library's, also for UCX: a program's own functions are found first.
extern "C" ssize_t send(int socket, const void* data, size_t bytes, int flags) {
  const int left = calls_before_the_end();
  if (left < 0) {
    return fails_with(ECONNRESET);
  }
  return ::syscall(SYS_sendto, socket, data, left == 0 ? bytes / 2 : bytes, flags, nullptr, 0);
}
extern "C" ssize_t sendmsg(int socket, const msghdr* message, int flags) {
  const int left = calls_before_the_end();
  if (left < 0) {
    return fails_with(ECONNRESET);
  }
  msghdr first = *message;
  first.msg_iovlen = left == 0 ? 1 : first.msg_iovlen;
  return ::syscall(SYS_sendmsg, socket, &first, flags);
}
extern "C" ssize_t recv(int socket, void* data, size_t bytes, int flags) {
  if (calls_before_the_end() < 0) {
    return reads_end ? 0 : fails_with(ECONNRESET);
  }
  return ::syscall(SYS_recvfrom, socket, data, bytes, flags, nullptr, nullptr);
}
extern "C" ssize_t process_vm_readv(pid_t process, const iovec* to, unsigned long to_count,
                                    const iovec* from, unsigned long from_count,
                                    unsigned long flags) {
  if (failing_thread.load() == std::this_thread::get_id() && on_copy) {
    std::exchange(on_copy, nullptr)();
  }
  if (calls_before_the_end() < 0) {
    return fails_with(ESRCH);
  }
  return ::syscall(SYS_process_vm_readv, process, to, to_count, from, from_count, flags);
}

namespace baton::ucx::test {
namespace {

// One side's calls fail from the nth on: that lane ends, the other one when it is closed, and the
// process lives. UCX 1.13 does not survive the end of a connection in the middle of a write of the
// caller's own memory ("zcopy"): it completes that write twice.
TEST_P(Lanes, ADeadConnectionEndsTheLane) {
  const Bytes data = pattern(4 << 20, 1);
  Bytes room(data.size());
  for (int which = 0; which < 8; ++which) {
    const bool sender_fails = (which & 1) != 0;
    const std::size_t piece = (which & 2) != 0 ? kWhole : 65'537;
    reads_end = (which & 4) != 0;
    for (int calls = 0; calls < 6; ++calls) {
      SCOPED_TRACE(fmt::format("which {}, calls {}", which, calls));
      from_ = std::make_unique<End>(fabric_.get());
      to_ = std::make_unique<End>(fabric_.get());
      ASSERT_TRUE(to_->connect(from_->address()).has_value());
      ASSERT_TRUE(from_->connect(to_->address()).has_value());
      warm_up();
      auto sent = from_->send(header_of(1), pieces(std::span<const std::byte>(data), piece));
      ASSERT_TRUE(to_->next().get().has_value());
      calls_left = calls;
      failing_thread = (sender_fails ? from_ : to_)->thread();
      auto taken = to_->take(pieces(std::span<std::byte>(room), piece));
      (void)(sender_fails ? sent : taken).wait_for(kPatience / 2);
      const bool none_failed = calls_left.load() >= 0;
      failing_thread = std::thread::id();
      if (none_failed) {  // shared memory without CMA
        EXPECT_TRUE(taken.get().has_value());
        continue;
      }
      ASSERT_EQ((sender_fails ? sent : taken).wait_for(seconds(0)), std::future_status::ready);
      (sender_fails ? to_ : from_)->close();
      for (auto* end : {&sent, &taken}) {
        const Status ended = end->get();
        EXPECT_TRUE(ended || ended.error().code == ErrorCode::kPeerLost) << ended.error().message;
      }
    }
  }
}

// A lane is closed while the receiver copies from the sender's memory, and there is no time to wait
// for the rest: the worker is left behind. Only so many times.
TEST(Fabric, WhatCannotEndInTimeIsLeftBehind) {
  const auto opened = open_fabric({"shm,self", milliseconds(0)});
  ASSERT_TRUE(opened.has_value());
  const auto& fabric = *opened;
  const Bytes data = pattern(48 << 20, 1);  // more than UCX copies in one turn of the loop
  Bytes room(data.size());
  std::size_t abandoned = 0;
  for (; abandoned < kMaxAbandoned; ++abandoned) {
    SCOPED_TRACE(abandoned);
    End from(fabric.get());
    End to(fabric.get());
    ASSERT_TRUE(to.connect(from.address()).has_value());
    ASSERT_TRUE(from.connect(to.address()).has_value());
    auto sent = from.send(header_of(1), {data});
    ASSERT_TRUE(to.next().get().has_value());
    std::promise<void> closed;
    on_copy = [&] {
      to.post([&](Lane* lane) {
        lane->close();
        closed.set_value();
      });
    };
    calls_left = 1 << 20;
    failing_thread = to.thread();
    auto taken = to.take({room});
    if (closed.get_future().wait_for(kPatience / 2) != std::future_status::ready) {
      failing_thread = std::thread::id();
      on_copy = nullptr;
      GTEST_SKIP() << "this machine's UCX does not copy between processes";
    }
    failing_thread = std::thread::id();
    const Bytes then = room;
    EXPECT_EQ(taken.get().error().code, ErrorCode::kPeerLost);
    EXPECT_FALSE(then == data) << "it was over before";
    std::this_thread::sleep_for(milliseconds(5));
    EXPECT_TRUE(room == then) << "written after the end";
    from.close();
    EXPECT_EQ(sent.get().error().code, ErrorCode::kPeerLost);
    room.assign(room.size(), std::byte{0});
  }
  net::EventLoop loop("test-none");
  const auto one_more = fabric->open_lane(loop.executor());
  ASSERT_FALSE(one_more.has_value());
  EXPECT_EQ(one_more.error().code, ErrorCode::kUnavailable);
}

}  // namespace
}  // namespace baton::ucx::test
