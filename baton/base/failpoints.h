// Named failpoints: places where a test can make the program fail. Compiled in only with
// BATON_FAILPOINTS (dev and sanitizer builds); otherwise the macro is `false`.
//   if (BATON_FAILPOINT("handoff.poison")) { ... }
//   BATON_LEAKPOINT();  // once for each request
// Armed by `--failpoints name[=action[@hit]],...`: action is on (default; error is another word for
// it), kill, or sleep:MS; hit k (from 1) arms only the k-th pass. Thread: any; arming happens once,
// at start.
#pragma once

#include "baton/base/result.h"

#include <string_view>

namespace baton::failpoints {

// Errors: kInvalidArgument on bad syntax, or when failpoints are not compiled in.
Status arm(std::string_view specification);

// True when the named point is on and this pass is the one meant: the place then does what its name
// says, or fails. Sleeps or kills the process where that was asked, and is false.
bool hit(std::string_view name);

// What a soak test must notice. Each call leaks 1 MiB when leak.memory is armed, a descriptor when
// leak.descriptor is. Thread: any.
void leak();

}  // namespace baton::failpoints

#ifdef BATON_FAILPOINTS
#define BATON_FAILPOINT(name) (::baton::failpoints::hit(name))
#define BATON_LEAKPOINT() (::baton::failpoints::leak())
#else
#define BATON_FAILPOINT(name) (false)
#define BATON_LEAKPOINT() (static_cast<void>(0))
#endif
