#include "baton/kernels/avx2/table.h"

namespace baton::kernels {

const KernelTable& avx2_kernels() {
  static constexpr KernelTable kTable{.name = "avx2",
                                      .isa = Isa::kAvx2,
                                      .prepare_activations = avx2::prepare_activations,
                                      .matmul = avx2::matmul,
                                      .rmsnorm = avx2::rmsnorm,
                                      .rope = avx2::rope,
                                      .silu_mul = avx2::silu_mul,
                                      .gelu_mul = avx2::gelu_mul,
                                      .add = avx2::add,
                                      .exp = avx2::exp,
                                      .max = avx2::max,
                                      .sum_exp = avx2::sum_exp,
                                      .argmax = avx2::argmax,
                                      .write_kv = avx2::write_kv,
                                      .attention = avx2::attention,
                                      .attention_part = avx2::attention_part,
                                      .attention_merge = avx2::attention_merge};
  return kTable;
}

}  // namespace baton::kernels
