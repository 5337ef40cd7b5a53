#include "baton/kernels/avx2/simd.h"
#include "baton/kernels/avx2/table.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

namespace baton::kernels::avx2 {
#include "baton/kernels/vector/attention.inl"
#include "baton/kernels/vector/write_kv.inl"
}  // namespace baton::kernels::avx2
