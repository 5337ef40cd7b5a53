// The loops behind measure_limits, one set per instruction set. Internal to bench/limits.
#pragma once

#include <cstddef>
#include <cstdint>

namespace baton::bench {

struct Loop {
  // Returns something that depends on all its work, so that none of it can be left out.
  float (*run)(std::int64_t rounds);
  std::int64_t macs_per_round;
};

struct Loops {
  Loop int8;
  Loop bf16;
  Loop fp32;
  // Reads all whole blocks of 512 bytes.
  std::uint64_t (*read)(const std::byte* from, std::size_t bytes);
};

extern const Loops kAvx512Loops;  // AVX-512 F, BW, VNNI, BF16
extern const Loops kAvx2Loops;    // AVX2, FMA

// Chains that run side by side in a loop: latency (4 to 6 cycles) times two units, and some more.
inline constexpr int kChains = 14;

}  // namespace baton::bench
