#include "baton/membership/peer_list.h"

#include "baton/base/trimmed.h"

#include <algorithm>
#include <optional>
#include <string>

namespace baton::membership {

namespace {

// What follows "dns:"; nothing for an address. "dns:7001" is a host called dns.
std::optional<std::string_view> name_of(std::string_view entry) {
  for (const std::string_view scheme : {"dns:///", "dns://", "dns:"}) {
    if (entry.starts_with(scheme)) {
      const std::string_view name = entry.substr(scheme.size());
      const bool is_port_of_dns = scheme == "dns:" && name.find(':') == std::string_view::npos;
      return is_port_of_dns ? std::nullopt : std::optional(name);
    }
  }
  return std::nullopt;
}

}  // namespace

Result<PeerList> parse_peers(std::string_view text, std::string_view flag) {
  const auto refuse = [&](const std::string& why) {
    return fail(ErrorCode::kInvalidArgument, std::string(flag) + ": " + why, std::string(flag));
  };
  PeerList peers;
  std::string_view rest = trimmed(text);
  if (rest.empty()) {
    return peers;
  }
  for (bool more = true; more;) {
    const std::size_t count = peers.addresses.size() + peers.names.size();
    const std::size_t comma = rest.find(',');
    const std::string_view entry = trimmed(rest.substr(0, comma));
    more = comma != std::string_view::npos;
    rest = more ? rest.substr(comma + 1) : std::string_view();
    if (entry.empty()) {
      return refuse("entry " + std::to_string(count + 1) + " is empty");
    }
    const auto name = name_of(entry);
    auto peer = net::parse_host_port(name.value_or(entry));
    if (!peer) {
      return refuse("\"" + std::string(entry) + "\": " + peer.error().message);
    }
    std::vector<net::HostPort>& list = name ? peers.names : peers.addresses;
    if (std::find(list.begin(), list.end(), *peer) != list.end()) {
      return refuse("\"" + std::string(entry) + "\" is listed twice");
    }
    if (count == kMaxPeers) {
      return refuse("more than " + std::to_string(kMaxPeers) + " peers");
    }
    list.push_back(*std::move(peer));
  }
  return peers;
}

}  // namespace baton::membership
