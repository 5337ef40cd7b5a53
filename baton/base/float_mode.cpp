// MXCSR on x86-64: SSE, AVX and AVX-512 code obey it; x87 is not used for float or double there.
#include "baton/base/float_mode.h"

#include "baton/base/check.h"

#include <xmmintrin.h>

namespace baton {
namespace {
constexpr unsigned kFlushToZero = 1U << 15U;
constexpr unsigned kDenormalsAreZero = 1U << 6U;
constexpr unsigned kAllMasked = 0x3FU << 7U;
constexpr unsigned kMode = kFlushToZero | kDenormalsAreZero | kAllMasked;  // rounding bits 0: even
constexpr unsigned kStickyFlags = 0x3FU;
}  // namespace

void set_float_mode() { _mm_setcsr(kMode); }

bool float_mode_is_set() { return (_mm_getcsr() & ~kStickyFlags) == kMode; }

void assert_float_mode() {
  BATON_CHECK(float_mode_is_set(), "mxcsr {:#x}, wanted {:#x}", _mm_getcsr(), kMode);
}

ScopedFloatMode::ScopedFloatMode() : saved_(_mm_getcsr()) { set_float_mode(); }
ScopedFloatMode::~ScopedFloatMode() { _mm_setcsr(saved_); }

}  // namespace baton
