// Test only: two ends of a connection on loopback, and a fixture that runs tasks on them.
#pragma once

#include "baton/net/task_group.h"
#include "baton/net/tcp.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>

namespace baton::net {

struct StreamPair {
  std::unique_ptr<TcpStream> client;
  std::unique_ptr<TcpStream> server;
};

inline asio::awaitable<void> connect_pair(StreamPair* pair) {
  // Aggregates are named before a co_await: g++ 12 destroys such temporaries twice.
  const auto executor = co_await asio::this_coro::executor;
  HostPort address{"127.0.0.1", 0};
  auto acceptor = listen(executor, address);
  EXPECT_TRUE(acceptor.has_value());
  address = local_address(*acceptor);
  const SocketOptions options;
  auto socket = co_await connect(address, std::chrono::seconds(5), options);
  EXPECT_TRUE(socket.has_value()) << (socket ? "" : socket.error().message);
  auto accepted = co_await acceptor->async_accept(asio::use_awaitable);
  pair->client = std::make_unique<TcpStream>(*std::move(socket));
  pair->server = std::make_unique<TcpStream>(std::move(accepted));
}

class StreamPairTest : public ::testing::Test {
 protected:
  template <class... Tasks>
  void run(Tasks... tasks) {
    (group_.spawn(std::move(tasks)), ...);
    context_.restart();
    context_.run();
    EXPECT_EQ(group_.size(), 0U);
  }
  void SetUp() override { run(connect_pair(&pair_)); }

  asio::io_context context_;
  TaskGroup group_{context_.get_executor()};
  StreamPair pair_;
};

}  // namespace baton::net
