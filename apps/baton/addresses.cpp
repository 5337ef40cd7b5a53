#include "apps/baton/addresses.h"

#include "baton/handoff/tcp_transport.h"
#include "baton/net/tcp.h"

#include <boost/asio/io_context.hpp>

namespace baton::app {
namespace {

constexpr int kDefaultPort = 8080;

membership::PeerList peers(const std::string& text, const char* flag) {
  auto parsed = membership::parse_peers(text, flag);
  if (!parsed) {
    throw StartupError(parsed.error());
  }
  return *std::move(parsed);
}

net::HostPort check_address(const net::HostPort& address, const char* flag) {
  asio::io_context nothing_runs;
  const auto acceptor = net::listen(nothing_runs.get_executor(), address);
  if (!acceptor) {
    throw StartupError(std::string(flag) + ": " + acceptor.error().message);
  }
  return net::local_address(*acceptor);
}

}  // namespace

bool owns_clients(const ServeOptions& options) {
  return options.role == message::NodeRole::kSingle || options.role == message::NodeRole::kRouter;
}

bool serves_http(const ServeOptions& options) { return options.port >= 0 || owns_clients(options); }

net::HostPort http_address(const ServeOptions& options) {
  return {options.host, static_cast<std::uint16_t>(options.port < 0 ? kDefaultPort : options.port)};
}

net::HostPort serving_address(const ServeOptions& options) {
  auto address = net::parse_host_port(options.serving_bind, true);
  if (!address) {
    throw StartupError("--serving-bind: " + address.error().message);
  }
  return *std::move(address);
}

net::HostPort advertised(const ServeOptions& options, const net::HostPort& bound) {
  if (options.serving_advertise.empty()) {
    return bound;
  }
  auto address = net::parse_host_port(options.serving_advertise);
  if (!address) {
    throw StartupError("--serving-advertise: " + address.error().message);
  }
  return *std::move(address);
}

membership::PeerList prefill_peers(const ServeOptions& options) {
  return peers(options.prefill_peers, "--prefill-peers");
}

membership::PeerList decode_peers(const ServeOptions& options) {
  return peers(options.decode_peers, "--decode-peers");
}

void check_can_listen(const ServeOptions& options, bool nodes_guarded) {
  if (serves_http(options)) {
    check_address(http_address(options), "--port");
  }
  if (!options.serving_bind.empty()) {
    const net::HostPort local = check_address(serving_address(options), "--serving-bind");
    if (const auto allowed = handoff::check_guarded(local, nodes_guarded); !allowed) {
      throw StartupError("--serving-bind: " + allowed.error().message);
    }
  }
}

}  // namespace baton::app
