#include "baton/kernels/attention.h"

namespace baton::kernels {

std::size_t attention_scratch_bytes(std::int64_t head_dim) {
  const auto dims = static_cast<std::size_t>((head_dim + 15) / 16 * 16);
  constexpr std::size_t kRows = kMaxQueryRows;
  const std::size_t scores_and_weights = 2 * kRows * kPartKeys * sizeof(float);
  const std::size_t queries = kRows * dims * sizeof(float);
  const std::size_t partials = 2 * kRows * (dims + 16) * sizeof(float);  // of a part, and merged
  return scores_and_weights + queries + partials;
}

}  // namespace baton::kernels
