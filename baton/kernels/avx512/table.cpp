#include "baton/kernels/avx512/table.h"

namespace baton::kernels {

const KernelTable& avx512_kernels() {
  static constexpr KernelTable kTable{.name = "avx512",
                                      .isa = Isa::kAvx512,
                                      .prepare_activations = avx512::prepare_activations,
                                      .matmul = avx512::matmul,
                                      .rmsnorm = avx512::rmsnorm,
                                      .rope = avx512::rope,
                                      .silu_mul = avx512::silu_mul,
                                      .gelu_mul = avx512::gelu_mul,
                                      .add = avx512::add,
                                      .exp = avx512::exp,
                                      .max = avx512::max,
                                      .sum_exp = avx512::sum_exp,
                                      .argmax = avx512::argmax,
                                      .write_kv = avx512::write_kv,
                                      .attention = avx512::attention,
                                      .attention_part = avx512::attention_part,
                                      .attention_merge = avx512::attention_merge};
  return kTable;
}

}  // namespace baton::kernels
