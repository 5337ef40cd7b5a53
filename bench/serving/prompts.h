// Prompts of a load test as recipes: pieces of pseudo-random tokens, made again from (seed, piece)
// whenever they are needed. Pieces of one number are the same tokens everywhere, so prompts that
// begin with the same pieces share a prefix; pieces of different numbers have nothing in common.
// Thread: any.
#pragma once

#include "baton/base/ids.h"

#include <cstdint>
#include <string>
#include <vector>

namespace baton::serving {

struct PromptPiece {
  std::uint64_t number = 0;  // which tokens
  std::int32_t tokens = 0;   // how many of them, from the first
  auto operator<=>(const PromptPiece&) const = default;
};
using PromptRecipe = std::vector<PromptPiece>;

// Token ids [low, high) that prompts are made of.
struct TokenRange {
  TokenId low = 1000;  // below lie control tokens and bytes of nearly every vocabulary
  TokenId high = 30'000;
};

[[nodiscard]] std::int64_t token_count(const PromptRecipe& recipe);
// token_count(recipe) ids.
[[nodiscard]] std::vector<TokenId> prompt_ids(const PromptRecipe& recipe, std::uint64_t seed,
                                              TokenRange range);
// The same prompt as text for servers that take no ids: one short English word per token, which is
// one token in most vocabularies. Equal prefixes of ids are equal prefixes of text.
[[nodiscard]] std::string prompt_text(const PromptRecipe& recipe, std::uint64_t seed,
                                      TokenRange range);

// A number that a counter gives once mixed: uniform 64 bits (splitmix64's finalizer).
[[nodiscard]] std::uint64_t mixed(std::uint64_t value);

}  // namespace baton::serving
