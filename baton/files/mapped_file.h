// A whole file, or memory made in its place, mapped read-only. Thread: any; immutable once made.
#pragma once

#include "baton/base/result.h"

#include <cstddef>
#include <functional>
#include <span>
#include <string>

namespace baton::files {

class MappedFile {
 public:
  // Errors: kNotFound, kIo (also for something that is not a regular file). An empty file maps to
  // an empty span.
  static Result<MappedFile> open(const std::string& path);

  // Memory that `fill` writes once; pages that it leaves alone are zero and take no memory.
  // Released pages read as zero from then on. Errors: kOverloaded (no memory).
  static Result<MappedFile> in_memory(std::size_t size_bytes,
                                      const std::function<void(std::span<std::byte>)>& fill);

  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  [[nodiscard]] std::span<const std::byte> bytes() const { return {data_, size_bytes_}; }
  // Drops the whole pages inside `bytes` from this process; they are read again when touched.
  void release_pages(std::span<const std::byte> bytes) const;

 private:
  const std::byte* data_ = nullptr;
  std::size_t size_bytes_ = 0;
};

}  // namespace baton::files
