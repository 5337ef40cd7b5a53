#include "bench/serving/prompts.h"

#include <array>
#include <numeric>
#include <string_view>

namespace baton::serving {

namespace {

constexpr std::uint64_t kGolden = 0x9E3779B97F4A7C15ULL;  // 2^64 / golden ratio: splitmix64's step

constexpr std::array<std::string_view, 64> kWords = {
    "the",  "of",    "and",   "to",   "in",    "that", "is",    "was",   "for",  "on",   "as",
    "with", "he",    "be",    "at",   "by",    "this", "had",   "not",   "are",  "but",  "from",
    "or",   "have",  "an",    "they", "which", "one",  "you",   "were",  "all",  "her",  "she",
    "who",  "would", "their", "we",   "him",   "been", "has",   "when",  "more", "will", "no",
    "if",   "out",   "so",    "said", "what",  "up",   "its",   "about", "into", "than", "them",
    "can",  "only",  "other", "new",  "some",  "time", "could", "these", "two"};

}  // namespace

std::uint64_t mixed(std::uint64_t value) {
  value = (value ^ (value >> 30U)) * 0xBF58476D1CE4E5B9ULL;
  value = (value ^ (value >> 27U)) * 0x94D049BB133111EBULL;
  return value ^ (value >> 31U);
}

std::int64_t token_count(const PromptRecipe& recipe) {
  return std::accumulate(
      recipe.begin(), recipe.end(), std::int64_t{0},
      [](std::int64_t sum, const PromptPiece& piece) { return sum + piece.tokens; });
}

std::vector<TokenId> prompt_ids(const PromptRecipe& recipe, std::uint64_t seed, TokenRange range) {
  std::vector<TokenId> ids;
  ids.reserve(static_cast<std::size_t>(token_count(recipe)));
  const auto width = static_cast<std::uint64_t>(range.high - range.low);
  for (const PromptPiece& piece : recipe) {
    std::uint64_t state = mixed(mixed(seed + kGolden) ^ (piece.number + 1) * kGolden);
    for (std::int32_t index = 0; index < piece.tokens; ++index) {
      state += kGolden;
      ids.push_back(range.low + static_cast<TokenId>(mixed(state) % width));
    }
  }
  return ids;
}

std::string prompt_text(const PromptRecipe& recipe, std::uint64_t seed, TokenRange range) {
  std::string text;
  for (const TokenId id : prompt_ids(recipe, seed, range)) {
    text += text.empty() ? "" : " ";
    text += kWords[static_cast<std::size_t>(id) % kWords.size()];
  }
  return text;
}

}  // namespace baton::serving
