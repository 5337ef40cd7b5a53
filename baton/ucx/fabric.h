// UCX as a net::Fabric: RDMA where the machines have it, else shared memory or TCP, whichever the
// library picks (UCX_TLS and its other variables say what it may). docs/decisions/017-ucx.md says
// why it is used as it is. Knows nothing of frames, nodes or KV.
#pragma once

#include "baton/base/clock.h"
#include "baton/net/fabric.h"

#include <chrono>
#include <memory>
#include <string>

namespace baton::ucx {

struct UcxOptions {
  // Transports that may be used, as UCX_TLS; empty: what that variable says, else all there are.
  std::string transports;
  // The longest that closing a lane waits for what this machine does alone, copying between the
  // memories of two processes: a frame of 64 MiB takes some 20 ms. What is not done by then is
  // abandoned (docs/decisions/017-ucx.md).
  Duration settle = std::chrono::milliseconds(500);
};

// Whether this program was built with UCX's headers.
bool is_built();

// Loads the library (libucp.so.0) and makes a context, which lives as long as the fabric and its
// lanes. UCX reads its variables then; some get a default of ours (library.cpp). Errors:
// kUnsupported (not built in), kUnavailable (no library, or it refuses). Thread: any, before others
// run: it may set variables.
Result<std::shared_ptr<net::Fabric>> open_fabric(const UcxOptions& options);

}  // namespace baton::ucx
