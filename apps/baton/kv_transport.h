// --kv-transport: by which way KV goes between nodes, where the peer has it too.
#pragma once

#include "baton/net/fabric.h"

#include "apps/baton/guard.h"
#include "apps/baton/options.h"
#include <memory>

namespace baton::app {

// Null: TCP. Throws StartupError when UCX is asked for and cannot be had, or may not be used (TLS).
// Before any thread is made: UCX reads and sets variables.
std::shared_ptr<net::Fabric> load_fabric(const ServeOptions& options, const Guard& guard);

}  // namespace baton::app
