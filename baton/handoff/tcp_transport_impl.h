// The inside of TcpTransport, private to its source files: tcp_transport.cpp (peers and control
// connections), tcp_transport_accept.cpp and tcp_transport_dial.cpp (the two sides of a handshake).
// Everything here runs on the control loop, except what tcp_transport_bulk.h says about the I/O
// pool.
#pragma once

#include "baton/handoff/bulk_reader.h"
#include "baton/handoff/tcp_connection.h"
#include "baton/handoff/tcp_transport.h"
#include "baton/handoff/tcp_transport_bulk.h"
#include "baton/net/async_clock.h"
#include "baton/net/task_group.h"

#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace baton::handoff {

// Control frames that wait for a peer: one that takes none for so long is closed. Bytes: 16 prompts
// of the largest size.
inline constexpr std::size_t kMaxQueuedControlFrames = 8192;
inline constexpr std::size_t kMaxQueuedControlBytes = std::size_t{16} << 20;
// Handshakes under way as acceptor, in all and from one address, and peers in all: far above any
// cluster of ours, and what strangers can cost (64 KiB each). One stranger cannot shut others out.
inline constexpr int kMaxPendingHandshakes = 256;
inline constexpr int kMaxPendingPerHost = 64;
inline constexpr std::size_t kMaxPeers = 1024;
// Bulk connections that one peer may open to us.
inline constexpr std::size_t kMaxBulkPerPeer = 16;
// Refusals remembered so that each is reported once.
inline constexpr std::size_t kMaxRemembered = 256;
// Lines about refused connections: each host and reason once a minute, since peers try again for
// ever, and not many in all, since whoever reaches the port could fill the log with them.
inline constexpr Duration kRefusalRepeat = std::chrono::seconds(60);
inline constexpr int kMaxRefusalLines = 20;
inline constexpr Duration kRefusalWindow = std::chrono::seconds(10);

// A live, handshaken control connection and what hangs on it.
struct TcpPeer {
  TcpPeer(wire::pb::Hello theirs, std::unique_ptr<net::TcpStream> taken, bool we_dialled);

  NodeId id;
  wire::pb::Hello hello;
  bool dialled;  // by us
  std::unique_ptr<net::TcpStream> stream;
  std::shared_ptr<EventCredit> credit;
  net::AsyncQueue<std::vector<std::byte>> writes;
  std::size_t queued_bytes = 0;
  net::HostPort bulk_address;  // port 0: unknown
  std::vector<std::shared_ptr<BulkSender>> senders;
  std::vector<std::weak_ptr<BulkInbound>> inbound;
};

// One address that is dialled, and what is known of it.
struct Dialler {
  Dialler(net::HostPort where, const asio::any_io_executor& control)
      : address(std::move(where)), peer_lost(control) {}
  net::HostPort address;
  // The process that answered there last and fits; none once somebody or nobody else does.
  std::optional<wire::pb::Hello> answered;
  std::string last_failure;
  net::AsyncEvent peer_lost;
  net::TaskId task;      // dial_loop, which shares this
  bool removed = false;  // it ends
};

class TcpTransport::Impl {
 public:
  Impl(asio::any_io_executor control, net::IoPool* io, TcpTransportOptions options);
  ~Impl();

  Status start();
  void add_peer(const net::HostPort& address);
  void remove_peer(const net::HostPort& address);
  std::optional<NodeId> peer_at(const net::HostPort& address) const;
  Status send_control(const NodeId& to, const SequenceKey& key, const wire::Control& message);
  asio::awaitable<Result<BulkSent>> send_bulk(NodeId to, std::shared_ptr<BulkJob> job);
  asio::awaitable<Result<TransportEvent>> next();
  void disconnect(const NodeId& peer, const Error& reason);
  void shutdown();
  asio::awaitable<void> stopped();

  const asio::any_io_executor control_;
  net::IoPool* const io_;
  TcpTransportOptions options_;
  EventFunnel events_;
  BulkSink* sink_ = nullptr;
  TransportStats stats_;
  std::optional<tcp::acceptor> acceptor_;

 private:
  // ---- peers (tcp_transport.cpp)
  std::shared_ptr<TcpPeer> find(const NodeId& id) const;
  // Who answered at that address, if it is connected (from there or not).
  std::shared_ptr<TcpPeer> reached(const Dialler& dialler) const;
  // Where a peer that dialled us is known to listen; none when no address of ours leads there.
  std::optional<net::HostPort> known_address(const wire::pb::Hello& theirs) const;
  // Makes the connection the live one of that peer. `by`: who dialled it, null when the peer did.
  void admit(wire::pb::Hello theirs, std::unique_ptr<net::TcpStream> stream, const Dialler* by);
  void lose(std::shared_ptr<TcpPeer> peer, const Error& reason);
  asio::awaitable<void> read_control(std::shared_ptr<TcpPeer> peer);
  asio::awaitable<Status> read_control_frame(std::shared_ptr<TcpPeer> peer);
  // Until what lies in the peer's control socket has become events, or does not in a few turns.
  asio::awaitable<void> hear_control(NodeId from);
  asio::awaitable<void> write_control(std::shared_ptr<TcpPeer> peer);
  // The way on which KV goes between that node and this one; null when none ever does.
  TransportStats::Way* way_to(const wire::pb::Hello& theirs);
  std::shared_ptr<BulkSender> pick_sender(TcpPeer* peer);
  void start_sender(std::shared_ptr<BulkSender> sender, std::size_t loop);

  // ---- connections to be (tcp_transport_accept.cpp, tcp_transport_dial.cpp)
  asio::awaitable<void> accept_loop();
  asio::awaitable<void> greet_inbound(std::unique_ptr<net::TcpStream> stream);
  asio::awaitable<Result<wire::pb::Hello>> answer_hello(net::TcpStream* stream);
  std::optional<Mismatch> judge_inbound(const wire::pb::Hello& theirs);
  void admit_inbound(wire::pb::Hello theirs, std::unique_ptr<net::TcpStream> stream);
  void admit_bulk(const wire::pb::Hello& theirs, std::unique_ptr<net::TcpStream> stream);
  asio::awaitable<void> dial_loop(std::shared_ptr<Dialler> dialler);
  asio::awaitable<Status> dial_once(Dialler* dialler);
  asio::awaitable<Result<wire::pb::HelloReply>> shake_hands(net::TcpStream* stream,
                                                            Dialler* dialler);
  std::optional<Mismatch> judge_answer(const wire::pb::Hello& theirs);
  asio::awaitable<Result<wire::pb::Hello>> refuse_stranger(net::TcpStream* stream,
                                                           Mismatch mismatch);
  void report_unusable(const std::string& address, const std::string& about, const Error& error);
  void log_refusal(const net::TcpStream& stream, const Error& error);
  [[nodiscard]] bool has_lower_id_than(const wire::pb::Hello& theirs) const;

  net::TaskGroup tasks_;
  std::vector<std::unique_ptr<net::TaskGroup>> io_tasks_;  // one per loop of the pool, used there
  std::map<NodeId, std::shared_ptr<TcpPeer>> peers_;
  std::map<net::HostPort, std::shared_ptr<Dialler>> diallers_;
  std::multiset<NodeId> pending_inbound_;  // whom we accepted and who has not confirmed yet
  int pending_handshakes_ = 0;
  std::map<std::string, int> pending_from_;                           // of these, by host
  std::map<std::pair<std::string, std::string>, TimePoint> refused_;  // host, reason: last line
  TimePoint refusals_since_{};                                        // log_refusal's window
  int refusal_lines_ = 0;
  int refusals_unsaid_ = 0;
  std::map<std::string, std::string> reported_;  // peer -> last refusal
  std::mt19937_64 random_;                       // jitter only
  bool started_ = false;
  bool stopping_ = false;
};

}  // namespace baton::handoff
