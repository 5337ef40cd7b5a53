#include "baton/net/resolver.h"

#include "baton/net/async_event.h"

#include <fmt/format.h>

#include <memory>
#include <set>

namespace baton::net {

namespace {

struct Lookup {
  explicit Lookup(const asio::any_io_executor& executor) : resolver(executor), done(executor) {}
  tcp::resolver resolver;
  AsyncEvent done;
  boost::system::error_code error;
  tcp::resolver::results_type found;
};

}  // namespace

// Asio cannot break off a getaddrinfo: whoever is cancelled leaves it to itself.
asio::awaitable<Result<std::vector<std::string>>> SystemResolver::resolve(std::string host) {
  auto lookup = std::make_shared<Lookup>(co_await asio::this_coro::executor);
  lookup->resolver.async_resolve(
      host, "",
      [lookup](const boost::system::error_code& error, tcp::resolver::results_type found) {
        lookup->error = error;
        lookup->found = std::move(found);
        lookup->done.set();
      });
  co_await lookup->done.wait();
  std::set<std::string> v4;
  std::set<std::string> v6;
  for (const auto& entry : lookup->found) {
    const auto address = entry.endpoint().address();
    (address.is_v4() ? v4 : v6).insert(address.to_string());
  }
  const std::set<std::string>& chosen = v4.empty() ? v6 : v4;
  if (chosen.empty()) {
    const std::string reason = lookup->error ? lookup->error.message() : "it has no address";
    co_return fail(ErrorCode::kIo, fmt::format("cannot look up '{}': {}", host, reason));
  }
  co_return std::vector<std::string>(chosen.begin(), chosen.end());
}

}  // namespace baton::net
