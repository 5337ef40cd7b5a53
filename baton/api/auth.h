// The key check, deny by default: with a key set, every path but the liveness ones and the page
// needs it, known routes or not, /metrics and /cluster too. Pure; immutable; any thread.
#pragma once

#include "baton/base/result.h"
#include "baton/http/message.h"

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace baton::api {

// /health, /ready, /live, and reading / (one file, the same for everybody, which asks for the key:
// a browser cannot send one with the address). Byte for byte, any other spelling is guarded.
bool is_public(const http::HttpRequest& head);

// The Bearer key that a request carries, right or wrong; empty when there is none. Separates prefix
// caches of different clients.
std::string presented_key(const http::HttpRequest& head);

class KeyCheck {
 public:
  // No keys: everything is open.
  explicit KeyCheck(const std::vector<std::string>& keys);

  [[nodiscard]] bool enabled() const { return !digests_.empty(); }
  // `Authorization: Bearer KEY`, the scheme in any case. Keys are compared as SHA-256 digests in
  // constant time, all of them. Errors: kUnauthorized.
  [[nodiscard]] Status check(const http::HttpRequest& head) const;

 private:
  using Digest = std::array<std::uint8_t, 32>;
  std::vector<Digest> digests_;
};

}  // namespace baton::api
