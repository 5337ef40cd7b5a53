// A template's source to tokens: text between tags, and the words of the expressions inside of
// them. White space control is done here, with Hugging Face's settings: trim_blocks (the line break
// after a block tag goes), lstrip_blocks (blanks before a block tag that begins a line go), and the
// last line break of the source goes. Follows Jinja 3.1's lexer.
#pragma once

#include "baton/base/result.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace baton::text::jinja {

enum class TokenKind : std::uint8_t {
  kData,  // text outside of tags
  kVariableBegin,
  kVariableEnd,
  kBlockBegin,
  kBlockEnd,
  kName,
  kString,  // text is the decoded string
  kInteger,
  kFloat,
  kOperator,  // text is the operator
  kEnd,
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  int line = 1;
  std::string text;
  [[nodiscard]] bool is(TokenKind k, std::string_view t) const { return kind == k && text == t; }
  [[nodiscard]] bool is_operator(std::string_view t) const { return is(TokenKind::kOperator, t); }
  [[nodiscard]] bool is_name(std::string_view t) const { return is(TokenKind::kName, t); }
};

// The last token is kEnd. Errors: kInvalidArgument naming the line.
Result<std::vector<Token>> tokenize(std::string_view source);

// "chat template, line N: what"
tl::unexpected<Error> template_error(ErrorCode code, int line, const std::string& what);

}  // namespace baton::text::jinja
