// See lexer.h.
#include "baton/text/template/lexer.h"

#include "baton/text/template/strings.h"
#include "baton/text/utf8.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

namespace baton::text::jinja {
namespace {

// Longest first.
constexpr std::array<std::string_view, 26> kOperators = {
    "**", "//", "==", "!=", ">=", "<=", "+", "-", "*", "/", "%", "~", "<",
    ">",  "=",  ".",  ":",  "|",  ",",  ";", "(", ")", "[", "]", "{", "}"};

bool is_name_start(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
         static_cast<unsigned char>(c) >= 0x80;
}
bool is_digit(char c) { return c >= '0' && c <= '9'; }

std::string normalized_newlines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      out += '\n';
      i += i + 1 < source.size() && source[i + 1] == '\n' ? 1 : 0;
    } else {
      out += source[i];
    }
  }
  if (!out.empty() && out.back() == '\n') {
    out.pop_back();
  }
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string source) : source_(std::move(source)) {}

  Result<std::vector<Token>> run() {
    while (position_ < source_.size()) {
      BATON_TRY_VOID(data_and_tag());
    }
    push(TokenKind::kEnd, {});
    return std::move(tokens_);
  }

 private:
  [[nodiscard]] std::string_view rest(std::size_t from) const {
    return std::string_view(source_).substr(std::min(from, source_.size()));
  }
  [[nodiscard]] bool at(std::string_view what) const {
    return rest(position_).substr(0, what.size()) == what;
  }
  void push(TokenKind kind, std::string text) { tokens_.push_back({kind, line_, std::move(text)}); }
  void advance_to(std::size_t position) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<long>(position_),
                                         source_.begin() + static_cast<long>(position), '\n'));
    position_ = position;
  }
  [[nodiscard]] tl::unexpected<Error> bad(const std::string& what) const {
    return template_error(ErrorCode::kInvalidArgument, line_, what);
  }
  void skip_white_space() { advance_to(position_ + leading_white_space(rest(position_))); }

  // The text up to the next tag, cut as the tag's sign and lstrip_blocks say.
  void push_data(std::size_t end, char sign, bool block) {
    std::string_view text = rest(position_).substr(0, end - position_);
    const std::size_t line_begin = text.rfind('\n') + 1;  // npos + 1 == 0
    if (sign == '-') {
      text.remove_suffix(trailing_white_space(text));
    } else if (sign != '+' && block && (line_begin > 0 || line_starting_) &&
               leading_white_space(text.substr(line_begin)) == text.size() - line_begin) {
      text = text.substr(0, line_begin);
    }
    if (!text.empty()) {
      push(TokenKind::kData, std::string(text));
    }
    advance_to(end);
  }

  // After a tag: -%} eats all white space, %} one line break (block and comment), +%} nothing.
  void after_tag(char sign, bool trim_newline) {
    const std::size_t begin = position_;
    if (sign == '-') {
      skip_white_space();
    } else if (sign != '+' && trim_newline && at("\n")) {
      advance_to(position_ + 1);
    }
    line_starting_ = position_ > begin && source_[position_ - 1] == '\n';
  }

  Status data_and_tag() {
    std::size_t tag = position_;
    for (;; ++tag) {
      tag = source_.find('{', tag);
      if (tag == std::string::npos || tag + 1 >= source_.size()) {
        push(TokenKind::kData, std::string(rest(position_)));
        advance_to(source_.size());
        return {};
      }
      const char next = source_[tag + 1];
      if (next == '%' || next == '{' || next == '#') {
        break;
      }
    }
    const char type = source_[tag + 1];
    const char after = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
    const char sign = after == '-' || after == '+' ? after : '\0';
    push_data(tag, sign, type != '{');
    advance_to(tag + (sign == '\0' ? 2 : 3));
    if (type == '#') {
      return comment();
    }
    if (type == '%' && raw_follows()) {
      return raw_block();
    }
    push(type == '%' ? TokenKind::kBlockBegin : TokenKind::kVariableBegin, {});
    return expression(type == '%' ? "%}" : "}}",
                      type == '%' ? TokenKind::kBlockEnd : TokenKind::kVariableEnd);
  }

  Status comment() {
    const std::size_t end = source_.find("#}", position_);
    if (end == std::string::npos) {
      return bad("a comment is not closed");
    }
    const char sign = end > position_ ? source_[end - 1] : '\0';
    advance_to(end + 2);
    after_tag(sign == '-' || sign == '+' ? sign : '\0', true);
    return {};
  }

  [[nodiscard]] bool raw_follows() const {
    std::string_view text = rest(position_);
    text.remove_prefix(leading_white_space(text));
    if (text.substr(0, 3) != "raw") {
      return false;
    }
    text.remove_prefix(3);
    text.remove_prefix(leading_white_space(text));
    return text.substr(0, 2) == "%}" || text.substr(0, 3) == "-%}";
  }

  // {% raw %} ... {% endraw %}: the text between is data.
  Status raw_block() {
    const std::size_t open_end = source_.find("%}", position_);
    const bool strip = source_[open_end - 1] == '-';
    advance_to(open_end + 2);
    if (strip) {
      skip_white_space();
    }
    line_starting_ = source_[position_ - 1] == '\n';
    for (std::size_t tag = source_.find("{%", position_); tag != std::string::npos;
         tag = source_.find("{%", tag + 2)) {
      std::string_view text = rest(tag + 2);
      const char sign = !text.empty() && (text[0] == '-' || text[0] == '+') ? text[0] : '\0';
      text.remove_prefix(sign == '\0' ? 0 : 1);
      text.remove_prefix(leading_white_space(text));
      if (text.substr(0, 6) != "endraw") {
        continue;
      }
      text.remove_prefix(6);
      text.remove_prefix(leading_white_space(text));
      const char end_sign = !text.empty() && (text[0] == '-' || text[0] == '+') ? text[0] : '\0';
      text.remove_prefix(end_sign == '\0' ? 0 : 1);
      if (text.substr(0, 2) != "%}") {
        continue;
      }
      push_data(tag, sign, true);
      advance_to(source_.size() - text.size() + 2);
      after_tag(end_sign, true);
      return {};
    }
    return bad("{% raw %} is not closed");
  }

  // The words of one tag, up to its end. An end inside of brackets is an operator ("}}" of a dict).
  Status expression(std::string_view end, TokenKind end_kind) {
    std::string open;  // brackets
    for (;;) {
      skip_white_space();
      if (position_ >= source_.size()) {
        return bad(fmt::format("a tag is not closed, \"{}\" expected", end));
      }
      if (open.empty()) {
        const char c = source_[position_];
        const bool block = end_kind == TokenKind::kBlockEnd;
        const bool sign =
            (c == '-' || (c == '+' && block)) && rest(position_ + 1).substr(0, end.size()) == end;
        if (sign || at(end)) {
          push(end_kind, {});
          advance_to(position_ + end.size() + (sign ? 1 : 0));
          after_tag(sign ? c : '\0', block);
          return {};
        }
      }
      BATON_TRY_VOID(word(open));
    }
  }

  Status word(std::string& open) {
    const char c = source_[position_];
    if (c == '\'' || c == '"') {
      return string_literal(c);
    }
    if (is_digit(c)) {
      return number();
    }
    if (is_name_start(c)) {
      std::size_t end = position_;
      while (end < source_.size() && (is_name_start(source_[end]) || is_digit(source_[end]))) {
        ++end;
      }
      push(TokenKind::kName, source_.substr(position_, end - position_));
      advance_to(end);
      return {};
    }
    for (const std::string_view op : kOperators) {
      if (at(op)) {
        BATON_TRY_VOID(balance(op[0], open));
        push(TokenKind::kOperator, std::string(op));
        advance_to(position_ + op.size());
        return {};
      }
    }
    const Utf8Step step = decode_utf8(source_, position_);
    return bad(fmt::format("unexpected character \"{}\"", source_.substr(position_, step.bytes)));
  }

  Status balance(char c, std::string& open) {
    if (c == '(' || c == '[' || c == '{') {
      open += c == '(' ? ')' : c == '[' ? ']' : '}';
    } else if (c == ')' || c == ']' || c == '}') {
      if (open.empty() || open.back() != c) {
        return bad(fmt::format("unexpected '{}'", c));
      }
      open.pop_back();
    }
    return {};
  }

  Status string_literal(char quote) {
    std::size_t end = position_ + 1;
    while (end < source_.size() && source_[end] != quote) {
      end += source_[end] == '\\' ? 2 : 1;
    }
    if (end >= source_.size()) {
      return bad("a string is not closed");
    }
    auto decoded = unescaped(source_.substr(position_ + 1, end - position_ - 1));
    if (!decoded) {
      return bad("a string has a broken escape sequence");
    }
    push(TokenKind::kString, *std::move(decoded));
    advance_to(end + 1);
    return {};
  }

  Status number() {
    std::size_t end = position_;
    const auto digits = [&] {
      while (end < source_.size() && (is_digit(source_[end]) || source_[end] == '_')) {
        ++end;
      }
    };
    digits();
    bool real = false;
    if (end + 1 < source_.size() && source_[end] == '.' && is_digit(source_[end + 1])) {
      real = true;
      ++end;
      digits();
    }
    if (end < source_.size() && (source_[end] == 'e' || source_[end] == 'E')) {
      const std::size_t exponent = end + 1;
      const bool sign =
          exponent < source_.size() && (source_[exponent] == '+' || source_[exponent] == '-');
      if (exponent + (sign ? 1 : 0) < source_.size() &&
          is_digit(source_[exponent + (sign ? 1 : 0)])) {
        real = true;
        end = exponent + (sign ? 1 : 0);
        digits();
      }
    }
    if (end < source_.size() && is_name_start(source_[end])) {
      return template_error(ErrorCode::kUnsupported, line_,
                            fmt::format("number \"{}...\" is not supported",
                                        source_.substr(position_, end + 1 - position_)));
    }
    std::string text = source_.substr(position_, end - position_);
    text.erase(std::remove(text.begin(), text.end(), '_'), text.end());
    push(real ? TokenKind::kFloat : TokenKind::kInteger, std::move(text));
    advance_to(end);
    return {};
  }

  std::string source_;
  std::size_t position_ = 0;
  int line_ = 1;
  bool line_starting_ = true;  // the text before was the end of a line
  std::vector<Token> tokens_;
};

}  // namespace

Result<std::vector<Token>> tokenize(std::string_view source) {
  return Lexer(normalized_newlines(source)).run();
}

tl::unexpected<Error> template_error(ErrorCode code, int line, const std::string& what) {
  return fail(code, fmt::format("chat template, line {}: {}", line, what), "chat_template");
}

}  // namespace baton::text::jinja
