// Rotary position tables, built with own sine, cosine and power in double, so that their bits are
// the same on every machine and C library. Built once at start. Thread: any once built.
#pragma once

#include <cstdint>
#include <vector>

namespace baton::kernels {

enum class RopeStyle : std::uint8_t {
  kInterleaved,  // lanes (2i, 2i + 1) turn together: GGUF's llama architecture
  kHalfSplit,    // lanes (i, i + half) turn together: NeoX, Qwen
};

struct RopeTable {
  std::int64_t positions = 0;
  std::int64_t half = 0;      // rotated lanes / 2
  std::vector<float> cosine;  // [positions][half]
  std::vector<float> sine;    // [positions][half]
};

struct RopeParams {
  std::int64_t positions = 0;      // table length: the largest context
  std::int64_t rotated_lanes = 0;  // even, usually head_dim
  double base = 10000.0;
  double linear_factor = 1.0;  // positions are divided by it
  // Empty, or [rotated_lanes / 2]: lane pair i turns slower by this factor (Llama 3's rope_freqs).
  std::vector<float> frequency_factors = {};
  float magnitude = 1.0F;  // multiplies cosine and sine (YaRN)
};
// angle of (position, i) = position / linear_factor * base^(-2 i / rotated_lanes) / factor[i].
RopeTable build_rope_table(const RopeParams& params);

}  // namespace baton::kernels
