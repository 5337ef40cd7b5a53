// Anonymous mappings: page aligned, zeroed by the kernel, given back whole.
#include "baton/tensor/buffer.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cstdint>
#include <utility>

namespace baton::tensor {
namespace {
constexpr std::size_t kPageBytes = 4096;
// Below this a huge page would mostly hold nothing.
constexpr std::size_t kHugePageBytes = std::size_t{2} << 20U;
}  // namespace

Result<Buffer> Buffer::allocate(std::size_t bytes, PageAdvice advice) {
  Buffer buffer;
  if (bytes == 0) {
    return buffer;
  }
  const bool huge = advice == PageAdvice::kHuge && bytes >= kHugePageBytes;
  const std::size_t unit = huge ? kHugePageBytes : kPageBytes;
  if (bytes > SIZE_MAX - 2 * unit) {
    return fail(ErrorCode::kOverloaded, fmt::format("cannot allocate {} bytes", bytes));
  }
  const std::size_t mapped = (bytes + unit - 1) / unit * unit;
  void* where = ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (where == MAP_FAILED) {
    return fail(ErrorCode::kOverloaded, fmt::format("cannot allocate {} bytes", bytes));
  }
  if (huge) {
    // Advice only: a kernel without huge pages says no and nothing is lost but speed.
    static_cast<void>(::madvise(where, mapped, MADV_HUGEPAGE));
  }
  buffer.data_ = static_cast<std::byte*>(where);
  buffer.bytes_ = bytes;
  buffer.mapped_bytes_ = mapped;
  return buffer;
}

Buffer::Buffer(Buffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      mapped_bytes_(std::exchange(other.mapped_bytes_, 0)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this != &other) {
    release();
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
    mapped_bytes_ = std::exchange(other.mapped_bytes_, 0);
  }
  return *this;
}

Buffer::~Buffer() { release(); }

void take_pages(std::span<std::byte> bytes) {
#ifdef MADV_POPULATE_WRITE
  const auto begin = reinterpret_cast<std::uintptr_t>(bytes.data()) / kPageBytes * kPageBytes;
  const auto end = reinterpret_cast<std::uintptr_t>(bytes.data() + bytes.size());
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the page that holds the first byte
  static_cast<void>(::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_POPULATE_WRITE));
#else
  static_cast<void>(bytes);
#endif
}

void Buffer::release() {
  if (data_ != nullptr) {
    ::munmap(data_, mapped_bytes_);
  }
}

}  // namespace baton::tensor
