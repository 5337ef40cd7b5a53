// The tags: for, if, set, macro, break, continue, generation.
#include "baton/text/template/parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace baton::text::jinja {
namespace {

class StatementParser : public ExpressionParser {
 public:
  using ExpressionParser::ExpressionParser;

  Result<Program> parse() {
    Program program;
    BATON_TRY(program.body, parse_body({}));
    return program;
  }

 private:
  // Up to a tag of one of the names, whose name is then current(); without names to the end.
  Result<Body> parse_body(std::initializer_list<std::string_view> until) {
    Body body;
    const int line = current().line;
    if (++depth_ > kMaxBlockDepth) {
      return template_error(ErrorCode::kUnsupported, line,
                            fmt::format("more than {} blocks within one another", kMaxBlockDepth));
    }
    while (current().kind != TokenKind::kEnd) {
      Statement statement;
      statement.line = current().line;
      if (current().kind == TokenKind::kData) {
        statement.data = Value::trusted_string(next().text);
      } else if (current().kind == TokenKind::kVariableBegin) {
        next();
        statement.kind = StatementKind::kPrint;
        BATON_TRY(statement.expression, parse_tuple(true, false));
        BATON_TRY_VOID(expect(TokenKind::kVariableEnd, "\"}}\""));
      } else {
        next();  // kBlockBegin: the lexer makes nothing else here
        if (current().kind == TokenKind::kName &&
            std::find(until.begin(), until.end(), current().text) != until.end()) {
          --depth_;
          return body;
        }
        BATON_TRY(statement, parse_tag());
      }
      body.push_back(std::move(statement));
    }
    if (until.size() != 0) {
      return template_error(ErrorCode::kInvalidArgument, line,
                            fmt::format("the block that begins here is not closed, \"{}\" expected",
                                        *(until.end() - 1)));
    }
    --depth_;
    return body;
  }

  Status expect(TokenKind kind, std::string_view what) {
    if (current().kind != kind) {
      return unexpected(what);
    }
    next();
    return {};
  }
  Status end_of_tag() { return expect(TokenKind::kBlockEnd, "\"%}\""); }

  Result<Statement> parse_tag() {
    const int line = current().line;
    BATON_TRY(const std::string name, expect_name());
    Statement statement;
    statement.line = line;
    if (name == "for") {
      return parse_for(std::move(statement));
    }
    if (name == "if") {
      return parse_if(std::move(statement));
    }
    if (name == "set") {
      return parse_set(std::move(statement));
    }
    if (name == "macro") {
      return parse_macro(std::move(statement));
    }
    if (name == "generation") {
      statement.kind = StatementKind::kPassThrough;
      BATON_TRY_VOID(end_of_tag());
      BATON_TRY(statement.body, parse_body({"endgeneration"}));
      next();
      BATON_TRY_VOID(end_of_tag());
      return statement;
    }
    if (name == "break" || name == "continue") {
      if (loops_ == 0) {
        return template_error(ErrorCode::kInvalidArgument, line,
                              fmt::format("\"{}\" outside of a loop", name));
      }
      statement.kind = name == "break" ? StatementKind::kBreak : StatementKind::kContinue;
      BATON_TRY_VOID(end_of_tag());
      return statement;
    }
    return unsupported(line, fmt::format("the tag \"{}\"", name));
  }

  Result<Target> parse_target() {
    Target target;
    const int line = current().line;
    const bool parentheses = skip_operator("(");
    for (;;) {
      Target one;
      BATON_TRY(one.name, expect_name());
      if (skip_operator(".")) {
        BATON_TRY(one.attribute, expect_name());
      }
      target.several.push_back(std::move(one));
      if (!skip_operator(",")) {
        break;
      }
    }
    if (current().is_operator("[")) {
      return unsupported(line, "an assignment to an item");
    }
    if (parentheses) {
      BATON_TRY_VOID(expect_operator(")"));
    }
    if (target.several.size() == 1) {
      Target one = std::move(target.several[0]);
      return one;
    }
    return target;
  }

  Result<Statement> parse_for(Statement statement) {
    statement.kind = StatementKind::kFor;
    BATON_TRY(statement.target, parse_target());
    if (!skip_name("in")) {
      return unexpected("\"in\"");
    }
    BATON_TRY(statement.expression, parse_tuple(false, false));
    const int names_before = loop_names_;
    if (skip_name("if")) {
      BATON_TRY(statement.condition, parse_expression());
    }
    if (current().is_name("recursive")) {
      return unsupported(current().line, "a recursive loop");
    }
    BATON_TRY_VOID(end_of_tag());
    ++loops_;
    BATON_TRY(statement.body, parse_body({"else", "endfor"}));
    --loops_;
    statement.uses_loop = loop_names_ != names_before;
    const bool otherwise = next().text == "else";
    BATON_TRY_VOID(end_of_tag());
    if (otherwise) {
      BATON_TRY(statement.otherwise, parse_body({"endfor"}));
      next();
      BATON_TRY_VOID(end_of_tag());
    }
    return statement;
  }

  Result<Statement> parse_if(Statement statement) {
    statement.kind = StatementKind::kIf;
    for (;;) {
      Branch branch;
      BATON_TRY(branch.condition, parse_tuple(false, false));
      BATON_TRY_VOID(end_of_tag());
      BATON_TRY(branch.body, parse_body({"elif", "else", "endif"}));
      statement.branches.push_back(std::move(branch));
      const std::string name = next().text;
      if (name == "elif") {
        continue;
      }
      BATON_TRY_VOID(end_of_tag());
      if (name == "else") {
        Branch otherwise;
        BATON_TRY(otherwise.body, parse_body({"endif"}));
        statement.branches.push_back(std::move(otherwise));
        next();
        BATON_TRY_VOID(end_of_tag());
      }
      return statement;
    }
  }

  Result<Statement> parse_set(Statement statement) {
    BATON_TRY(statement.target, parse_target());
    if (skip_operator("=")) {
      statement.kind = StatementKind::kSet;
      BATON_TRY(statement.expression, parse_tuple(true, false));
      BATON_TRY_VOID(end_of_tag());
      return statement;
    }
    if (current().is_operator("|")) {
      return unsupported(statement.line, "a set block with a filter");
    }
    statement.kind = StatementKind::kSetBlock;
    BATON_TRY_VOID(end_of_tag());
    BATON_TRY(statement.body, parse_body({"endset"}));
    next();
    BATON_TRY_VOID(end_of_tag());
    return statement;
  }

  Result<Statement> parse_macro(Statement statement) {
    statement.kind = StatementKind::kMacro;
    BATON_TRY(statement.name, expect_name());
    BATON_TRY_VOID(expect_operator("("));
    while (!current().is_operator(")")) {
      if (!statement.parameters.empty()) {
        BATON_TRY_VOID(expect_operator(","));
      }
      Parameter parameter;
      BATON_TRY(parameter.name, expect_name());
      if (skip_operator("=")) {
        BATON_TRY(parameter.fallback, parse_expression());
      }
      statement.parameters.push_back(std::move(parameter));
    }
    next();
    BATON_TRY_VOID(end_of_tag());
    const int loops = std::exchange(loops_, 0);
    BATON_TRY(statement.body, parse_body({"endmacro"}));
    loops_ = loops;
    next();
    skip_name(statement.name);  // {% endmacro name %}
    BATON_TRY_VOID(end_of_tag());
    return statement;
  }

  int depth_ = 0;
  int loops_ = 0;  // around the tag being read, within its macro
};

}  // namespace

Result<Program> parse_program(std::string_view source) {
  BATON_TRY(std::vector<Token> tokens, tokenize(source));
  return StatementParser(std::move(tokens)).parse();
}

}  // namespace baton::text::jinja
