#include "baton/wire/digest.h"

#include "baton/base/check.h"
#include "baton/wire/little_endian.h"

#include <xxhash.h>

#include <array>

namespace baton::wire {

namespace {

std::string canonical(XXH128_hash_t hash) {
  XXH128_canonical_t bytes;  // big endian
  XXH128_canonicalFromHash(&bytes, hash);
  return std::string(reinterpret_cast<const char*>(bytes.digest), sizeof(bytes.digest));
}

struct Hasher {
  Hasher() : state(XXH3_createState()) {
    BATON_CHECK(state != nullptr, "out of memory");
    XXH3_128bits_reset(state);
  }
  ~Hasher() { XXH3_freeState(state); }
  Hasher(const Hasher&) = delete;
  Hasher& operator=(const Hasher&) = delete;
  XXH3_state_t* state;
};

void add_tokens(const Hasher& hasher, std::span<const TokenId> tokens) {
  for (const TokenId token : tokens) {
    std::array<std::byte, 4> bytes;
    put(bytes, 0, static_cast<std::uint32_t>(token));
    XXH3_128bits_update(hasher.state, bytes.data(), bytes.size());
  }
}

}  // namespace

struct HandoffDigest::State {
  Hasher hasher;
};

HandoffDigest::HandoffDigest() : state_(std::make_unique<State>()) {}
HandoffDigest::~HandoffDigest() = default;
HandoffDigest::HandoffDigest(HandoffDigest&&) noexcept = default;
HandoffDigest& HandoffDigest::operator=(HandoffDigest&&) noexcept = default;

void HandoffDigest::add(const EncodedHeader& header) {
  XXH3_128bits_update(state_->hasher.state, header.data(), header.size());
}

std::string HandoffDigest::value() const {
  return canonical(XXH3_128bits_digest(state_->hasher.state));
}

std::string tokens_digest(std::span<const TokenId> prompt, std::span<const TokenId> emitted) {
  const Hasher hasher;
  add_tokens(hasher, prompt);
  add_tokens(hasher, emitted);
  return canonical(XXH3_128bits_digest(hasher.state));
}

}  // namespace baton::wire
