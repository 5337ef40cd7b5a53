// Addresses, events across threads, task groups, virtual time, and TcpStream on loopback.
#include "baton/base/check.h"
#include "baton/net/address.h"
#include "baton/net/async_clock.h"
#include "baton/net/event_loop.h"
#include "baton/net/resolver.h"
#include "baton/net/stream_pair_for_test.h"
#include "baton/net/task_group.h"
#include "baton/net/tcp.h"

#include <gtest/gtest.h>

#include <numeric>
#include <thread>

namespace baton::net {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(Address, Parses) {
  EXPECT_EQ(*parse_host_port("127.0.0.1:80"), (HostPort{"127.0.0.1", 80}));
  EXPECT_EQ(*parse_host_port("[::1]:65535"), (HostPort{"::1", 65535}));
  EXPECT_EQ(*parse_host_port("node-7.local:9000"), (HostPort{"node-7.local", 9000}));
  EXPECT_EQ(*parse_host_port(":0", true), (HostPort{"127.0.0.1", 0}));
  EXPECT_EQ(to_string(HostPort{"::1", 7}), "[::1]:7");
  EXPECT_EQ(parse_host_ports("a:1,[::1]:2")->size(), 2U);
  EXPECT_TRUE(parse_host_ports("")->empty());
}

TEST(Address, SaysWhatIsWrong) {
  const auto message = [](const char* text) { return parse_host_port(text).error().message; };
  EXPECT_NE(message("localhost").find("port is missing"), std::string::npos);
  EXPECT_NE(message("a:b").find("1 to 65535"), std::string::npos);
  EXPECT_NE(message("a:65536").find("1 to 65535"), std::string::npos);
  EXPECT_NE(message("a:0").find("port 0"), std::string::npos);
  EXPECT_NE(message("::1:80").find("[address]:port"), std::string::npos);
  EXPECT_NE(message("[::1:80").find("[IPv6 address]:port"), std::string::npos);
  EXPECT_NE(message("a b:80").find("host name"), std::string::npos);
  EXPECT_NE(parse_host_ports("a:1,a:1").error().message.find("twice"), std::string::npos);
  EXPECT_FALSE(parse_host_ports("a:1,").has_value());
}

asio::awaitable<void> collect(AsyncQueue<int>* queue, std::vector<int>* into) {
  while (auto value = co_await queue->pop()) {
    into->push_back(*value);
  }
}

TEST(AsyncQueue, FilledFromAnotherThread) {
  asio::io_context context;
  TaskGroup tasks(context.get_executor());
  AsyncQueue<int> queue(context.get_executor(), 1'000'000);
  std::vector<int> got;
  tasks.spawn(collect(&queue, &got));
  std::thread producer([&] {
    for (int i = 0; i < 20'000; ++i) {
      EXPECT_TRUE(queue.try_push(int{i}));
    }
    queue.close();
  });
  auto work = asio::make_work_guard(context);
  while (tasks.size() > 0) {
    context.run_one();
  }
  producer.join();
  std::vector<int> expected(20'000);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(got, expected);
}

TEST(AsyncQueue, Bounded) {
  asio::io_context context;
  AsyncQueue<int> queue(context.get_executor(), 1);
  EXPECT_TRUE(queue.try_push(1));
  EXPECT_FALSE(queue.try_push(2));
  EXPECT_TRUE(queue.push_unbounded(3));
  queue.close();
  EXPECT_FALSE(queue.push_unbounded(4));
  EXPECT_EQ(queue.try_pop(), 1);
}

asio::awaitable<void> wait_for_ever(AsyncEvent* event, bool* unwound) {
  struct Mark {
    ~Mark() { *flag = true; }
    bool* flag;
  };
  const Mark mark{unwound};
  co_await event->wait();
  co_await event->wait();
}

TEST(TaskGroup, StopCancelsAndWaits) {
  asio::io_context context;
  TaskGroup tasks(context.get_executor());
  AsyncEvent never(context.get_executor());
  bool unwound = false;
  tasks.spawn(wait_for_ever(&never, &unwound));
  context.poll();
  EXPECT_EQ(tasks.size(), 1U);
  tasks.stop();
  EXPECT_EQ(tasks.spawn(wait_for_ever(&never, &unwound)), TaskId{});
  context.restart();
  context.run();
  EXPECT_EQ(tasks.size(), 0U);
  EXPECT_TRUE(unwound);
}

TEST(TaskGroup, CancelEndsOneTaskOnly) {
  asio::io_context context;
  TaskGroup tasks(context.get_executor());
  AsyncEvent first(context.get_executor());
  AsyncEvent second(context.get_executor());
  bool first_unwound = false;
  bool second_unwound = false;
  const TaskId id = tasks.spawn(wait_for_ever(&first, &first_unwound));
  tasks.spawn(wait_for_ever(&second, &second_unwound));
  context.poll();
  tasks.cancel(id);
  context.poll();
  EXPECT_TRUE(first_unwound);
  EXPECT_FALSE(second_unwound);
  tasks.stop();
  context.run();
}

asio::awaitable<void> throws() {
  co_await asio::post(asio::use_awaitable);
  throw std::runtime_error("a bug");
}

TEST(TaskGroup, AnEscapedExceptionIsCountedAsABug) {
  asio::io_context context;
  TaskGroup tasks(context.get_executor());
  const std::uint64_t before = bug_count();
  tasks.spawn(throws());
  context.run();
  EXPECT_EQ(bug_count(), before + 1);
  EXPECT_EQ(tasks.size(), 0U);
}

TEST(TaskGroupDeathTest, DestructorChecksItIsEmpty) {
  EXPECT_DEATH(
      {
        asio::io_context context;
        TaskGroup tasks(context.get_executor());
        AsyncEvent never(context.get_executor());
        bool unwound = false;
        tasks.spawn(wait_for_ever(&never, &unwound));
      },
      "tasks left");
}

asio::awaitable<void> wait_hard(AsyncEvent* event, int* stage) {
  co_await event->wait_uncancellable();
  *stage = 1;
  co_await asio::post(asio::use_awaitable);  // here the cancellation takes effect
  *stage = 2;
}

TEST(AsyncEvent, UncancellableWaitDelaysTheCancellation) {
  asio::io_context context;
  TaskGroup tasks(context.get_executor());
  AsyncEvent event(context.get_executor());
  int stage = 0;
  tasks.spawn(wait_hard(&event, &stage));
  context.poll();
  tasks.stop();
  context.poll();
  EXPECT_EQ(stage, 0);
  EXPECT_EQ(tasks.size(), 1U);
  event.set();
  context.poll();
  EXPECT_EQ(stage, 1);
  EXPECT_EQ(tasks.size(), 0U);
}

asio::awaitable<void> sleeper(VirtualClock* clock, Duration time, std::vector<int>* order, int id) {
  co_await clock->sleep_for(time);
  order->push_back(id);
}

TEST(VirtualClock, WakesInOrderOfTime) {
  asio::io_context context;
  VirtualClock clock;
  TaskGroup tasks(context.get_executor());
  std::vector<int> order;
  tasks.spawn(sleeper(&clock, seconds(3), &order, 3));
  tasks.spawn(sleeper(&clock, seconds(1), &order, 1));
  tasks.spawn(sleeper(&clock, seconds(2), &order, 2));
  tasks.spawn(sleeper(&clock, seconds(2), &order, 22));
  tasks.spawn(sleeper(&clock, seconds(60), &order, 60));
  clock.run_for(context, milliseconds(2500));
  EXPECT_EQ(order, (std::vector<int>{1, 2, 22}));
  EXPECT_EQ(clock.now().time_since_epoch(), milliseconds(2500));
  clock.run_for(context, seconds(1));
  EXPECT_EQ(order.back(), 3);
  tasks.stop();
  context.restart();
  context.run();
  EXPECT_FALSE(clock.next_wake().has_value());
}

asio::awaitable<Result<int>> answer_after(VirtualClock* clock, Duration time) {
  co_await clock->sleep_for(time);
  co_return 42;
}

asio::awaitable<void> ask(VirtualClock* clock, Duration deadline, Result<int>* result) {
  auto answer = answer_after(clock, seconds(1));
  *result = co_await with_deadline(*clock, deadline, "asking", std::move(answer));
}

TEST(WithDeadline, InTimeAndLate) {
  asio::io_context context;
  VirtualClock clock;
  TaskGroup tasks(context.get_executor());
  Result<int> early = 0;
  Result<int> late = 0;
  tasks.spawn(ask(&clock, seconds(2), &early));
  tasks.spawn(ask(&clock, milliseconds(500), &late));
  clock.run_for(context, milliseconds(600));
  ASSERT_FALSE(late.has_value());
  EXPECT_EQ(late.error().code, ErrorCode::kDeadlineExceeded);
  clock.run_for(context, seconds(3));
  EXPECT_EQ(early, 42);
  EXPECT_EQ(tasks.size(), 0U);
  EXPECT_FALSE(clock.next_wake().has_value());
}

// ---- sockets ----------------------------------------------------------------------------------

using Sockets = StreamPairTest;

asio::awaitable<void> write_parts(TcpStream* stream, std::vector<iovec> parts, Status* status,
                                  Duration stall = seconds(10)) {
  *status = co_await stream->write_all(std::move(parts), stall);
}

asio::awaitable<void> read_all(TcpStream* stream, std::span<std::byte> into, Status* status,
                               Duration stall = seconds(10)) {
  *status = co_await stream->read_exact(into, stall);
}

TEST_F(Sockets, ManyPartsArriveWhole) {
  std::vector<std::byte> sent(10 << 20);
  for (std::size_t i = 0; i < sent.size(); ++i) {
    sent[i] = static_cast<std::byte>(i * 2654435761U >> 13);
  }
  std::vector<iovec> parts;  // more than IOV_MAX, odd sizes, empty ones
  std::size_t at = 0;
  for (std::size_t i = 0; at < sent.size(); ++i) {
    const std::size_t bytes = std::min(sent.size() - at, i % 3001);
    parts.push_back(iovec{sent.data() + at, bytes});
    at += bytes;
  }
  std::vector<std::byte> got(sent.size());
  Status wrote;
  Status read;
  run(write_parts(pair_.client.get(), parts, &wrote), read_all(pair_.server.get(), got, &read));
  EXPECT_TRUE(wrote.has_value());
  EXPECT_TRUE(read.has_value());
  EXPECT_TRUE(sent == got);
}

TEST_F(Sockets, StalledReaderMeetsTheDeadline) {
  std::vector<std::byte> sent(64 << 20);
  Status wrote;
  run(write_parts(pair_.client.get(), {iovec{sent.data(), sent.size()}}, &wrote, milliseconds(50)));
  ASSERT_FALSE(wrote.has_value());
  EXPECT_EQ(wrote.error().code, ErrorCode::kDeadlineExceeded);
  EXPECT_FALSE(pair_.client->is_open());
}

TEST_F(Sockets, PeerCloseIsPeerLost) {
  pair_.client->close();
  std::vector<std::byte> into(1);
  Status read;
  run(read_all(pair_.server.get(), into, &read));
  ASSERT_FALSE(read.has_value());
  EXPECT_EQ(read.error().code, ErrorCode::kPeerLost);
  EXPECT_FALSE(pair_.server->looks_alive());
}

asio::awaitable<void> close_later(TcpStream* stream) {
  co_await asio::post(asio::use_awaitable);
  stream->close();
}

TEST_F(Sockets, OwnCloseEndsAWaitingRead) {
  std::vector<std::byte> into(1);
  Status read;
  run(read_all(pair_.server.get(), into, &read, kForever), close_later(pair_.server.get()));
  ASSERT_FALSE(read.has_value());
  EXPECT_EQ(read.error().code, ErrorCode::kPeerLost);
}

asio::awaitable<void> try_connect(HostPort address, Status* status) {
  const SocketOptions options;
  auto socket = co_await connect(address, seconds(5), options);
  *status = socket ? Status{} : fail(socket.error());
}

TEST_F(Sockets, RefusedConnectionNamesTheAddress) {
  auto acceptor = listen(context_.get_executor(), HostPort{"127.0.0.1", 0});
  const HostPort address = local_address(*acceptor);
  acceptor->close();
  Status status;
  run(try_connect(address, &status));
  ASSERT_FALSE(status.has_value());
  EXPECT_EQ(status.error().code, ErrorCode::kPeerLost);
  EXPECT_NE(status.error().message.find(to_string(address)), std::string::npos);
}

TEST_F(Sockets, PortInUseNamesTheAddress) {
  auto acceptor = listen(context_.get_executor(), HostPort{"127.0.0.1", 0});
  const HostPort address = local_address(*acceptor);
  const auto second = listen(context_.get_executor(), address);
  ASSERT_FALSE(second.has_value());
  EXPECT_EQ(second.error().code, ErrorCode::kIo);
  EXPECT_NE(second.error().message.find(to_string(address)), std::string::npos);
  EXPECT_NE(second.error().message.find("in use"), std::string::npos);
}

asio::awaitable<void> look_up(std::string host, Result<std::vector<std::string>>* into) {
  SystemResolver resolver;
  *into = co_await resolver.resolve(std::move(host));
}

TEST_F(Sockets, NamesAreLookedUp) {
  Result<std::vector<std::string>> found;
  run(look_up("127.0.0.3", &found));
  EXPECT_EQ(found.value(), std::vector<std::string>{"127.0.0.3"});
  run(look_up("localhost", &found));
  EXPECT_EQ(found.value(), std::vector<std::string>{"127.0.0.1"}) << "IPv4 where there is some";
  const std::string nobody(300, 'x');  // longer than names may be: no server is asked
  run(look_up(nobody, &found));
  ASSERT_FALSE(found.has_value());
  EXPECT_EQ(found.error().code, ErrorCode::kIo);
  EXPECT_NE(found.error().message.find(nobody), std::string::npos);
}

TEST(Loopback, KnowsMappedAddresses) {
  EXPECT_TRUE(is_loopback(asio::ip::make_address("127.1.2.3")));
  EXPECT_TRUE(is_loopback(asio::ip::make_address("::1")));
  EXPECT_TRUE(is_loopback(asio::ip::make_address("::ffff:127.0.0.1")));
  EXPECT_FALSE(is_loopback(asio::ip::make_address("0.0.0.0")));
  EXPECT_FALSE(is_loopback(asio::ip::make_address("::ffff:10.0.0.1")));
}

TEST(IoPool, RunsOnItsThreads) {
  IoPool pool(2);
  std::atomic<int> ran{0};
  std::atomic<bool> same{true};
  for (std::size_t i = 0; i < 2; ++i) {
    asio::post(pool.executor(i), [&, caller = std::this_thread::get_id()] {
      same = same && std::this_thread::get_id() == caller;
      if (ran.fetch_add(1) + 1 == 2) {
        ran.notify_all();
      }
    });
  }
  for (int seen = ran.load(); seen < 2; seen = ran.load()) {
    ran.wait(seen);
  }
  EXPECT_FALSE(same.load());
  pool.stop();
}

}  // namespace
}  // namespace baton::net
