#include "baton/handoff/bulk_connection.h"

#include "baton/handoff/tcp_connection.h"

#include <fmt/format.h>

#include <array>

namespace baton::handoff {

void BulkConnection::close() {
  if (lane) {
    lane->close();
  }
  stream->close();
}

bool agree_on_fabric(const wire::pb::Hello& ours, const wire::pb::Hello& theirs) {
  return !ours.fabric().empty() && ours.fabric() == theirs.fabric();
}

Duration lane_deadline(std::uint64_t bytes, Duration stall) {
  return stall + std::chrono::seconds(bytes >> 20U);
}

namespace {

Result<std::vector<std::byte>> address_frame(const net::Lane& lane) {
  wire::pb::Lane message;
  message.set_address(lane.address());
  return wire::encode_lane(message);
}

asio::awaitable<Status> tell_address(BulkConnection* connection, Duration stall) {
  auto frame = address_frame(*connection->lane);
  if (!frame) {
    co_return fail(std::move(frame).error());
  }
  co_return co_await write_frame(connection->stream.get(), *std::move(frame), stall);
}

asio::awaitable<Result<std::string>> hear_address(BulkConnection* connection, Duration stall) {
  wire::EncodedHeader raw{};
  auto header = co_await read_header(connection->stream.get(), &raw, stall, stall);
  if (!header) {
    co_return fail(std::move(header).error());
  }
  if (header->type != wire::FrameType::kLane) {
    co_return fail(ErrorCode::kProtocol,
                   fmt::format("a {} came instead of a lane", wire::frame_type_name(header->type)));
  }
  auto payload = co_await read_payload(connection->stream.get(), *header, stall);
  if (!payload) {
    co_return fail(std::move(payload).error());
  }
  auto message = wire::decode_lane(*header, *payload);
  if (!message) {
    co_return fail(std::move(message).error());
  }
  co_return message->address();
}

}  // namespace

asio::awaitable<Status> offer_lane(std::shared_ptr<BulkConnection> connection, net::Fabric* fabric,
                                   Duration stall) {
  auto lane = fabric->open_lane(connection->stream->executor());
  if (!lane) {
    co_return fail(std::move(lane).error());
  }
  connection->lane = *std::move(lane);
  auto told = co_await tell_address(connection.get(), stall);
  if (!told) {
    co_return told;
  }
  auto theirs = co_await hear_address(connection.get(), stall);
  if (!theirs) {
    co_return fail(std::move(theirs).error());
  }
  co_return connection->lane->connect(*theirs);
}

asio::awaitable<Status> answer_lane(std::shared_ptr<BulkConnection> connection, net::Fabric* fabric,
                                    Duration stall) {
  auto theirs = co_await hear_address(connection.get(), stall);
  if (!theirs) {
    co_return fail(std::move(theirs).error());
  }
  auto lane = fabric->open_lane(connection->stream->executor());
  if (!lane) {
    co_return fail(std::move(lane).error());
  }
  connection->lane = *std::move(lane);
  auto connected = connection->lane->connect(*theirs);
  if (!connected) {
    co_return connected;
  }
  co_return co_await tell_address(connection.get(), stall);
}

asio::awaitable<Status> try_lane(std::shared_ptr<BulkConnection> connection, Duration deadline) {
  auto frame = address_frame(*connection->lane);
  if (!frame) {
    co_return fail(std::move(frame).error());
  }
  const auto end_of_header = frame->begin() + static_cast<std::ptrdiff_t>(wire::kHeaderBytes);
  std::vector<std::byte> header(frame->begin(), end_of_header);
  std::vector<std::span<const std::byte>> payload{std::span(*frame).subspan(wire::kHeaderBytes)};
  co_return co_await connection->lane->send(std::move(header), std::move(payload), deadline);
}

asio::awaitable<void> watch(std::shared_ptr<BulkConnection> connection) {
  struct Ending {
    ~Ending() { connection->close(); }
    BulkConnection* connection;
  };
  const Ending ending{connection.get()};
  std::array<std::byte, 1> byte{};
  const std::span<std::byte> into(byte);
  co_await connection->stream->read_some(into, net::kForever);  // nothing is sent here: its end
}

}  // namespace baton::handoff
