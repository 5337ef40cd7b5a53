#include "baton/handoff/cluster_token.h"

#include "baton/base/check.h"
#include "baton/wire/limits.h"

#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <array>
#include <concepts>

namespace baton::handoff {

namespace {

using wire::pb::Hello;

// Names this use of the token and the layout of what follows: another layout gets another label.
constexpr std::string_view kLabel = "baton node handshake 1";
constexpr std::string_view kDeriveLabel = "baton secret for ";  // begins unlike kLabel

void append(std::string& text, std::unsigned_integral auto value) {
  for (std::size_t i = 0; i < sizeof(value); ++i) {
    text.push_back(static_cast<char>(value >> (8 * i)));
  }
}

// Every field has a fixed length or is preceded by it, so no two identities share their bytes.
void append_identity(std::string& text, const Hello& hello) {
  append(text, hello.role());
  append(text, hello.boot_high());
  append(text, hello.boot_low());
  append(text, hello.serving_port());
  append(text, static_cast<std::uint8_t>(hello.node_id().size()));  // at most kMaxNodeIdBytes
  text += hello.node_id();
}

}  // namespace

Result<ClusterToken> ClusterToken::parse(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const std::size_t first = text.find_first_not_of(kSpace);
  const std::size_t last = text.find_last_not_of(kSpace);
  const std::string_view secret =
      first == std::string_view::npos ? "" : text.substr(first, last - first + 1);
  if (secret.size() < kMinTokenBytes || secret.size() > kMaxTokenBytes) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("a cluster token has {} to {} bytes, not {}: make one with "
                            "'openssl rand -hex 32'",
                            kMinTokenBytes, kMaxTokenBytes, secret.size()));
  }
  return ClusterToken(std::string(secret));
}

std::string make_nonce() {
  std::array<unsigned char, wire::kNonceBytes> bytes{};
  BATON_CHECK(RAND_bytes(bytes.data(), static_cast<int>(bytes.size())) == 1,
              "the system gives no random bytes");
  return {bytes.begin(), bytes.end()};
}

std::string ClusterToken::hmac(std::string_view text) const {
  std::array<unsigned char, wire::kProofBytes> code{};
  unsigned int code_bytes = 0;
  const auto* made = HMAC(EVP_sha256(), secret_.data(), static_cast<int>(secret_.size()),
                          reinterpret_cast<const unsigned char*>(text.data()), text.size(),
                          code.data(), &code_bytes);
  BATON_CHECK(made != nullptr && code_bytes == code.size(), "OpenSSL has no HMAC-SHA256");
  return {code.begin(), code.end()};
}

std::string ClusterToken::derive(std::string_view purpose) const {
  return hmac(std::string(kDeriveLabel) += purpose);
}

std::string make_proof(const ClusterToken& token, End speaker, const Hello& dialler,
                       const Hello& acceptor) {
  std::string text(kLabel);
  text.push_back(speaker == End::kDialler ? 'D' : 'A');
  text.push_back(dialler.bulk() ? 1 : 0);
  text += dialler.nonce();
  text += acceptor.nonce();
  append_identity(text, dialler);
  append_identity(text, acceptor);
  return token.hmac(text);
}

bool is_proof(const ClusterToken& token, End speaker, const Hello& dialler, const Hello& acceptor,
              std::string_view proof) {
  const std::string expected = make_proof(token, speaker, dialler, acceptor);
  return proof.size() == expected.size() &&
         CRYPTO_memcmp(proof.data(), expected.data(), expected.size()) == 0;
}

std::optional<Mismatch> find_token_mismatch(const ClusterToken* ours, const Hello& theirs) {
  if ((ours != nullptr) == !theirs.nonce().empty()) {
    return std::nullopt;
  }
  return ours != nullptr ? Mismatch{kTokenField, "set", kNoToken}
                         : Mismatch{kTokenField, kNoToken, "set"};
}

Mismatch unlike_tokens() { return {kTokenField, "one secret", "another"}; }

}  // namespace baton::handoff
