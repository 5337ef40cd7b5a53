// Byte-pair encoding of one word: the pair of neighbours with the best rank is merged until none is
// left; of equal pairs the leftmost first. Long words use a linked list and a heap, O(n log n), so
// that 100,000 equal letters cost no more than prose. Immutable; any thread, each call with its own
// scratch.
#pragma once

#include "baton/base/ids.h"

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace baton::text {

class Bpe {
 public:
  struct Merge {
    TokenId left = 0;
    TokenId right = 0;
    TokenId merged = 0;
  };
  // Reused between words by one caller.
  struct Scratch {
    struct Symbol {
      TokenId id = 0;
      std::int32_t previous = -1;
      std::int32_t next = -1;
    };
    struct Candidate {
      std::int32_t rank = 0;
      std::int32_t position = 0;
      TokenId merged = 0;
    };
    std::vector<Symbol> symbols;
    std::vector<Candidate> heap;
  };

  // `byte_ids`: the token of each byte, or -1: such bytes are left out before merging, as Hugging
  // Face does without an unknown token. `merges` best first; of equal pairs the last one counts.
  Bpe(const std::array<TokenId, 256>& byte_ids, const std::vector<Merge>& merges);

  // Appends the ids of `word`. word.size() < 2^31.
  void encode(std::string_view word, Scratch& scratch, std::vector<TokenId>& out) const;

 private:
  struct Slot {
    std::uint64_t pair = kEmpty;
    std::int32_t rank = 0;
    TokenId merged = 0;
  };
  static constexpr std::uint64_t kEmpty = ~0ULL;  // no pair of ids >= 0

  [[nodiscard]] const Slot* find(TokenId left, TokenId right) const;
  void merge_short(std::vector<TokenId>& ids, std::size_t begin) const;
  void merge_long(Scratch& scratch, std::vector<TokenId>& ids, std::size_t begin) const;
  void push(Scratch& scratch, std::int32_t position) const;

  std::array<TokenId, 256> byte_ids_;
  std::vector<Slot> slots_;  // open addressing, a power of two, at most half full
  std::uint64_t mask_ = 0;
};

}  // namespace baton::text
