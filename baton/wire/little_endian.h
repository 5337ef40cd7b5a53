// Integers at byte offsets, little endian whatever the machine. Private to wire/.
#pragma once

#include <concepts>
#include <cstddef>
#include <span>

namespace baton::wire {

template <std::unsigned_integral T>
void put(std::span<std::byte> bytes, std::size_t offset, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i) {
    bytes[offset + i] = static_cast<std::byte>(value >> (8 * i));
  }
}

template <std::unsigned_integral T>
T get(std::span<const std::byte> bytes, std::size_t offset) {
  T value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i) {
    value = static_cast<T>(value | (static_cast<T>(bytes[offset + i]) << (8 * i)));
  }
  return value;
}

}  // namespace baton::wire
