#include "baton/files/model_digest.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <array>

namespace baton::files {

struct TensorHasher::State {
  XXH3_state_t hash;  // aligned to 64 by its type
};

TensorHasher::TensorHasher() : state_(std::make_unique<State>()) {
  XXH3_128bits_reset(&state_->hash);
}
TensorHasher::~TensorHasher() = default;

void TensorHasher::update(std::span<const std::byte> bytes) {
  XXH3_128bits_update(&state_->hash, bytes.data(), bytes.size());
}

TensorHash TensorHasher::finish() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(&state_->hash);
  return {hash.low64, hash.high64};
}

ModelDigest::ModelDigest(const GgufFile& file) : file_(file), tensors_(file.tensors().size()) {}

Sha256Digest ModelDigest::finish() const {
  Sha256 sha;
  sha.update(file_.header_bytes());
  for (std::size_t index = 0; index < tensors_.size(); ++index) {
    TensorHash hash;
    if (tensors_[index]) {
      hash = *tensors_[index];
    } else {
      TensorHasher hasher;
      hasher.update(file_.tensors()[index].bytes);
      hash = hasher.finish();
    }
    // Little-endian, low half first.
    const std::array<std::uint64_t, 2> words = {hash.low, hash.high};
    sha.update(std::as_bytes(std::span(words)));
  }
  return sha.finish();
}

}  // namespace baton::files
