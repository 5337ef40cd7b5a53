// Static membership: the text of --prefill-peers and --decode-peers to addresses. DNS and etcd come
// beside it later. Pure; any thread.
#pragma once

#include "baton/base/result.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace baton::cluster {

inline constexpr std::size_t kMaxPeers = 1024;  // a list longer than any cluster is a mistake

struct PeerAddress {
  std::string host;  // name, IPv4, or IPv6 without brackets
  std::uint16_t port = 0;
  auto operator<=>(const PeerAddress&) const = default;
  [[nodiscard]] std::string text() const;  // "host:port", "[::1]:port"
};

// "host:port", "[v6]:port". Errors: kInvalidArgument naming the entry.
Result<PeerAddress> parse_peer(std::string_view entry);
// "a:1,b:2"; spaces around entries are allowed, an empty text is an empty list.
// Errors: kInvalidArgument naming the entry (empty, no port, port out of 1..65535, twice); `flag`
// goes to Error::param and the message.
Result<std::vector<PeerAddress>> parse_peers(std::string_view text, std::string_view flag);

}  // namespace baton::cluster
