#include "baton/files/mapped_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

namespace baton::files {

Result<MappedFile> MappedFile::open(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) {
    const int error = errno;
    return fail(error == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo,
                fmt::format("cannot open {}: {}", path, std::strerror(error)), path);
  }
  struct stat status {};
  if (::fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(descriptor);
    return fail(ErrorCode::kIo, fmt::format("{} is not a regular file", path), path);
  }
  MappedFile file;
  const auto size_bytes = static_cast<std::size_t>(status.st_size);
  if (size_bytes > 0) {
    void* data = ::mmap(nullptr, size_bytes, PROT_READ, MAP_PRIVATE, descriptor, 0);
    if (data == MAP_FAILED) {
      const int error = errno;
      ::close(descriptor);
      return fail(ErrorCode::kIo, fmt::format("cannot map {}: {}", path, std::strerror(error)),
                  path);
    }
    file.data_ = static_cast<const std::byte*>(data);
    file.size_bytes_ = size_bytes;
  }
  ::close(descriptor);
  return file;
}

Result<MappedFile> MappedFile::in_memory(std::size_t size_bytes,
                                         const std::function<void(std::span<std::byte>)>& fill) {
  void* data = ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) {
    return fail(ErrorCode::kOverloaded,
                fmt::format("cannot get {} bytes of memory: {}", size_bytes, std::strerror(errno)));
  }
  MappedFile file;
  file.data_ = static_cast<const std::byte*>(data);
  file.size_bytes_ = size_bytes;
  fill({static_cast<std::byte*>(data), size_bytes});
  ::mprotect(data, size_bytes, PROT_READ);
  return file;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_bytes_, other.size_bytes_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) {
    ::munmap(const_cast<std::byte*>(data_), size_bytes_);
  }
}

void MappedFile::release_pages(std::span<const std::byte> bytes) const {
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = (reinterpret_cast<std::uintptr_t>(bytes.data()) + page - 1) / page * page;
  const auto end = (reinterpret_cast<std::uintptr_t>(bytes.data()) + bytes.size()) / page * page;
  if (begin < end) {
    // NOLINTNEXTLINE(performance-no-int-to-ptr): a page inside of bytes
    ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
  }
}

}  // namespace baton::files
