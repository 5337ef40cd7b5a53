#include "baton/files/model_digest.h"

#define XXH_INLINE_ALL
#include "baton/base/check.h"

#include <xxhash.h>

namespace baton::files {

ModelDigest::ModelDigest(const GgufFile& file) : file_(file), tensors_(file.tensors().size()) {}

void ModelDigest::add(std::size_t index) {
  Hash128& tensor = tensors_[index];
  BATON_CHECK(!tensor.done, "tensor {} hashed twice", index);
  const auto bytes = file_.tensors()[index].bytes;
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  tensor = {hash.low64, hash.high64, true};
}

Sha256Digest ModelDigest::finish() {
  Sha256 sha;
  sha.update(file_.header_bytes());
  for (std::size_t index = 0; index < tensors_.size(); ++index) {
    if (!tensors_[index].done) {
      add(index);
    }
    // Little-endian, low half first.
    const std::array<std::uint64_t, 2> words = {tensors_[index].low, tensors_[index].high};
    sha.update(std::as_bytes(std::span(words)));
  }
  return sha.finish();
}

}  // namespace baton::files
