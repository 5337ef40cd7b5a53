#include "baton/kernels/ref/table.h"

namespace baton::kernels {

const KernelTable& ref_kernels() {
  static constexpr KernelTable kTable{.name = "ref",
                                      .isa = Isa::kRef,
                                      .prepare_activations = ref::prepare_activations,
                                      .matmul = ref::matmul,
                                      .rmsnorm = ref::rmsnorm,
                                      .rope = ref::rope,
                                      .silu_mul = ref::silu_mul,
                                      .gelu_mul = ref::gelu_mul,
                                      .add = ref::add,
                                      .exp = ref::exp,
                                      .max = ref::max,
                                      .sum_exp = ref::sum_exp,
                                      .argmax = ref::argmax,
                                      .write_kv = ref::write_kv,
                                      .attention = ref::attention,
                                      .attention_part = ref::attention_part,
                                      .attention_merge = ref::attention_merge};
  return kTable;
}

}  // namespace baton::kernels
