// Element types of weights and caches, with their block geometry as GGUF stores them. Data only, no
// math: how a block is decoded is the kernels' affair. Thread: any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace baton::tensor {

// One block of 32 values:
//   kQ4_0: f16 scale, 16 bytes of nibbles (byte i: value i low, value i + 16 high), value = d (q -
//   8) kQ4_1: f16 scale, f16 minimum, 16 bytes of nibbles (same order),                value = d q
//   + m kQ8_0: f16 scale, 32 int8,                                                      value = d q
enum class DType : std::uint8_t { kF32, kF16, kBf16, kQ4_0, kQ4_1, kQ8_0 };

struct DTypeTraits {
  std::string_view name;      // lower case, as in GGUF tooling: "q4_1"
  std::int64_t block_values;  // values in a block; 1 for plain types
  std::size_t block_bytes;
};
const DTypeTraits& traits(DType dtype);

inline std::string_view dtype_name(DType dtype) { return traits(dtype).name; }

// Bytes of a row of `values` values. `values` must be a multiple of block_values (checked).
std::size_t row_bytes(DType dtype, std::int64_t values);

}  // namespace baton::tensor
