// "host:port" as people write it in flags: IPv4, [IPv6], names. No sockets, no look-ups.
#pragma once

#include "baton/base/result.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace baton::net {

struct HostPort {
  std::string host;  // IPv6 without brackets
  std::uint16_t port = 0;
  auto operator<=>(const HostPort&) const = default;
};

// "127.0.0.1:80", "[::1]:80", "node-7.local:80"; ":80" means 127.0.0.1. Port 0 (any free one) only
// when `allow_port_0`. Errors: kInvalidArgument, quoting the text and saying what is wrong with it.
Result<HostPort> parse_host_port(std::string_view text, bool allow_port_0 = false);
// A comma-separated list; empty text is an empty list. Errors: as above; a repeated entry.
Result<std::vector<HostPort>> parse_host_ports(std::string_view text);
std::string to_string(const HostPort& address);

}  // namespace baton::net
