// String pieces that lexer and interpreter share: Python's white space, escapes, and the forms in
// which Python and JSON write values. Pure functions.
#pragma once

#include "baton/text/text.h"

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace baton::text::jinja {

// str.isspace(): \s and the four separators U+001C to U+001F.
bool is_white_space(char32_t code_point);
std::size_t leading_white_space(std::string_view text);   // bytes
std::size_t trailing_white_space(std::string_view text);  // bytes

// A string literal's body with its escapes resolved, as Jinja does; none when one is broken.
std::optional<std::string> unescaped(std::string_view body);

// repr() of a float: the shortest digits that read back the same.
std::string float_repr(double value);
// repr() of a str, quotes included. Marks are kept; quotes and escapes count as the template's.
void append_repr(Text& out, const Text& text);
// A JSON string, quotes included; likewise.
void append_json_string(Text& out, const Text& text, bool ascii_only);

// Simple case mapping of each code point (utf8proc's).
Text upper_case(const Text& text);
Text lower_case(const Text& text);
// The first letter of the text (or of every word) upper, the others lower.
Text capitalized(const Text& text, bool every_word);

// Where the character before `position` begins. position > 0.
std::size_t previous_character(std::string_view text, std::size_t position);

}  // namespace baton::text::jinja
