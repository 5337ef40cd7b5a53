#include "baton/handoff/tcp_connection.h"

#include <fmt/format.h>

namespace baton::handoff {

EventFunnel::EventFunnel(const asio::any_io_executor& control)
    : entries_(control, static_cast<std::size_t>(-1)) {}

asio::awaitable<void> EventFunnel::push(std::shared_ptr<EventCredit> credit, TransportEvent event) {
  while (credit->unread.load() >= kMaxUnreadEvents) {
    co_await credit->room.wait();
  }
  credit->unread.fetch_add(1);
  Entry entry{std::move(event), std::move(credit)};
  entries_.push_unbounded(std::move(entry));
}

void EventFunnel::push_now(TransportEvent event) {
  entries_.push_unbounded(Entry{std::move(event), nullptr});
}

asio::awaitable<Result<TransportEvent>> EventFunnel::next() {
  auto entry = co_await entries_.pop();
  if (!entry) {
    co_return fail(ErrorCode::kCancelled, "the transport is shut down");
  }
  if (entry->credit && entry->credit->unread.fetch_sub(1) >= kMaxUnreadEvents) {
    entry->credit->room.set();
  }
  co_return std::move(entry->event);
}

void EventFunnel::close() { entries_.close_and_clear(); }

asio::awaitable<Result<wire::FrameHeader>> read_header(net::TcpStream* stream,
                                                       wire::EncodedHeader* raw, Duration idle,
                                                       Duration stall) {
  const std::span<std::byte> bytes(*raw);
  auto first = co_await stream->read_some(bytes, idle);
  if (!first) {
    co_return fail(std::move(first).error());
  }
  auto rest = co_await stream->read_exact(bytes.subspan(*first), stall);
  if (!rest) {
    co_return fail(std::move(rest).error());
  }
  co_return wire::decode_header(*raw);
}

asio::awaitable<Result<std::vector<std::byte>>> read_payload(net::TcpStream* stream,
                                                             wire::FrameHeader header,
                                                             Duration stall) {
  std::vector<std::byte> payload(header.payload_bytes);
  const std::span<std::byte> bytes(payload);
  auto status = co_await stream->read_exact(bytes, stall);
  if (!status) {
    co_return fail(std::move(status).error());
  }
  co_return std::move(payload);
}

asio::awaitable<Status> write_frame(net::TcpStream* stream, std::vector<std::byte> frame,
                                    Duration stall) {
  std::vector<iovec> parts(1, iovec{frame.data(), frame.size()});
  co_return co_await stream->write_all(std::move(parts), stall);
}

asio::awaitable<Result<wire::pb::Hello>> read_hello(net::TcpStream* stream, Duration stall) {
  wire::EncodedHeader raw{};
  auto header = co_await read_header(stream, &raw, stall, stall);
  if (!header) {
    co_return fail(std::move(header).error());
  }
  if (header->type != wire::FrameType::kHello) {
    co_return fail(ErrorCode::kProtocol,
                   fmt::format("{} began with a {} instead of a hello", stream->peer(),
                               wire::frame_type_name(header->type)));
  }
  auto payload = co_await read_payload(stream, *header, stall);
  if (!payload) {
    co_return fail(std::move(payload).error());
  }
  co_return wire::decode_hello(*header, *payload);
}

asio::awaitable<Result<wire::pb::HelloReply>> read_hello_reply(net::TcpStream* stream,
                                                               Duration stall) {
  wire::EncodedHeader raw{};
  auto header = co_await read_header(stream, &raw, stall, stall);
  if (!header) {
    co_return fail(std::move(header).error());
  }
  if (header->type != wire::FrameType::kHelloReply) {
    co_return fail(ErrorCode::kProtocol,
                   fmt::format("{} answered a hello with a {}", stream->peer(),
                               wire::frame_type_name(header->type)));
  }
  auto payload = co_await read_payload(stream, *header, stall);
  if (!payload) {
    co_return fail(std::move(payload).error());
  }
  co_return wire::decode_hello_reply(*header, *payload);
}

asio::awaitable<Status> write_hello_reply(net::TcpStream* stream, wire::pb::HelloReply reply,
                                          Duration stall) {
  auto frame = wire::encode_hello_reply(reply);
  if (!frame) {
    co_return fail(std::move(frame).error());
  }
  co_return co_await write_frame(stream, *std::move(frame), stall);
}

asio::awaitable<Result<wire::pb::HelloReply>> offer_hello(net::TcpStream* stream,
                                                          wire::pb::Hello ours, Duration stall) {
  auto frame = wire::encode_hello(ours);
  if (!frame) {
    co_return fail(std::move(frame).error());
  }
  auto status = co_await write_frame(stream, *std::move(frame), stall);
  if (!status) {
    co_return fail(std::move(status).error());
  }
  auto reply = co_await read_hello_reply(stream, stall);
  if (reply && !reply->has_hello()) {
    co_return fail(ErrorCode::kProtocol,
                   stream->peer() + " answered a hello without saying who it is");
  }
  co_return std::move(reply);
}

wire::pb::HelloReply accepting() {
  wire::pb::HelloReply reply;
  reply.set_accepted(true);
  return reply;
}

wire::pb::HelloReply refusing(const Mismatch& mismatch) {
  wire::pb::HelloReply reply;
  reply.set_field(mismatch.field.substr(0, wire::kMaxTextBytes));
  reply.set_ours(mismatch.ours.substr(0, wire::kMaxTextBytes));
  reply.set_theirs(mismatch.theirs.substr(0, wire::kMaxTextBytes));
  return reply;
}

Mismatch mismatch_of(const wire::pb::HelloReply& refusal) {
  return Mismatch{refusal.field(), refusal.theirs(), refusal.ours()};
}

bool same_boot(const wire::pb::Hello& a, const wire::pb::Hello& b) {
  return a.boot_high() == b.boot_high() && a.boot_low() == b.boot_low();
}

std::string boot_text(const wire::pb::Hello& hello) {
  return fmt::format("{:016x}{:016x}", hello.boot_high(), hello.boot_low());
}

}  // namespace baton::handoff
