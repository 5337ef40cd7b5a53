// A slow network without a second machine.
#pragma once

#include "baton/base/result.h"

#include <string>

namespace baton::bench_handoff {

// Puts the calling thread, and the threads and processes that it makes from now on, into a network
// of its own whose loopback has that rate (a token bucket; "1gbit" as tc writes it). Clients' bytes
// share it; they are few. Errors: kInvalidArgument naming --link (no permission, no iproute2, no
// such rate).
Status enter_link(const std::string& rate);

}  // namespace baton::bench_handoff
