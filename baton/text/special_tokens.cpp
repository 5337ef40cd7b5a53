// See special_tokens.h.
#include "baton/text/special_tokens.h"

#include <utility>

namespace baton::text {

std::int32_t SpecialTokens::child(std::int32_t node, char byte) const {
  if (node < 0) {
    return first_[static_cast<unsigned char>(byte)];
  }
  for (const auto& [label, target] : nodes_[static_cast<std::size_t>(node)].children) {
    if (label == byte) {
      return target;
    }
  }
  return -1;
}

std::int32_t SpecialTokens::make_child(std::int32_t node, char byte) {
  const std::int32_t found = child(node, byte);
  if (found >= 0) {
    return found;
  }
  const auto made = static_cast<std::int32_t>(nodes_.size());
  nodes_.emplace_back();
  if (node < 0) {
    first_[static_cast<unsigned char>(byte)] = made;
  } else {
    nodes_[static_cast<std::size_t>(node)].children.emplace_back(byte, made);
  }
  return made;
}

void SpecialTokens::add(std::string_view bytes, TokenId id, bool control) {
  std::int32_t node = -1;
  for (const char byte : bytes) {
    node = make_child(node, byte);
  }
  Node& last = nodes_[static_cast<std::size_t>(node)];
  if (last.id < 0) {
    last.id = id;
    last.control = control;
  }
}

SpecialTokens::Match SpecialTokens::match_at(std::string_view text, std::size_t position,
                                             std::size_t control_end) const {
  Match best;
  std::int32_t node = -1;
  for (std::size_t i = position; i < text.size(); ++i) {
    node = child(node, text[i]);
    if (node < 0) {
      break;
    }
    const Node& here = nodes_[static_cast<std::size_t>(node)];
    if (here.id >= 0 && (!here.control || i < control_end)) {
      best = {i + 1 - position, here.id};
    }
  }
  return best;
}

}  // namespace baton::text
