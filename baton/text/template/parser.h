// Tokens to a Program. Recursive descent, with bounds on nesting so that no template can exhaust
// the stack. A tag, filter or test that baton does not know is an error here, at start-up, not in
// the middle of a request.
#pragma once

#include "baton/base/result.h"
#include "baton/text/template/ast.h"
#include "baton/text/template/lexer.h"

#include <string>
#include <string_view>
#include <vector>

namespace baton::text::jinja {

// Levels of an expression, and blocks within blocks. Published templates stay below 30.
inline constexpr int kMaxExpressionHeight = 128;
inline constexpr int kMaxBlockDepth = 64;

// Reads the tokens of expressions; the statement parser stands on it.
class ExpressionParser {
 public:
  explicit ExpressionParser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

 protected:
  using Expression = Result<std::unique_ptr<Expr>>;

  Expression parse_expression(bool with_condition = true);
  // One or several expressions with commas between: a tuple then.
  Expression parse_tuple(bool with_condition, bool explicit_parentheses);
  Expression parse_primary();

  [[nodiscard]] const Token& current() const { return tokens_[position_]; }
  [[nodiscard]] const Token& ahead() const;
  const Token& next() { return tokens_[position_ + 1 < tokens_.size() ? position_++ : position_]; }
  bool skip_operator(std::string_view op);
  bool skip_name(std::string_view name);
  Status expect_operator(std::string_view op);
  Result<std::string> expect_name();
  [[nodiscard]] tl::unexpected<Error> unexpected(std::string_view wanted) const;
  [[nodiscard]] tl::unexpected<Error> unsupported(int line, const std::string& what) const;

  int loop_names_ = 0;  // times that the name `loop` was read

 private:
  using Level = Expression (ExpressionParser::*)();

  std::unique_ptr<Expr> make(ExprKind kind, int line) const;
  Expression finish(std::unique_ptr<Expr> expression) const;  // height, checked
  Expression binary_levels(Level operand, std::initializer_list<std::string_view> operators);
  Expression parse_condition();
  Expression parse_or();
  Expression parse_and();
  Expression parse_not();
  Expression parse_compare();
  Expression parse_sum();
  Expression parse_concat();
  Expression parse_product();
  Expression parse_power();
  Expression parse_unary();
  Expression parse_unary_without_filter();
  Expression parse_literal_or_name();
  Expression parse_list();
  Expression parse_dict();
  Expression parse_postfix(std::unique_ptr<Expr> expression);
  Expression parse_filters(std::unique_ptr<Expr> expression);
  Expression parse_filter(std::unique_ptr<Expr> expression);
  Expression parse_test(std::unique_ptr<Expr> expression);
  Expression parse_attribute(std::unique_ptr<Expr> expression);
  Expression parse_item(std::unique_ptr<Expr> expression);
  Expression parse_call(std::unique_ptr<Expr> expression);
  Status parse_arguments(Expr& call);
  [[nodiscard]] bool at_tuple_end() const;

  std::vector<Token> tokens_;
  std::size_t position_ = 0;
  int depth_ = 0;
};

// Errors: kInvalidArgument (syntax), kUnsupported (a construct baton does not know).
Result<Program> parse_program(std::string_view source);

}  // namespace baton::text::jinja
