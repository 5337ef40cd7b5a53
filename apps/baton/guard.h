// What keeps strangers out and listeners deaf: TLS for clients, mutual TLS and the cluster token
// for nodes, from flags and one variable. Read before anything else is done.
#pragma once

#include "baton/handoff/cluster_token.h"
#include "baton/net/tls.h"

#include "apps/baton/options.h"
#include <memory>

namespace baton::app {

// The token itself, in the environment: it must not be on a command line, where all users see it.
inline constexpr const char* kTokenVariable = "BATON_CLUSTER_TOKEN";

struct Guard {
  std::shared_ptr<const net::TlsContext> http;         // null: plain HTTP
  std::shared_ptr<const net::TlsContext> nodes;        // null: node connections in the clear
  std::shared_ptr<const handoff::ClusterToken> token;  // null: no proof is asked for

  [[nodiscard]] bool guards_nodes() const { return nodes != nullptr || token != nullptr; }
};

// Reads the files and says what is protected how. Throws StartupError naming the flag: half of a
// set of flags, a file that is missing or not what it should be, a key of another certificate, a
// token that is too short or given twice.
Guard load_guard(const ServeOptions& options);

}  // namespace baton::app
