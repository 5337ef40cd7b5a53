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

namespace {

// What a TLS peer says first: a record header of a ClientHello or of an alert.
bool is_tls(const wire::EncodedHeader& raw, std::uint8_t type) {
  return raw[0] == std::byte{type} && raw[1] == std::byte{3};
}
constexpr std::uint8_t kTlsAlert = 21;
constexpr std::uint8_t kTlsHandshake = 22;

// One frame of that type, the first of its sender.
asio::awaitable<Result<std::pair<wire::FrameHeader, std::vector<std::byte>>>> read_greeting(
    net::TcpStream* stream, wire::FrameType type, Duration stall) {
  wire::EncodedHeader raw{};
  auto header = co_await read_header(stream, &raw, stall, stall);
  if (is_tls(raw, kTlsHandshake) || is_tls(raw, kTlsAlert)) {
    co_return fail(ErrorCode::kHandshakeMismatch,
                   stream->peer() + " speaks TLS and this node does not", "tls");
  }
  if (!header) {
    co_return fail(std::move(header).error());
  }
  if (header->type != type) {
    co_return fail(ErrorCode::kProtocol,
                   fmt::format("{} sent a {} instead of a {}", stream->peer(),
                               wire::frame_type_name(header->type), wire::frame_type_name(type)));
  }
  auto payload = co_await read_payload(stream, *header, stall);
  if (!payload) {
    co_return fail(std::move(payload).error());
  }
  std::pair<wire::FrameHeader, std::vector<std::byte>> greeting(*header, *std::move(payload));
  co_return std::move(greeting);
}

}  // namespace

asio::awaitable<Result<wire::pb::Hello>> read_hello(net::TcpStream* stream, Duration stall) {
  auto greeting = co_await read_greeting(stream, wire::FrameType::kHello, stall);
  if (!greeting) {
    co_return fail(std::move(greeting).error());
  }
  co_return wire::decode_hello(greeting->first, greeting->second);
}

asio::awaitable<Result<wire::pb::HelloReply>> read_hello_reply(net::TcpStream* stream,
                                                               Duration stall) {
  auto greeting = co_await read_greeting(stream, wire::FrameType::kHelloReply, stall);
  if (!greeting) {
    co_return fail(std::move(greeting).error());
  }
  co_return wire::decode_hello_reply(greeting->first, greeting->second);
}

asio::awaitable<Status> write_hello_reply(net::TcpStream* stream, wire::pb::HelloReply reply,
                                          Duration stall) {
  auto frame = wire::encode_hello_reply(reply);
  if (!frame) {
    co_return fail(std::move(frame).error());
  }
  co_return co_await write_frame(stream, *std::move(frame), stall);
}

asio::awaitable<Result<Answered>> offer_hello(net::TcpStream* stream, wire::pb::Hello ours,
                                              const ClusterToken* token, Duration stall) {
  if (token != nullptr) {
    ours.set_nonce(make_nonce());
  }
  auto frame = wire::encode_hello(ours);
  if (!frame) {
    co_return fail(std::move(frame).error());
  }
  auto status = co_await write_frame(stream, *std::move(frame), stall);
  if (!status) {
    co_return fail(std::move(status).error());
  }
  auto reply = co_await read_hello_reply(stream, stall);
  if (!reply) {
    co_return fail(std::move(reply).error());
  }
  if (!reply->accepted() && reply->field() == kTokenField) {
    co_return fail(mismatch_error(mismatch_of(*reply), stream->peer()));
  }
  if (!reply->has_hello()) {
    co_return fail(ErrorCode::kProtocol,
                   stream->peer() + " answered a hello without saying who it is");
  }
  // Nothing that it says counts before it has shown that it is one of us.
  auto mismatch = find_token_mismatch(token, reply->hello());
  if (!mismatch && token != nullptr &&
      !is_proof(*token, End::kAcceptor, ours, reply->hello(), reply->proof())) {
    mismatch = unlike_tokens();
  }
  if (mismatch) {
    wire::pb::HelloReply refusal = refusing(*mismatch);
    (void)co_await write_hello_reply(stream, std::move(refusal), stall);
    co_return fail(mismatch_error(*mismatch, stream->peer()));
  }
  Answered answered{*std::move(reply), {}};
  if (token != nullptr) {
    answered.proof = make_proof(*token, End::kDialler, ours, answered.reply.hello());
  }
  co_return std::move(answered);
}

Error advised(Error error) {
  if (error.param == "tls") {
    error.message += "; give every node --node-tls-cert, --node-tls-key and the same --node-tls-ca";
  }
  return error;
}

asio::awaitable<Status> secure(net::TcpStream* stream, std::shared_ptr<const net::TlsContext> tls,
                               End end, Duration stall) {
  if (!tls) {
    co_return Status{};
  }
  const auto role = end == End::kDialler ? net::TlsRole::kClient : net::TlsRole::kServer;
  auto status = co_await stream->start_tls(std::move(tls), role, stall);
  if (!status && status.error().code == ErrorCode::kHandshakeMismatch) {
    co_await stream->linger(stall);
  }
  co_return status;
}

wire::pb::HelloReply accepting(std::string proof) {
  wire::pb::HelloReply reply;
  reply.set_accepted(true);
  reply.set_proof(std::move(proof));
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
