// Element types of weights and caches, with their block geometry as GGUF stores them. Data only, no
// math: how a block is decoded is the kernels' affair. Thread: any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace baton::tensor {

// One block of 32 values (d, m: f16; nibbles: byte i holds value i low and value i + 16 high):
//   kQ4_0: d, 16 bytes of nibbles                        value = d (q - 8)
//   kQ4_1: d, m, nibbles                                 value = d q + m
//   kQ8_0: d, 32 int8                                    value = d q
//   kQ5_0: d, u32 with value i's fifth bit at i, nibbles value = d (q - 16)
//   kQ5_1: d, m, fifth bits, nibbles                     value = d q + m
//   kIq4Nl: d, nibbles                                   value = d table[q]
//   kMxfp4: u8 exponent e, nibbles                       value = 2^(e - 128) table[q]
// One block of 256 values, in sub-blocks of 16 or 32 that have small integer scales (and minima)
// beside the block's d (and m): kQ2K, kQ3K, kQ4K, kQ5K, kQ6K, of 2 to 6 bits a value.
enum class DType : std::uint8_t {
  kF32,
  kF16,
  kBf16,
  kQ4_0,
  kQ4_1,
  kQ8_0,
  kQ5_0,
  kQ5_1,
  kQ2K,
  kQ3K,
  kQ4K,
  kQ5K,
  kQ6K,
  kIq4Nl,
  kMxfp4,
};

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
