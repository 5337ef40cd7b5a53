// Owned bytes for weights, KV and scratch: aligned to a cache line, optionally advised onto huge
// pages. Move-only; contents start as zero. Thread: one owner; readers as they like.
#pragma once

#include "baton/base/result.h"

#include <cstddef>
#include <span>

namespace baton::tensor {

inline constexpr std::size_t kBufferAlignment = 64;  // a cache line, an AVX-512 register

enum class PageAdvice { kNormal, kHuge };

class Buffer {
 public:
  Buffer() = default;
  // Errors: kOverloaded when the system has no memory. Zero bytes is a valid, empty buffer. Pages
  // are taken from the system on first touch, so a large buffer costs nothing until used.
  static Result<Buffer> allocate(std::size_t bytes, PageAdvice advice = PageAdvice::kNormal);
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer();

  [[nodiscard]] std::byte* data() { return data_; }
  [[nodiscard]] const std::byte* data() const { return data_; }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  [[nodiscard]] std::span<std::byte> span() { return {data_, bytes_}; }
  [[nodiscard]] std::span<const std::byte> span() const { return {data_, bytes_}; }
  // The bytes as values of T; the tail that is not a whole T is left out.
  template <class T>
  [[nodiscard]] std::span<T> as() {
    return {reinterpret_cast<T*>(data_), bytes_ / sizeof(T)};
  }
  template <class T>
  [[nodiscard]] std::span<const T> as() const {
    return {reinterpret_cast<const T*>(data_), bytes_ / sizeof(T)};
  }

 private:
  void release();

  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  std::size_t mapped_bytes_ = 0;  // 0: data_ is null
};

// Takes the pages of `bytes` from the system now, so that who writes there first does not wait for
// them. Contents stay. Best effort: a kernel before Linux 5.14 does nothing. Thread: any, beside
// readers and writers.
void take_pages(std::span<std::byte> bytes);

}  // namespace baton::tensor
