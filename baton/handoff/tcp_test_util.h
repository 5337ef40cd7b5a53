// For tests of TcpTransport: a peer that can do what none of ours does, frames made by hand, and a
// fixture with nodes that listen and dial.
#pragma once

#include "baton/handoff/tcp_connection.h"
#include "baton/handoff/tcp_transport.h"
#include "baton/handoff/transport_test_util.h"

#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace baton::handoff::test {

using message::NodeRole;
using std::chrono::milliseconds;

// A peer made of a blocking socket, which can do what no transport of ours does.
class RawPeer {
 public:
  explicit RawPeer(const net::HostPort& address) : socket_(context_) {
    socket_.connect(tcp::endpoint(asio::ip::make_address(address.host), address.port));
    socket_.set_option(tcp::no_delay(true));  // a reset would take back what Nagle holds
  }
  explicit RawPeer(tcp::acceptor* acceptor) : socket_(acceptor->accept()) {}

  void send(std::span<const std::byte> bytes) {
    boost::system::error_code error;  // the other side may have closed already
    asio::write(socket_, asio::buffer(bytes.data(), bytes.size()), error);
  }
  std::pair<wire::FrameHeader, std::vector<std::byte>> receive() {
    wire::EncodedHeader raw{};
    asio::read(socket_, asio::buffer(raw));
    const auto header = wire::decode_header(raw);
    EXPECT_TRUE(header.has_value());
    std::vector<std::byte> payload(header->payload_bytes);
    asio::read(socket_, asio::buffer(payload));
    return {*header, std::move(payload)};
  }
  // As dialler: all three steps. Returns the acceptor's answer.
  wire::pb::HelloReply greet(wire::pb::Hello hello, bool bulk = false) {
    hello.set_bulk(bulk);
    send(*wire::encode_hello(hello));
    const auto [header, payload] = receive();
    auto reply = wire::decode_hello_reply(header, payload);
    EXPECT_TRUE(reply.has_value());
    if (reply->accepted()) {
      send(*wire::encode_hello_reply(accepting()));
    }
    return *std::move(reply);
  }
  // As acceptor.
  wire::pb::Hello welcome(const wire::pb::Hello& ours) {
    const auto [header, payload] = receive();
    auto theirs = wire::decode_hello(header, payload);
    EXPECT_TRUE(theirs.has_value());
    wire::pb::HelloReply reply = accepting();
    *reply.mutable_hello() = ours;
    send(*wire::encode_hello_reply(reply));
    const auto [reply_header, reply_payload] = receive();
    EXPECT_TRUE(wire::decode_hello_reply(reply_header, reply_payload)->accepted());
    return *std::move(theirs);
  }
  // As acceptor, to somebody who will not like it.
  void answer(const wire::pb::Hello& ours) {
    receive();
    wire::pb::HelloReply reply = accepting();
    *reply.mutable_hello() = ours;
    send(*wire::encode_hello_reply(reply));
    receive();
  }
  // True when the other side closed (data before that is skipped).
  bool sees_close() {
    boost::system::error_code error;
    std::array<std::byte, 4096> bytes{};
    while (!error) {
      socket_.read_some(asio::buffer(bytes), error);
    }
    return error == asio::error::eof || error == asio::error::connection_reset;
  }
  void reset() {
    socket_.set_option(asio::socket_base::linger(true, 0));
    socket_.close();
  }

 private:
  asio::io_context context_;
  tcp::socket socket_;
};

struct Blocks {
  std::vector<std::byte> bytes;  // a whole frame
  std::vector<std::byte> tiles;
};
inline Blocks blocks_frame(const SequenceKey& key, std::uint64_t sequence, std::size_t tile_bytes) {
  Blocks frame;
  frame.tiles = pattern(tile_bytes, static_cast<std::uint32_t>(sequence));
  const auto encoded = wire::encode_blocks_header({0, 0, 4, 0, 3, 0, 4, 128});
  const std::vector<std::span<const std::byte>> parts{frame.tiles};
  const auto header = wire::encode_header(wire::blocks_frame_header(key, sequence, encoded, parts));
  frame.bytes.assign(header.begin(), header.end());
  frame.bytes.insert(frame.bytes.end(), encoded.begin(), encoded.end());
  frame.bytes.insert(frame.bytes.end(), frame.tiles.begin(), frame.tiles.end());
  return frame;
}

class TcpFixture : public ::testing::Test {
 protected:
  // A node that listens on a free port and dials `peers`.
  std::unique_ptr<TestNode> node(wire::pb::Hello hello, std::vector<net::HostPort> peers = {},
                                 std::uint16_t port = 0) {
    TcpTransportOptions options = options_;
    options.hello = std::move(hello);
    options.serving_bind = net::HostPort{"127.0.0.1", port};
    options.peers = std::move(peers);
    auto transport = std::make_unique<TcpTransport>(loop_.executor(), &io_, options);
    auto* raw = transport.get();
    auto made = std::make_unique<TestNode>(&loop_, std::move(transport));
    const Status status = made->on_loop([&] { return raw->start(); });
    EXPECT_TRUE(status.has_value()) << (status ? "" : status.error().message);
    return made;
  }
  static net::HostPort address(TestNode* node) {
    return node->on_loop(
        [&] { return static_cast<TcpTransport*>(node->transport.get())->serving_address(); });
  }
  void SetUp() override {
    options_.stall_deadline = milliseconds(300);
    options_.handshake_deadline = milliseconds(500);
    options_.redial_first = milliseconds(5);
    options_.redial_most = milliseconds(20);
  }
  void make_d() {
    d_ = node(test::hello("d1", NodeRole::kDecode));
    address_ = address(d_.get());
  }

  net::EventLoop loop_{"test-control"};
  net::IoPool io_{2, "test-io"};
  TcpTransportOptions options_;
  wire::pb::Hello raw_hello_ = hello("raw", NodeRole::kPrefill);
  net::HostPort address_;
  std::unique_ptr<TestNode> d_;
};

}  // namespace baton::handoff::test
