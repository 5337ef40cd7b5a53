#include "baton/api/auth.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <algorithm>
#include <cctype>

namespace baton::api {

namespace {

std::array<std::uint8_t, 32> digest_of(std::string_view key) {
  std::array<std::uint8_t, 32> digest{};
  SHA256(reinterpret_cast<const unsigned char*>(key.data()), key.size(), digest.data());
  return digest;
}

// The credentials of a Bearer header; nothing when the scheme is another one.
std::optional<std::string_view> bearer(std::string_view value) {
  constexpr std::string_view kScheme = "bearer";
  if (value.size() <= kScheme.size() || value[kScheme.size()] != ' ') {
    return std::nullopt;
  }
  const bool same = std::equal(kScheme.begin(), kScheme.end(), value.begin(), [](char a, char b) {
    return a == std::tolower(static_cast<unsigned char>(b));
  });
  if (!same) {
    return std::nullopt;
  }
  value.remove_prefix(kScheme.size());
  const std::size_t begin = value.find_first_not_of(' ');
  return begin == std::string_view::npos ? std::string_view() : value.substr(begin);
}

}  // namespace

bool is_public(const http::HttpRequest& head) {
  const std::string& path = head.path;
  const bool reads = head.method == "GET" || head.method == "HEAD";
  return reads && (path == "/health" || path == "/ready" || path == "/live" || path == "/");
}

std::string presented_key(const http::HttpRequest& head) {
  const auto header = head.header("authorization");
  const auto given = header ? bearer(*header) : std::nullopt;
  return std::string(given.value_or(std::string_view()));
}

KeyCheck::KeyCheck(const std::vector<std::string>& keys) {
  for (const std::string& key : keys) {
    digests_.push_back(digest_of(key));
  }
}

Status KeyCheck::check(const http::HttpRequest& head) const {
  if (!enabled() || is_public(head)) {
    return {};
  }
  const auto lines =
      std::count_if(head.headers.begin(), head.headers.end(),
                    [](const auto& header) { return header.first == "authorization"; });
  if (lines > 1) {
    return fail(ErrorCode::kUnauthorized, "there are several Authorization headers; send one");
  }
  const auto header = head.header("authorization");
  const auto given = header ? bearer(*header) : std::nullopt;
  if (!given) {
    return fail(ErrorCode::kUnauthorized,
                "no API key was given; send it as \"Authorization: Bearer KEY\"");
  }
  const Digest digest = digest_of(*given);
  int equal = 0;
  for (const Digest& known : digests_) {
    // All of them, so that time does not tell which one, or how much of it, was right.
    equal |= static_cast<int>(CRYPTO_memcmp(known.data(), digest.data(), digest.size()) == 0);
  }
  if (equal == 0) {
    return fail(ErrorCode::kUnauthorized, "the API key is not valid");
  }
  return {};
}

}  // namespace baton::api
