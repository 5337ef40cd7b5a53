// Tensor types of GGUF files: which there are, which baton can run, and their block sizes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace baton::files {

// Numbers of ggml's `enum ggml_type`; only those that baton can run.
enum class TensorType : std::uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ2K = 10,
  kQ3K = 11,
  kQ4K = 12,
  kQ5K = 13,
  kQ6K = 14,
  kIq4Nl = 20,
  kBf16 = 30,
  kMxfp4 = 39,
};
std::string_view tensor_type_name(TensorType type);  // "Q4_1"
// Elements and bytes of one quantisation block; 1 and the element's size for plain types.
std::uint64_t tensor_type_block_elements(TensorType type);
std::uint64_t tensor_type_block_bytes(TensorType type);

// The name of any number that ggml knows ("Q4_K"), else "unknown".
std::string_view known_type_name(std::uint32_t number);
// Names of all that baton can run, for messages: "F32, F16, ... and MXFP4".
std::string runnable_type_names();
// Empty when baton cannot run it.
std::optional<TensorType> runnable_type(std::uint32_t number);

}  // namespace baton::files
