// Fabrics for tests of folders that know only the interface: UCX, held to one way each.
#pragma once

#include "baton/net/fabric.h"

#include <memory>
#include <string>
#include <vector>

namespace baton::testing {

// "ucx_shm" (shared memory), "ucx_tcp"; none when this build has no UCX.
std::vector<std::string> fabric_kinds();
// One of these, made once for the process; null for any other name. Errors abort the test program.
std::shared_ptr<net::Fabric> fabric_of(const std::string& kind);

}  // namespace baton::testing
