#include "baton/net/address.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace baton::net {

namespace {

Result<std::uint16_t> parse_port(std::string_view text, std::string_view whole, bool allow_port_0) {
  unsigned value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc{} || end != text.data() + text.size() || value > 65535) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("'{}': the port must be a number from 1 to 65535", whole));
  }
  if (value == 0 && !allow_port_0) {
    return fail(ErrorCode::kInvalidArgument, fmt::format("'{}': port 0 names no peer", whole));
  }
  return static_cast<std::uint16_t>(value);
}

bool is_host_char(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
         c == '-' || c == '_';
}

bool is_ipv6_char(char c) {
  return (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F') || (c >= '0' && c <= '9') || c == ':' ||
         c == '.' || c == '%';
}

}  // namespace

Result<HostPort> parse_host_port(std::string_view text, bool allow_port_0) {
  HostPort address;
  std::string_view port;
  if (!text.empty() && text.front() == '[') {
    const std::size_t close = text.find("]:");
    const bool good =
        close != std::string_view::npos && close > 1 &&
        std::all_of(text.begin() + 1, text.begin() + static_cast<long>(close), is_ipv6_char);
    if (!good) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("'{}': expected [IPv6 address]:port", text));
    }
    address.host = text.substr(1, close - 1);
    port = text.substr(close + 2);
  } else {
    const std::size_t colon = text.find(':');
    if (colon == std::string_view::npos) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("'{}': expected host:port, the port is missing", text));
    }
    if (text.find(':', colon + 1) != std::string_view::npos) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("'{}': write an IPv6 address as [address]:port", text));
    }
    address.host = colon == 0 ? "127.0.0.1" : std::string(text.substr(0, colon));
    if (!std::all_of(address.host.begin(), address.host.end(), is_host_char)) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("'{}': a host name has letters, digits, '.', '-', '_' only", text));
    }
    port = text.substr(colon + 1);
  }
  BATON_TRY(address.port, parse_port(port, text, allow_port_0));
  return address;
}

Result<std::vector<HostPort>> parse_host_ports(std::string_view text) {
  std::vector<HostPort> addresses;
  while (!text.empty()) {
    const std::size_t comma = text.find(',');
    BATON_TRY(HostPort address, parse_host_port(text.substr(0, comma)));
    if (std::find(addresses.begin(), addresses.end(), address) != addresses.end()) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("'{}' is named twice", to_string(address)));
    }
    addresses.push_back(std::move(address));
    if (comma == std::string_view::npos) {
      break;
    }
    text.remove_prefix(comma + 1);
    if (text.empty()) {
      return fail(ErrorCode::kInvalidArgument, "a list of addresses ends with a comma");
    }
  }
  return addresses;
}

std::string to_string(const HostPort& address) {
  const bool ipv6 = address.host.find(':') != std::string::npos;
  return fmt::format("{}{}{}:{}", ipv6 ? "[" : "", address.host, ipv6 ? "]" : "", address.port);
}

}  // namespace baton::net
