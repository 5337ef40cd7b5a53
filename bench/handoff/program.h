// A small program of the system (ip, tc, git), run to its end.
#pragma once

#include "baton/base/result.h"

#include <string>
#include <vector>

namespace baton::bench_handoff {

// What it printed, on both streams. Errors: kNotFound: it is not there; kIo: its code was not 0
// (then what it printed is in the message), or it cannot be started. Blocks. Thread: any.
[[nodiscard]] Result<std::string> run_program(const std::vector<std::string>& command);

}  // namespace baton::bench_handoff
