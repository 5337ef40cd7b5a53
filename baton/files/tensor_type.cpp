// Names and block sizes of ggml's tensor types: all that are known are named in errors, those of
// TensorType can be run. Sizes: ggml-common.h (block_q4_0 and so on).
#include "baton/files/tensor_type.h"

#include "baton/base/check.h"

#include <algorithm>
#include <array>

namespace baton::files {

namespace {

struct KnownType {
  std::uint32_t number;
  std::string_view name;
  std::uint64_t block_elements;  // 0: known by name only, baton cannot run it
  std::uint64_t block_bytes;
};

constexpr std::array kKnownTypes = {
    KnownType{0, "F32", 1, 4},       KnownType{1, "F16", 1, 2},
    KnownType{2, "Q4_0", 32, 18},    KnownType{3, "Q4_1", 32, 20},
    KnownType{6, "Q5_0", 32, 22},    KnownType{7, "Q5_1", 32, 24},
    KnownType{8, "Q8_0", 32, 34},    KnownType{9, "Q8_1", 0, 0},
    KnownType{10, "Q2_K", 256, 84},  KnownType{11, "Q3_K", 256, 110},
    KnownType{12, "Q4_K", 256, 144}, KnownType{13, "Q5_K", 256, 176},
    KnownType{14, "Q6_K", 256, 210}, KnownType{15, "Q8_K", 0, 0},
    KnownType{16, "IQ2_XXS", 0, 0},  KnownType{17, "IQ2_XS", 0, 0},
    KnownType{18, "IQ3_XXS", 0, 0},  KnownType{19, "IQ1_S", 0, 0},
    KnownType{20, "IQ4_NL", 32, 18}, KnownType{21, "IQ3_S", 0, 0},
    KnownType{22, "IQ2_S", 0, 0},    KnownType{23, "IQ4_XS", 0, 0},
    KnownType{24, "I8", 0, 0},       KnownType{25, "I16", 0, 0},
    KnownType{26, "I32", 0, 0},      KnownType{27, "I64", 0, 0},
    KnownType{28, "F64", 0, 0},      KnownType{29, "IQ1_M", 0, 0},
    KnownType{30, "BF16", 1, 2},     KnownType{34, "TQ1_0", 0, 0},
    KnownType{35, "TQ2_0", 0, 0},    KnownType{39, "MXFP4", 32, 17},
};

const KnownType* find_type(std::uint32_t number) {
  const auto* found = std::ranges::find(kKnownTypes, number, &KnownType::number);
  return found == kKnownTypes.end() ? nullptr : found;
}

const KnownType& runnable(TensorType type) {
  const KnownType* known = find_type(static_cast<std::uint32_t>(type));
  BATON_CHECK(known != nullptr && known->block_elements > 0, "tensor type {}",
              static_cast<std::uint32_t>(type));
  return *known;
}

}  // namespace

std::string_view tensor_type_name(TensorType type) { return runnable(type).name; }
std::uint64_t tensor_type_block_elements(TensorType type) { return runnable(type).block_elements; }
std::uint64_t tensor_type_block_bytes(TensorType type) { return runnable(type).block_bytes; }

std::string_view known_type_name(std::uint32_t number) {
  const KnownType* known = find_type(number);
  return known == nullptr ? "unknown" : known->name;
}

std::string runnable_type_names() {
  std::string names;
  for (const KnownType& known : kKnownTypes) {
    if (known.block_elements > 0) {
      const bool last = known.number == kKnownTypes.back().number;
      names += names.empty() ? "" : last ? " and " : ", ";
      names += known.name;
    }
  }
  return names;
}

std::optional<TensorType> runnable_type(std::uint32_t number) {
  const KnownType* known = find_type(number);
  if (known == nullptr || known->block_elements == 0) {
    return std::nullopt;
  }
  return static_cast<TensorType>(number);
}

}  // namespace baton::files
