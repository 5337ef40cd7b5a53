// The floating-point mode that every computing thread runs in: round to nearest even, subnormal
// results flushed to zero, subnormal inputs read as zero, no traps. Bits are defined in this mode
// only (docs/exactness.md), so it is set at thread start and asserted before work.
#pragma once

#include <string>

namespace baton {

// Thread: acts on the calling one.
void set_float_mode();
[[nodiscard]] bool float_mode_is_set();
// BATON_CHECK that float_mode_is_set().
void assert_float_mode();

// Sets the mode and gives the thread's own back at the end of the scope (tests, one-off work on
// threads that are not ours).
class ScopedFloatMode {
 public:
  ScopedFloatMode();
  ~ScopedFloatMode();
  ScopedFloatMode(const ScopedFloatMode&) = delete;
  ScopedFloatMode& operator=(const ScopedFloatMode&) = delete;

 private:
  unsigned saved_;
};

}  // namespace baton
