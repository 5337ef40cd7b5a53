#include "baton/kv/tile_digest.h"

#include "baton/base/check.h"
#include "baton/kv/layout.h"

#include <openssl/evp.h>
#include <openssl/rand.h>

#include <algorithm>

namespace baton::kv {

namespace {

constexpr std::size_t kRandomKeyBytes = 32;
constexpr std::size_t kSha256Bytes = 32;

void put_little_endian(std::span<std::uint8_t, 4> to, std::uint32_t value) {
  for (std::size_t i = 0; i < 4; ++i) {
    to[i] = static_cast<std::uint8_t>(value >> (8 * i));
  }
}

}  // namespace

struct TileHasher::State {
  std::string key;
  EVP_MD_CTX* keyed = EVP_MD_CTX_new();  // the key is hashed in; copied for each digest
  EVP_MD_CTX* work = EVP_MD_CTX_new();

  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() {
    EVP_MD_CTX_free(keyed);
    EVP_MD_CTX_free(work);
  }
  void begin() { BATON_CHECK(EVP_MD_CTX_copy_ex(work, keyed) == 1, "SHA-256"); }
  void add(const void* bytes, std::size_t count) {
    BATON_CHECK(EVP_DigestUpdate(work, bytes, count) == 1, "SHA-256");
  }
  TileDigest end() {
    std::array<std::uint8_t, kSha256Bytes> whole;
    BATON_CHECK(EVP_DigestFinal_ex(work, whole.data(), nullptr) == 1, "SHA-256");
    TileDigest cut;
    std::copy_n(whole.begin(), cut.bytes.size(), cut.bytes.begin());
    return cut;
  }
};

TileHasher::TileHasher(std::string_view key) : state_(std::make_unique<State>()) {
  BATON_CHECK(state_->keyed != nullptr && state_->work != nullptr, "out of memory");
  state_->key = key;
  if (state_->key.empty()) {
    std::array<std::uint8_t, kRandomKeyBytes> random;
    BATON_CHECK(RAND_bytes(random.data(), static_cast<int>(random.size())) == 1, "no randomness");
    state_->key.assign(random.begin(), random.end());
  }
  // The length goes first: a key is no prefix of another key and its data.
  std::array<std::uint8_t, 4> length;
  put_little_endian(length, static_cast<std::uint32_t>(state_->key.size()));
  BATON_CHECK(EVP_DigestInit_ex(state_->keyed, EVP_sha256(), nullptr) == 1 &&
                  EVP_DigestUpdate(state_->keyed, length.data(), length.size()) == 1 &&
                  EVP_DigestUpdate(state_->keyed, state_->key.data(), state_->key.size()) == 1,
              "SHA-256");
}

TileHasher::~TileHasher() = default;

TileDigest TileHasher::root(std::span<const std::string_view> parts) {
  state_->begin();
  for (const std::string_view part : parts) {
    std::array<std::uint8_t, 4> length;
    put_little_endian(length, static_cast<std::uint32_t>(part.size()));
    state_->add(length.data(), length.size());
    state_->add(part.data(), part.size());
  }
  return state_->end();
}

TileDigest TileHasher::tile(const TileDigest& parent, std::span<const TokenId> tokens) {
  BATON_CHECK(tokens.size() == static_cast<std::size_t>(kTileTokens), "{} tokens", tokens.size());
  std::array<std::uint8_t, 4 * kTileTokens> bytes;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    put_little_endian(std::span(bytes).subspan(4 * i).first<4>(),
                      static_cast<std::uint32_t>(tokens[i]));
  }
  state_->begin();
  state_->add(parent.bytes.data(), parent.bytes.size());
  state_->add(bytes.data(), bytes.size());
  return state_->end();
}

}  // namespace baton::kv
