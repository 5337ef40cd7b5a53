// Names to addresses, without blocking the caller: the system's look-up runs on a thread of the
// event loop's. An interface, so that tests need no name server.
#pragma once

#include "baton/base/result.h"
#include "baton/net/asio.h"

#include <string>
#include <vector>

namespace baton::net {

class Resolver {
 public:
  virtual ~Resolver() = default;
  // Numeric addresses, sorted, each once, never none. Of a name that has IPv4 addresses only those,
  // since its IPv6 ones are mostly the same hosts again. Errors: kIo naming the host and the
  // reason. Cancelling ends the wait at once. Thread: the caller's executor.
  virtual asio::awaitable<Result<std::vector<std::string>>> resolve(std::string host) = 0;
};

// getaddrinfo: DNS, /etc/hosts, whatever the machine is set up for. One look-up at a time per event
// loop, and the loop's end waits for the one under way.
class SystemResolver final : public Resolver {
 public:
  asio::awaitable<Result<std::vector<std::string>>> resolve(std::string host) override;
};

}  // namespace baton::net
