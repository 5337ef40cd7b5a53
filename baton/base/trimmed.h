// Text that people write, without the blanks around it.
#pragma once

#include <string_view>

namespace baton {

// Without spaces and tabs at both ends; a view of `text`.
inline std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlanks = " \t";
  const std::size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) {
    return {};
  }
  return text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

}  // namespace baton
