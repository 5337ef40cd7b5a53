#include "bench/handoff/link.h"

#include <fmt/format.h>
#include <sched.h>

#include "bench/handoff/program.h"
#include <cerrno>
#include <cstring>
#include <vector>

namespace baton::bench_handoff {

Status enter_link(const std::string& rate) {
  const auto wrong = [&](const std::string& why) {
    return fail(ErrorCode::kInvalidArgument, fmt::format("--link {}: {}", rate, why));
  };
  if (unshare(CLONE_NEWNET) != 0) {
    return wrong(fmt::format("no network namespace: {}; be root", std::strerror(errno)));
  }
  // The burst is what a timer of the kernel lets through at once; the latency is room for a window.
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"ip", "link", "set", "lo", "up"},
        std::vector<std::string>{"tc", "qdisc", "add", "dev", "lo", "root", "tbf", "rate", rate,
                                 "burst", "256kb", "latency", "400ms"}}) {
    if (auto ran = run_program(command); !ran) {
      const bool absent = ran.error().code == ErrorCode::kNotFound;
      return wrong(ran.error().message + (absent ? "; install iproute2" : ""));
    }
  }
  return {};
}

}  // namespace baton::bench_handoff
