// What control and bulk connections share: reading and writing whole frames, the three handshake
// messages, and the way events take from a connection's thread to Transport::next().
#pragma once

#include "baton/handoff/cluster_token.h"
#include "baton/handoff/handshake.h"
#include "baton/handoff/transport.h"
#include "baton/net/async_event.h"
#include "baton/net/tcp.h"
#include "baton/wire/codec.h"

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace baton::handoff {

// Events of one connection that next() has not taken yet; then its reader waits, and TCP slows the
// peer down. 64 control frames of 1 MiB is also what a peer can make us hold.
inline constexpr int kMaxUnreadEvents = 64;

struct EventCredit {
  explicit EventCredit(const asio::any_io_executor& reader) : room(reader) {}
  std::atomic<int> unread{0};
  net::AsyncEvent room;
};

// From any connection's thread to the one consumer on the control loop, in order per connection.
class EventFunnel {
 public:
  explicit EventFunnel(const asio::any_io_executor& control);

  // Waits while the connection has too many unread events. Thread: the reader's executor.
  asio::awaitable<void> push(std::shared_ptr<EventCredit> credit, TransportEvent event);
  // For events whose number is bounded by the number of connections. Thread: any.
  void push_now(TransportEvent event);
  // Errors: kCancelled once closed. Thread: control.
  asio::awaitable<Result<TransportEvent>> next();
  void close();

 private:
  struct Entry {
    TransportEvent event;
    std::shared_ptr<EventCredit> credit;
  };
  net::AsyncQueue<Entry> entries_;
};

// The header of the next frame; `raw` gets its bytes. The first byte may take `idle`, the others
// `stall`. Errors: of TcpStream and wire::decode_header.
asio::awaitable<Result<wire::FrameHeader>> read_header(net::TcpStream* stream,
                                                       wire::EncodedHeader* raw, Duration idle,
                                                       Duration stall);
// The payload of a frame that is no Blocks frame: its length was checked with its header.
asio::awaitable<Result<std::vector<std::byte>>> read_payload(net::TcpStream* stream,
                                                             wire::FrameHeader header,
                                                             Duration stall);
asio::awaitable<Status> write_frame(net::TcpStream* stream, std::vector<std::byte> frame,
                                    Duration stall);

// ---- handshake: dialler Hello, acceptor HelloReply, dialler HelloReply
// ---------------------------
asio::awaitable<Result<wire::pb::Hello>> read_hello(net::TcpStream* stream, Duration stall);
asio::awaitable<Result<wire::pb::HelloReply>> read_hello_reply(net::TcpStream* stream,
                                                               Duration stall);
asio::awaitable<Status> write_hello_reply(net::TcpStream* stream, wire::pb::HelloReply reply,
                                          Duration stall);

// An acceptor's answer that may be trusted as far as our token goes.
struct Answered {
  wire::pb::HelloReply reply;
  std::string proof;  // ours, for the confirmation; empty without a token
};
// The dialler's first two steps: sends `ours`, with a nonce when there is a token, and gets the
// acceptor's answer. Errors: kHandshakeMismatch with param kTokenField, the acceptor having been
// told.
asio::awaitable<Result<Answered>> offer_hello(net::TcpStream* stream, wire::pb::Hello ours,
                                              const ClusterToken* token, Duration stall);

// TLS as one end of a node connection; nothing without a context. A peer that does not fit is heard
// to its end, so that our alert reaches it. Errors: of TcpStream::start_tls.
asio::awaitable<Status> secure(net::TcpStream* stream, std::shared_ptr<const net::TlsContext> tls,
                               End end, Duration stall);
// Adds what an operator does about it to an error of TLS.
Error advised(Error error);

// The field of a refusal that is about this connection, not about the nodes: connected already, or
// not yet. Nobody is told of it.
inline constexpr const char* kConnectionField = "connection";

// `proof` is empty when there is no token.
wire::pb::HelloReply accepting(std::string proof = {});
wire::pb::HelloReply refusing(const Mismatch& mismatch);
// What the other side said, seen from here.
Mismatch mismatch_of(const wire::pb::HelloReply& refusal);

bool same_boot(const wire::pb::Hello& a, const wire::pb::Hello& b);
std::string boot_text(const wire::pb::Hello& hello);

}  // namespace baton::handoff
