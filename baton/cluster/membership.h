// Static membership: the text of --prefill-peers and --decode-peers to addresses. DNS and etcd come
// beside it later. Pure; any thread.
#pragma once

#include "baton/base/result.h"
#include "baton/net/address.h"

#include <string_view>
#include <vector>

namespace baton::cluster {

inline constexpr std::size_t kMaxPeers = 1024;  // a list longer than any cluster is a mistake

// "a:1,b:2"; spaces around entries are allowed, an empty text is an empty list.
// Errors: kInvalidArgument naming flag and entry (empty, no port, port out of range, twice); param
// is the flag.
Result<std::vector<net::HostPort>> parse_peers(std::string_view text, std::string_view flag);

}  // namespace baton::cluster
