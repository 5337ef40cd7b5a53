#include "baton/net/tcp.h"

#include "baton/net/async_clock.h"

#include <fmt/format.h>

namespace baton::net {

void apply_options(tcp::socket& socket, const SocketOptions& options) {
  boost::system::error_code ignored;  // tuning only: the connection works without
  socket.set_option(tcp::no_delay(options.no_delay), ignored);
  if (options.buffer_bytes > 0) {
    const int bytes = static_cast<int>(std::min<std::size_t>(options.buffer_bytes, 1U << 30));
    socket.set_option(asio::socket_base::send_buffer_size(bytes), ignored);
    socket.set_option(asio::socket_base::receive_buffer_size(bytes), ignored);
  }
}

std::string describe(const tcp::endpoint& endpoint) {
  return to_string(HostPort{endpoint.address().to_string(), endpoint.port()});
}

bool is_loopback(const asio::ip::address& address) {
  if (address.is_v6() && address.to_v6().is_v4_mapped()) {
    return asio::ip::make_address_v4(asio::ip::v4_mapped, address.to_v6()).is_loopback();
  }
  return address.is_loopback();
}

HostPort local_address(const tcp::acceptor& acceptor) {
  boost::system::error_code error;
  const tcp::endpoint endpoint = acceptor.local_endpoint(error);
  return HostPort{endpoint.address().to_string(), endpoint.port()};
}

Result<tcp::acceptor> listen(const asio::any_io_executor& executor, const HostPort& address) {
  const auto failed = [&](const boost::system::error_code& error) {
    std::string reason = error.message();
    if (error == asio::error::address_in_use) {
      reason = "address already in use: another process listens there";
    }
    return fail(ErrorCode::kIo, fmt::format("cannot listen on {}: {}", to_string(address), reason));
  };
  boost::system::error_code error;
  tcp::resolver resolver(executor);
  const auto found =
      resolver.resolve(address.host, std::to_string(address.port),
                       tcp::resolver::passive | tcp::resolver::numeric_service, error);
  if (error || found.empty()) {
    return failed(error ? error : asio::error::host_not_found);
  }
  const tcp::endpoint endpoint = found.begin()->endpoint();
  tcp::acceptor acceptor(executor);
  acceptor.open(endpoint.protocol(), error);
  if (!error) {
    acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  }
  if (!error) {
    acceptor.bind(endpoint, error);
  }
  if (!error) {
    acceptor.listen(asio::socket_base::max_listen_connections, error);
  }
  if (error) {
    return failed(error);
  }
  return acceptor;
}

namespace {

asio::awaitable<Result<tcp::socket>> connect_any(HostPort address, SocketOptions options) {
  const auto executor = co_await asio::this_coro::executor;
  boost::system::error_code error;
  std::vector<tcp::endpoint> endpoints;
  const auto numeric = asio::ip::make_address(address.host, error);
  if (!error) {
    endpoints.emplace_back(numeric, address.port);
  } else {
    tcp::resolver resolver(executor);
    auto [failure, found] = co_await resolver.async_resolve(
        address.host, std::to_string(address.port), tcp::resolver::numeric_service, kTuple);
    error = failure;
    for (const auto& entry : found) {
      endpoints.push_back(entry.endpoint());
    }
  }
  for (const tcp::endpoint& endpoint : endpoints) {
    tcp::socket socket(executor);
    socket.open(endpoint.protocol(), error);
    if (error) {
      continue;
    }
    apply_options(socket, options);  // buffers before connect: they set the window's scale
    auto [failure] = co_await socket.async_connect(endpoint, kTuple);
    error = failure;
    if (!error) {
      co_return std::move(socket);
    }
  }
  if (error == asio::error::operation_aborted) {
    co_return fail(ErrorCode::kCancelled, "cancelled");
  }
  const std::string reason = error ? error.message() : "no address found";
  co_return fail(ErrorCode::kPeerLost,
                 fmt::format("cannot connect to {}: {}", to_string(address), reason));
}

}  // namespace

asio::awaitable<Result<tcp::socket>> connect(HostPort address, Duration deadline,
                                             SocketOptions options) {
  SystemAsyncClock clock;
  auto attempt = connect_any(address, options);
  std::string what = fmt::format("connecting to {}", to_string(address));
  co_return co_await with_deadline(clock, deadline, std::move(what), std::move(attempt));
}

}  // namespace baton::net
