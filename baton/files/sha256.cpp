#include "baton/files/sha256.h"

#include "baton/base/check.h"

#include <openssl/evp.h>

namespace baton::files {

struct Sha256::State {
  EVP_MD_CTX* context = nullptr;
};

std::string to_hex(const Sha256Digest& digest) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string hex;
  for (const std::uint8_t byte : digest) {
    hex += kDigits[byte >> 4];
    hex += kDigits[byte & 15];
  }
  return hex;
}

Sha256::Sha256() : state_(std::make_unique<State>()) {
  state_->context = EVP_MD_CTX_new();
  BATON_CHECK(state_->context != nullptr &&
              EVP_DigestInit_ex(state_->context, EVP_sha256(), nullptr) == 1);
}

Sha256::~Sha256() { EVP_MD_CTX_free(state_->context); }

void Sha256::update(std::span<const std::byte> bytes) {
  BATON_CHECK(EVP_DigestUpdate(state_->context, bytes.data(), bytes.size()) == 1);
}

Sha256Digest Sha256::finish() {
  Sha256Digest digest{};
  BATON_CHECK(EVP_DigestFinal_ex(state_->context, digest.data(), nullptr) == 1);
  return digest;
}

}  // namespace baton::files
