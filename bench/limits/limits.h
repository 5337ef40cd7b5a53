// What this machine can do at most, measured with small loops: the denominators of `baton bench
// engine`. A loop does nothing but its one instruction on registers, or nothing but loads, on as
// many threads as the engine uses. Thread: any; starts threads of its own and joins them.
#pragma once

#include "baton/kernels/kernels.h"

#include <cstddef>

namespace baton::bench {

struct Limits {
  int threads = 0;
  // Multiply-accumulates per second / 1e9; 0 when the instruction set has no such loop (ref).
  double int8_gmac = 0;
  double bf16_gmac = 0;  // without bf16 instructions: the fp32 rate, which bf16 kernels run at
  double fp32_gmac = 0;
  double read_gb = 0;  // GB/s over a buffer of read_bytes
  std::size_t read_bytes = 0;
};

// The best of a few repetitions of each loop, about half a second in all. A buffer of read_bytes is
// allocated meanwhile. isa: not kAuto.
Limits measure_limits(kernels::Isa isa, int threads, std::size_t read_bytes);

}  // namespace baton::bench
