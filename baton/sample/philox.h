// Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC'11): a function
// from (key, counter) to 128 random bits. There is no state to carry from node to node.
#pragma once

#include <array>
#include <cstdint>

namespace baton::sample {

using PhiloxCounter = std::array<std::uint32_t, 4>;
using PhiloxKey = std::array<std::uint32_t, 2>;

std::array<std::uint32_t, 4> philox4x32_10(PhiloxCounter counter, PhiloxKey key);

// Uniform in [0, 1), 53 bits. key = seed (low word first), counter = (token index, choice, draw,
// 0).
double uniform(std::uint64_t seed, std::uint32_t token_index, std::uint32_t choice,
               std::uint32_t draw);

}  // namespace baton::sample
