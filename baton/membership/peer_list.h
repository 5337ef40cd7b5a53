// The text of --prefill-peers and --decode-peers: addresses, and names that stand for as many nodes
// as they have addresses. Pure; any thread.
#pragma once

#include "baton/base/result.h"
#include "baton/net/address.h"

#include <string_view>
#include <vector>

namespace baton::membership {

inline constexpr std::size_t kMaxPeers = 1024;  // more than any cluster of ours: a mistake

struct PeerList {
  std::vector<net::HostPort> addresses;
  std::vector<net::HostPort> names;  // "dns:" entries: each address of the host, at that port
};

// "a:1,dns:prefill.baton.svc:7001"; "dns:///name:port" and "dns://name:port" mean the same. Spaces
// around entries are allowed, an empty text is an empty list. Errors: kInvalidArgument naming flag
// and entry (empty, no port, port out of range, twice, too many); param is the flag.
Result<PeerList> parse_peers(std::string_view text, std::string_view flag);

}  // namespace baton::membership
