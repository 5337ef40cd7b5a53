// CRC32C (Castagnoli, RFC 3720): "123456789" gives 0xE3069283. Incremental, so that it can be
// computed over pieces while they are warm in the cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace baton::wire {

class Crc32c {
 public:
  void update(std::span<const std::byte> bytes);
  [[nodiscard]] std::uint32_t value() const { return ~state_; }

 private:
  std::uint32_t state_ = 0xFFFFFFFFU;
};

std::uint32_t crc32c(std::span<const std::byte> bytes);

}  // namespace baton::wire
