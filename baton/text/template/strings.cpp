// See strings.h.
#include "baton/text/template/strings.h"

#include "baton/text/unicode_classes.h"
#include "baton/text/utf8.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>

namespace baton::text::jinja {
namespace {

// \xHH, \uHHHH, \UHHHHHHHH at body[i..]; none when digits are missing.
std::optional<char32_t> hex_digits(std::string_view body, std::size_t i, std::size_t count) {
  if (i + count > body.size()) {
    return std::nullopt;
  }
  std::uint32_t value = 0;
  const char* end = body.data() + i + count;
  const auto parsed = std::from_chars(body.data() + i, end, value, 16);
  if (parsed.ec != std::errc() || parsed.ptr != end || value > 0x10FFFF) {
    return std::nullopt;
  }
  return static_cast<char32_t>(value);
}

char simple_escape(char c) {
  switch (c) {
    case 'n':
      return '\n';
    case 't':
      return '\t';
    case 'r':
      return '\r';
    case 'a':
      return '\a';
    case 'b':
      return '\b';
    case 'f':
      return '\f';
    case 'v':
      return '\v';
    case '\\':
    case '\'':
    case '"':
      return c;
    default:
      return '\0';
  }
}

template <class Map>
Text mapped(const Text& text, Map map) {
  Text out;
  const std::string_view bytes = text.bytes();
  for (std::size_t i = 0; i < bytes.size();) {
    const Utf8Step step = decode_utf8(bytes, i);
    std::string character;
    append_utf8(character, map(step.code_point));
    out.append(character, text.from_template_at(i));
    i += step.bytes;
  }
  return out;
}

char32_t to_upper(char32_t c) {
  return static_cast<char32_t>(utf8proc_toupper(static_cast<std::int32_t>(c)));
}
char32_t to_lower(char32_t c) {
  return static_cast<char32_t>(utf8proc_tolower(static_cast<std::int32_t>(c)));
}

// Python's str.isprintable, by general category.
bool is_printable(char32_t c) {
  switch (utf8proc_category(static_cast<std::int32_t>(c))) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
      return false;
    case UTF8PROC_CATEGORY_ZS:
      return c == ' ';
    default:
      return true;
  }
}

std::string repr_escape(char32_t c) {
  switch (c) {
    case '\n':
      return "\\n";
    case '\r':
      return "\\r";
    case '\t':
      return "\\t";
    case '\\':
      return "\\\\";
    default:
      break;
  }
  const auto value = static_cast<std::uint32_t>(c);
  return value < 0x100     ? fmt::format("\\x{:02x}", value)
         : value < 0x10000 ? fmt::format("\\u{:04x}", value)
                           : fmt::format("\\U{:08x}", value);
}

std::string json_escape(char32_t c) {
  switch (c) {
    case '"':
      return "\\\"";
    case '\\':
      return "\\\\";
    case '\n':
      return "\\n";
    case '\r':
      return "\\r";
    case '\t':
      return "\\t";
    case '\b':
      return "\\b";
    case '\f':
      return "\\f";
    default:
      break;
  }
  const auto value = static_cast<std::uint32_t>(c);
  if (value < 0x10000) {
    return fmt::format("\\u{:04x}", value);
  }
  return fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + ((value - 0x10000) >> 10),
                     0xDC00 + ((value - 0x10000) & 0x3FF));
}

}  // namespace

bool is_white_space(char32_t code_point) {
  return (code_point < kCodePoints && (unicode_classes()[code_point] & kSpace) != 0) ||
         (code_point >= 0x1C && code_point <= 0x1F);
}

std::size_t leading_white_space(std::string_view text) {
  std::size_t i = 0;
  while (i < text.size()) {
    const Utf8Step step = decode_utf8(text, i);
    if (!is_white_space(step.code_point)) {
      break;
    }
    i += step.bytes;
  }
  return i;
}

std::size_t previous_character(std::string_view text, std::size_t position) {
  std::size_t begin = position - 1;
  while (begin > 0 && position - begin < 4 &&
         (static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) {
    --begin;
  }
  return begin + decode_utf8(text, begin).bytes == position ? begin : position - 1;
}

std::size_t trailing_white_space(std::string_view text) {
  std::size_t end = text.size();
  while (end > 0) {
    const std::size_t begin = previous_character(text, end);
    if (!is_white_space(decode_utf8(text, begin).code_point)) {
      break;
    }
    end = begin;
  }
  return text.size() - end;
}

std::optional<std::string> unescaped(std::string_view body) {
  std::string out;
  for (std::size_t i = 0; i < body.size(); ++i) {
    if (body[i] != '\\' || i + 1 >= body.size()) {
      out += body[i];
      continue;
    }
    const char c = body[++i];
    if (const char simple = simple_escape(c); simple != '\0') {
      out += simple;
    } else if (c == '\n') {
      continue;  // a line that goes on
    } else if (c == 'x' || c == 'u' || c == 'U') {
      const std::size_t count = c == 'x' ? 2 : c == 'u' ? 4 : 8;
      const auto value = hex_digits(body, i + 1, count);
      if (!value || (*value >= 0xD800 && *value < 0xE000)) {
        return std::nullopt;
      }
      append_utf8(out, *value);
      i += count;
    } else if (c >= '0' && c <= '7') {
      char32_t value = 0;
      std::size_t digits = 0;
      for (; digits < 3 && i + digits < body.size() && body[i + digits] >= '0' &&
             body[i + digits] <= '7';
           ++digits) {
        value = value * 8 + static_cast<char32_t>(body[i + digits] - '0');
      }
      append_utf8(out, value);
      i += digits - 1;
    } else if (c == 'N') {
      return std::nullopt;  // \N{NAME}
    } else {
      out += '\\';
      out += c;
    }
  }
  return out;
}

std::string float_repr(double value) {
  if (std::isnan(value)) {
    return "nan";
  }
  if (std::isinf(value)) {
    return value < 0 ? "-inf" : "inf";
  }
  std::array<char, 64> buffer{};
  const auto printed = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value,
                                     std::chars_format::scientific);
  const std::string scientific(buffer.data(), printed.ptr);
  const std::size_t e = scientific.find('e');
  const int exponent = std::stoi(scientific.substr(e + 1));
  if (exponent < -4 || exponent >= 16) {
    return fmt::format("{}e{}{:02}", scientific.substr(0, e), exponent < 0 ? '-' : '+',
                       exponent < 0 ? -exponent : exponent);
  }
  const auto fixed =
      std::to_chars(buffer.data(), buffer.data() + buffer.size(), value, std::chars_format::fixed);
  std::string out(buffer.data(), fixed.ptr);
  return out.find('.') == std::string::npos ? out + ".0" : out;
}

void append_repr(Text& out, const Text& text) {
  const std::string_view bytes = text.bytes();
  const bool double_quotes =
      bytes.find('\'') != std::string_view::npos && bytes.find('"') == std::string_view::npos;
  const char quote = double_quotes ? '"' : '\'';
  out.append(std::string_view(&quote, 1), true);
  for (std::size_t i = 0; i < bytes.size();) {
    const Utf8Step step = decode_utf8(bytes, i);
    const auto c = step.code_point;
    const bool from_template = text.from_template_at(i);
    if (c == static_cast<char32_t>(quote)) {
      out.append(std::string("\\") + quote, from_template);
    } else if (c == '\\' || !is_printable(c)) {
      out.append(repr_escape(c), from_template);
    } else {
      out.append(bytes.substr(i, step.bytes), from_template);
    }
    i += step.bytes;
  }
  out.append(std::string_view(&quote, 1), true);
}

void append_json_string(Text& out, const Text& text, bool ascii_only) {
  const std::string_view bytes = text.bytes();
  out.append("\"", true);
  std::size_t plain = 0;  // [plain, i) needs no escape
  std::size_t i = 0;
  const auto flush = [&] { out.append_slice(text, plain, i); };
  while (i < bytes.size()) {
    const Utf8Step step = decode_utf8(bytes, i);
    const auto c = step.code_point;
    if (c < 0x20 || c == '"' || c == '\\' || (ascii_only && c > 0x7E)) {
      flush();
      out.append(json_escape(c), text.from_template_at(i));
      plain = i + step.bytes;
    }
    i += step.bytes;
  }
  flush();
  out.append("\"", true);
}

Text upper_case(const Text& text) { return mapped(text, to_upper); }
Text lower_case(const Text& text) { return mapped(text, to_lower); }

Text capitalized(const Text& text, bool every_word) {
  bool begin = true;
  return mapped(text, [&](char32_t c) {
    const char32_t result = begin ? to_upper(c) : to_lower(c);
    const bool letter = to_upper(c) != c || to_lower(c) != c ||
                        (c < kCodePoints && (unicode_classes()[c] & kLetter) != 0);
    begin = every_word ? !letter : false;
    return result;
  });
}

}  // namespace baton::text::jinja
