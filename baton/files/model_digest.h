// The model digest: SHA-256 over the GGUF header (metadata and directory) and one XXH3-128 per
// tensor in file order. SHA-256 over all weights would cost more than the load; XXH3 runs at memory
// speed while the tensor is in cache for its repack. Two nodes pair only with equal digests.
// Thread: add on any one thread per tensor index; finish after all.
#pragma once

#include "baton/files/gguf.h"

#include <cstddef>
#include <span>
#include <vector>

namespace baton::files {

class ModelDigest {
 public:
  explicit ModelDigest(const GgufFile& file);
  // Hashes tensor `index` of file.tensors(). Each index once.
  void add(std::size_t index);
  // Tensors that were never added are hashed here (the loader skips what the family does not use).
  [[nodiscard]] Sha256Digest finish();

 private:
  struct Hash128 {
    std::uint64_t low = 0;
    std::uint64_t high = 0;
    bool done = false;
  };
  const GgufFile& file_;
  std::vector<Hash128> tensors_;
};

}  // namespace baton::files
