// Finds tokens that are matched whole, before any cutting into words: leftmost first, of those the
// longest. A trie over their bytes: time O(text bytes * longest token). Immutable; any thread.
#pragma once

#include "baton/base/ids.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace baton::text {

class SpecialTokens {
 public:
  struct Match {
    std::size_t bytes = 0;  // 0: none
    TokenId id = 0;
  };

  // `bytes` not empty; a second token of the same text is ignored.
  void add(std::string_view bytes, TokenId id, bool control);

  // The longest token that begins at `position`. A control token is taken only if all of its bytes
  // lie before `control_end` (the end of the template's text there).
  [[nodiscard]] Match match_at(std::string_view text, std::size_t position,
                               std::size_t control_end) const;
  [[nodiscard]] bool may_begin(char byte) const {
    return first_[static_cast<unsigned char>(byte)] >= 0;
  }

 private:
  struct Node {
    std::vector<std::pair<char, std::int32_t>> children;
    TokenId id = -1;
    bool control = false;
  };
  [[nodiscard]] std::int32_t child(std::int32_t node, char byte) const;
  std::int32_t make_child(std::int32_t node, char byte);
  static constexpr std::array<std::int32_t, 256> no_nodes() {
    std::array<std::int32_t, 256> nodes{};
    nodes.fill(-1);
    return nodes;
  }

  std::array<std::int32_t, 256> first_ = no_nodes();
  std::vector<Node> nodes_;
};

}  // namespace baton::text
