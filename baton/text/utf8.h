// UTF-8 in pieces: valid text out, invalid input replaced by U+FFFD per maximal subpart (Unicode
// 15, section 3.9, "U+FFFD Substitution of Maximal Subparts"; what Python and WHATWG do).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace baton::text {

inline constexpr char32_t kReplacement = 0xFFFD;

void append_utf8(std::string& out, char32_t code_point);

struct Utf8Step {
  char32_t code_point = 0;  // kReplacement when invalid
  std::size_t bytes = 0;    // consumed, >= 1
  bool valid = true;
  bool incomplete = false;  // invalid only because the text ends inside of a character
};
// Reads at `position` (< text.size()).
Utf8Step decode_utf8(std::string_view text, std::size_t position);

// The text with every invalid part replaced; equal to the input when that is valid.
std::string sanitized_utf8(std::string_view bytes);
bool is_valid_utf8(std::string_view bytes);
// Code points; each invalid part counts as one.
std::size_t count_code_points(std::string_view text);

class Utf8Decoder {
 public:
  // Appends the complete text of what has been fed to `out`.
  void feed(std::string_view bytes, std::string& out);
  // The unfinished rest becomes U+FFFD.
  void flush(std::string& out);
  [[nodiscard]] std::size_t pending_bytes() const { return pending_.size(); }

 private:
  std::string pending_;  // a proper prefix of a character, at most 3 bytes
};

}  // namespace baton::text
