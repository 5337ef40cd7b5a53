#include "baton/tensor/dtype.h"

#include "baton/base/check.h"

#include <array>

namespace baton::tensor {

const DTypeTraits& traits(DType dtype) {
  static constexpr std::array<DTypeTraits, 15> kTraits{{{"f32", 1, 4},
                                                        {"f16", 1, 2},
                                                        {"bf16", 1, 2},
                                                        {"q4_0", 32, 18},
                                                        {"q4_1", 32, 20},
                                                        {"q8_0", 32, 34},
                                                        {"q5_0", 32, 22},
                                                        {"q5_1", 32, 24},
                                                        {"q2_k", 256, 84},
                                                        {"q3_k", 256, 110},
                                                        {"q4_k", 256, 144},
                                                        {"q5_k", 256, 176},
                                                        {"q6_k", 256, 210},
                                                        {"iq4_nl", 32, 18},
                                                        {"mxfp4", 32, 17}}};
  const auto index = static_cast<std::size_t>(dtype);
  BATON_CHECK(index < kTraits.size(), "dtype {}", index);
  return kTraits[index];
}

std::size_t row_bytes(DType dtype, std::int64_t values) {
  const DTypeTraits& type = traits(dtype);
  BATON_CHECK(values >= 0 && values % type.block_values == 0, "{} values of {}", values, type.name);
  return static_cast<std::size_t>(values / type.block_values) * type.block_bytes;
}

}  // namespace baton::tensor
