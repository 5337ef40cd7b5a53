// Names of prefixes: the digest of a tile covers its 32 tokens and, through its parent, all that
// came before and whose cache it is. Keyed SHA-256 cut to 128 bits, so that nobody without the key
// can make two prefixes collide or guess a digest. Thread: any; one object each.
#pragma once

#include "baton/base/ids.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace baton::kv {

struct TileDigest {
  std::array<std::uint8_t, 16> bytes{};
  auto operator<=>(const TileDigest&) const = default;
};

// What others are told of a digest: half of it, so that not even the next tile's can be tried with
// guessed tokens.
inline PrefixName prefix_name(const TileDigest& digest) {
  PrefixName name = 0;
  for (std::size_t i = 0; i < sizeof(name); ++i) {
    name = name << 8 | digest.bytes[i];
  }
  return name;
}

class TileHasher {
 public:
  // key: who has it names prefixes alike; empty = random, for this object alone.
  explicit TileHasher(std::string_view key);
  ~TileHasher();
  TileHasher(const TileHasher&) = delete;
  TileHasher& operator=(const TileHasher&) = delete;

  // Parent of the first tile: whose cache. Each part goes in with its length, so no two lists of
  // parts share a digest by concatenation.
  [[nodiscard]] TileDigest root(std::span<const std::string_view> parts);
  // tokens: kTileTokens ids. About 0.5 us.
  [[nodiscard]] TileDigest tile(const TileDigest& parent, std::span<const TokenId> tokens);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace baton::kv

// Already uniform bits.
template <>
struct std::hash<baton::kv::TileDigest> {
  std::size_t operator()(const baton::kv::TileDigest& digest) const noexcept {
    return static_cast<std::size_t>(baton::kv::prefix_name(digest));
  }
};
