// Where the names of a request's prefixes begin: the same on every node and router, since it
// depends on the namespace alone. A pool holds KV of one model and one exactness tag, so neither is
// needed to tell its tiles apart. Pure; any thread.
#pragma once

#include "baton/kv/tile_digest.h"
#include "baton/message/request.h"

#include <string_view>

namespace baton::message {

inline kv::TileDigest prefix_root(kv::TileHasher& hasher, const Namespace& cache_namespace) {
  const std::string_view part(reinterpret_cast<const char*>(cache_namespace.data()),
                              cache_namespace.size());
  return hasher.root({&part, 1});
}

}  // namespace baton::message
