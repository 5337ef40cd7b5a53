// The cluster token: a secret that all nodes of a cluster share, and the two proofs of a handshake
// that show each side that the other has it, without it ever travelling. docs/protocol.md, 3, is
// the specification. Authenticates, encrypts nothing. Pure functions but for make_nonce; any
// thread.
#pragma once

#include "baton/base/result.h"
#include "baton/handoff/handshake.h"

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace baton::handoff {

// Whoever hears a handshake can try guesses against it as fast as its machine allows.
inline constexpr std::size_t kMinTokenBytes = 16;
inline constexpr std::size_t kMaxTokenBytes = 4096;

// Which end of a connection makes, or made, a proof.
enum class End : std::uint8_t { kDialler, kAcceptor };

class ClusterToken {
 public:
  // White space at both ends is dropped: files end with a line break. Errors: kInvalidArgument (too
  // short or too long), without a byte of the token.
  static Result<ClusterToken> parse(std::string_view text);

  // A secret of 32 bytes for another purpose that all nodes with this token have in common, and
  // from which neither the token nor the secret of another purpose follows.
  [[nodiscard]] std::string derive(std::string_view purpose) const;

 private:
  [[nodiscard]] std::string hmac(std::string_view text) const;  // SHA-256, the secret is the key
  friend std::string make_proof(const ClusterToken& token, End speaker,
                                const wire::pb::Hello& dialler, const wire::pb::Hello& acceptor);
  explicit ClusterToken(std::string secret) : secret_(std::move(secret)) {}
  std::string secret_;
};

// wire::kNonceBytes from the system's generator.
std::string make_nonce();

// HMAC-SHA256 of both Hellos' identities and nonces and of who says it: a proof fits one connection
// and one direction. Both Hellos carry a nonce.
std::string make_proof(const ClusterToken& token, End speaker, const wire::pb::Hello& dialler,
                       const wire::pb::Hello& acceptor);
// In constant time.
bool is_proof(const ClusterToken& token, End speaker, const wire::pb::Hello& dialler,
              const wire::pb::Hello& acceptor, std::string_view proof);

// One side has a token and the other has none. `ours` may be null.
std::optional<Mismatch> find_token_mismatch(const ClusterToken* ours,
                                            const wire::pb::Hello& theirs);
// Both have one, and they differ.
Mismatch unlike_tokens();

}  // namespace baton::handoff
