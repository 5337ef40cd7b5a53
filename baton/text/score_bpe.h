// SentencePiece's byte-pair encoding: a text is its characters; the two neighbours whose joined
// text is the token of the highest score are merged until no two make a token; of equal ones the
// leftmost first. A character that ends up as no token becomes the tokens of its bytes. A heap of
// candidates, O(n log n). Spaces are spaces here: the file's U+2581 is translated when tokens are
// loaded. Immutable; any thread, each call with its own scratch.
#pragma once

#include "baton/base/ids.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace baton::text {

class ScoreBpe {
 public:
  struct Token {
    std::string_view bytes;  // must outlive the ScoreBpe
    TokenId id = 0;
    float score = 0.0F;
  };
  // Reused between calls by one caller.
  struct Scratch {
    struct Symbol {
      std::size_t begin = 0;
      std::size_t bytes = 0;  // 0: merged into its left neighbour
      std::int32_t previous = -1;
      std::int32_t next = -1;
    };
    struct Candidate {
      float score = 0.0F;
      std::int32_t left = 0;
      std::int32_t right = 0;
      std::size_t bytes = 0;  // of both when it was found
    };
    std::vector<Symbol> symbols;
    std::vector<Candidate> heap;
  };

  // byte_ids: the token of each byte.
  ScoreBpe(const std::vector<Token>& tokens, const std::array<TokenId, 256>& byte_ids);

  // Appends the ids of `text`, valid UTF-8 of less than 2^31 bytes.
  void encode(std::string_view text, Scratch& scratch, std::vector<TokenId>& out) const;

  // True when no token has the two bytes side by side in it, so that a text may be cut between
  // them. Asked before spaces: texts are then words, which repeat.
  [[nodiscard]] bool cuts_before_space(char before) const {
    return !before_space_[static_cast<unsigned char>(before)];
  }

 private:
  struct Entry {
    TokenId id = 0;
    float score = 0.0F;
  };
  [[nodiscard]] const Entry* find(std::string_view bytes) const;
  void push(std::string_view text, Scratch& scratch, std::int32_t left, std::int32_t right) const;

  std::unordered_map<std::string_view, Entry> tokens_;
  std::array<TokenId, 256> byte_ids_;
  std::array<bool, 256> before_space_{};  // [byte]: some token has it with a space behind it
  std::size_t longest_ = 0;               // token, in bytes
};

}  // namespace baton::text
