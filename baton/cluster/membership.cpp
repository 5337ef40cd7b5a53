#include "baton/cluster/membership.h"

#include <algorithm>
#include <string>

namespace baton::cluster {

namespace {

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) {
    return {};
  }
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

}  // namespace

Result<std::vector<net::HostPort>> parse_peers(std::string_view text, std::string_view flag) {
  const auto refuse = [&](const std::string& why) {
    return fail(ErrorCode::kInvalidArgument, std::string(flag) + ": " + why, std::string(flag));
  };
  std::vector<net::HostPort> peers;
  std::string_view rest = trimmed(text);
  if (rest.empty()) {
    return peers;
  }
  for (bool more = true; more;) {
    const std::size_t comma = rest.find(',');
    const std::string_view entry = trimmed(rest.substr(0, comma));
    more = comma != std::string_view::npos;
    rest = more ? rest.substr(comma + 1) : std::string_view();
    if (entry.empty()) {
      return refuse("entry " + std::to_string(peers.size() + 1) + " is empty");
    }
    auto peer = net::parse_host_port(entry);
    if (!peer) {
      return refuse(peer.error().message);
    }
    if (std::find(peers.begin(), peers.end(), *peer) != peers.end()) {
      return refuse("\"" + std::string(entry) + "\" is listed twice");
    }
    if (peers.size() == kMaxPeers) {
      return refuse("more than " + std::to_string(kMaxPeers) + " peers");
    }
    peers.push_back(*std::move(peer));
  }
  return peers;
}

}  // namespace baton::cluster
