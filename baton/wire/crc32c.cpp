#include "baton/wire/crc32c.h"

#include <isa-l/crc.h>

#include <algorithm>
#include <climits>

namespace baton::wire {

// isa-l's crc32_iscsi neither inverts its start value nor its result; both are done here. Its
// length is an int, and it takes a pointer to non-const that it does not write to.
void Crc32c::update(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const std::size_t step = std::min<std::size_t>(bytes.size(), std::size_t{1} << 30);
    auto* data = const_cast<unsigned char*>(reinterpret_cast<const unsigned char*>(bytes.data()));
    state_ = crc32_iscsi(data, static_cast<int>(step), state_);
    bytes = bytes.subspan(step);
  }
}

std::uint32_t crc32c(std::span<const std::byte> bytes) {
  Crc32c crc;
  crc.update(bytes);
  return crc.value();
}

}  // namespace baton::wire
