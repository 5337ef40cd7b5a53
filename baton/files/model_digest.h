// The model digest: SHA-256 over the GGUF header (metadata and directory) and one XXH3-128 per
// tensor in file order. SHA-256 over all weights would cost more than the load; XXH3 runs at memory
// speed while the tensor is in cache for its repack. Two nodes pair only with equal digests.
#pragma once

#include "baton/files/gguf.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace baton::files {

struct TensorHash {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
};

// XXH3-128 of a tensor that comes in pieces. Thread: one per object.
class TensorHasher {
 public:
  TensorHasher();
  ~TensorHasher();
  TensorHasher(const TensorHasher&) = delete;
  TensorHasher& operator=(const TensorHasher&) = delete;
  void update(std::span<const std::byte> bytes);
  [[nodiscard]] TensorHash finish() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Thread: set on any, each index once; finish after all.
class ModelDigest {
 public:
  explicit ModelDigest(const GgufFile& file);
  // The hash of tensor `index` of file.tensors().
  void set(std::size_t index, TensorHash hash) { tensors_[index] = hash; }
  // Tensors that were never set are hashed here.
  [[nodiscard]] Sha256Digest finish() const;

 private:
  const GgufFile& file_;
  std::vector<std::optional<TensorHash>> tensors_;
};

}  // namespace baton::files
