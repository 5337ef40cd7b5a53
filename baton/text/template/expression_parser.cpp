// The expression grammar, level by level as in Jinja 3.1's parser.
#include "baton/text/template/builtins.h"
#include "baton/text/template/parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

namespace baton::text::jinja {
namespace {

class DepthGuard {
 public:
  explicit DepthGuard(int& depth) : depth_(depth) { ++depth_; }
  ~DepthGuard() { --depth_; }
  DepthGuard(const DepthGuard&) = delete;
  DepthGuard& operator=(const DepthGuard&) = delete;

 private:
  int& depth_;
};

std::string shown(const Token& token) {
  switch (token.kind) {
    case TokenKind::kVariableEnd:
      return "}}";
    case TokenKind::kBlockEnd:
      return "%}";
    case TokenKind::kEnd:
      return "the end of the template";
    default:
      return fmt::format("\"{}\"", token.text);
  }
}

}  // namespace

const Token& ExpressionParser::ahead() const {
  return tokens_[std::min(position_ + 1, tokens_.size() - 1)];
}

bool ExpressionParser::skip_operator(std::string_view op) {
  const bool there = current().is_operator(op);
  if (there) {
    next();
  }
  return there;
}

bool ExpressionParser::skip_name(std::string_view name) {
  const bool there = current().is_name(name);
  if (there) {
    next();
  }
  return there;
}

Status ExpressionParser::expect_operator(std::string_view op) {
  if (!skip_operator(op)) {
    return unexpected(fmt::format("\"{}\"", op));
  }
  return {};
}

Result<std::string> ExpressionParser::expect_name() {
  if (current().kind != TokenKind::kName) {
    return unexpected("a name");
  }
  return next().text;
}

tl::unexpected<Error> ExpressionParser::unexpected(std::string_view wanted) const {
  return template_error(ErrorCode::kInvalidArgument, current().line,
                        fmt::format("unexpected {}, {} expected", shown(current()), wanted));
}

tl::unexpected<Error> ExpressionParser::unsupported(int line, const std::string& what) const {
  return template_error(ErrorCode::kUnsupported, line, what + " is not supported");
}

std::unique_ptr<Expr> ExpressionParser::make(ExprKind kind, int line) const {
  auto expression = std::make_unique<Expr>();
  expression->kind = kind;
  expression->line = line;
  return expression;
}

ExpressionParser::Expression ExpressionParser::finish(std::unique_ptr<Expr> expression) const {
  int below = 0;
  for (const ExprPtr& argument : expression->arguments) {
    below = std::max(below, argument ? argument->height : 0);
  }
  for (const auto& [name, argument] : expression->named) {
    below = std::max(below, argument->height);
  }
  expression->height = below + 1;
  if (expression->height > kMaxExpressionHeight) {
    return template_error(
        ErrorCode::kUnsupported, expression->line,
        fmt::format("an expression has more than {} levels", kMaxExpressionHeight));
  }
  return expression;
}

ExpressionParser::Expression ExpressionParser::parse_expression(bool with_condition) {
  const DepthGuard guard(depth_);
  if (depth_ > kMaxExpressionHeight) {
    return template_error(
        ErrorCode::kUnsupported, current().line,
        fmt::format("an expression has more than {} levels", kMaxExpressionHeight));
  }
  return with_condition ? parse_condition() : parse_or();
}

ExpressionParser::Expression ExpressionParser::parse_condition() {
  BATON_TRY(auto value, parse_or());
  while (current().is_name("if")) {
    auto condition = make(ExprKind::kCondition, next().line);
    BATON_TRY(auto test, parse_or());
    std::unique_ptr<Expr> otherwise;
    if (skip_name("else")) {
      BATON_TRY(otherwise, parse_expression());
    }
    condition->arguments.push_back(std::move(test));
    condition->arguments.push_back(std::move(value));
    condition->arguments.push_back(std::move(otherwise));
    BATON_TRY(value, finish(std::move(condition)));
  }
  return value;
}

ExpressionParser::Expression ExpressionParser::parse_or() {
  BATON_TRY(auto left, parse_and());
  while (current().is_name("or")) {
    auto expression = make(ExprKind::kOr, next().line);
    BATON_TRY(auto right, parse_and());
    expression->arguments.push_back(std::move(left));
    expression->arguments.push_back(std::move(right));
    BATON_TRY(left, finish(std::move(expression)));
  }
  return left;
}

ExpressionParser::Expression ExpressionParser::parse_and() {
  BATON_TRY(auto left, parse_not());
  while (current().is_name("and")) {
    auto expression = make(ExprKind::kAnd, next().line);
    BATON_TRY(auto right, parse_not());
    expression->arguments.push_back(std::move(left));
    expression->arguments.push_back(std::move(right));
    BATON_TRY(left, finish(std::move(expression)));
  }
  return left;
}

ExpressionParser::Expression ExpressionParser::parse_not() {
  if (!current().is_name("not")) {
    return parse_compare();
  }
  const DepthGuard guard(depth_);
  if (depth_ > kMaxExpressionHeight) {
    return unsupported(current().line, "such a long row of \"not\"");
  }
  auto expression = make(ExprKind::kNot, next().line);
  BATON_TRY(auto operand, parse_not());
  expression->arguments.push_back(std::move(operand));
  return finish(std::move(expression));
}

ExpressionParser::Expression ExpressionParser::parse_compare() {
  BATON_TRY(auto first, parse_sum());
  auto expression = make(ExprKind::kCompare, current().line);
  expression->arguments.push_back(std::move(first));
  for (;;) {
    const Token& token = current();
    std::string op;
    if (token.kind == TokenKind::kOperator &&
        (token.text == "==" || token.text == "!=" || token.text == "<" || token.text == "<=" ||
         token.text == ">" || token.text == ">=")) {
      op = next().text;
    } else if (token.is_name("in")) {
      next();
      op = "in";
    } else if (token.is_name("not") && ahead().is_name("in")) {
      next();
      next();
      op = "not in";
    } else {
      break;
    }
    BATON_TRY(auto operand, parse_sum());
    expression->operators.push_back(std::move(op));
    expression->arguments.push_back(std::move(operand));
  }
  if (expression->operators.empty()) {
    return std::move(expression->arguments[0]);
  }
  return finish(std::move(expression));
}

ExpressionParser::Expression ExpressionParser::binary_levels(
    Level operand, std::initializer_list<std::string_view> operators) {
  BATON_TRY(auto left, (this->*operand)());
  while (current().kind == TokenKind::kOperator &&
         std::find(operators.begin(), operators.end(), current().text) != operators.end()) {
    auto expression = make(ExprKind::kBinary, current().line);
    expression->name = next().text;
    BATON_TRY(auto right, (this->*operand)());
    expression->arguments.push_back(std::move(left));
    expression->arguments.push_back(std::move(right));
    BATON_TRY(left, finish(std::move(expression)));
  }
  return left;
}

ExpressionParser::Expression ExpressionParser::parse_sum() {
  return binary_levels(&ExpressionParser::parse_concat, {"+", "-"});
}

ExpressionParser::Expression ExpressionParser::parse_concat() {
  BATON_TRY(auto first, parse_product());
  if (!current().is_operator("~")) {
    return first;
  }
  auto expression = make(ExprKind::kConcat, current().line);
  expression->arguments.push_back(std::move(first));
  while (skip_operator("~")) {
    BATON_TRY(auto operand, parse_product());
    expression->arguments.push_back(std::move(operand));
  }
  return finish(std::move(expression));
}

ExpressionParser::Expression ExpressionParser::parse_product() {
  return binary_levels(&ExpressionParser::parse_power, {"*", "/", "//", "%"});
}

ExpressionParser::Expression ExpressionParser::parse_power() {
  return binary_levels(&ExpressionParser::parse_unary, {"**"});
}

// A sign binds tighter than a filter: -1|abs is (-1)|abs.
ExpressionParser::Expression ExpressionParser::parse_unary() {
  BATON_TRY(auto expression, parse_unary_without_filter());
  return parse_filters(std::move(expression));
}

ExpressionParser::Expression ExpressionParser::parse_unary_without_filter() {
  const Token& token = current();
  if (!token.is_operator("-") && !token.is_operator("+")) {
    BATON_TRY(auto primary, parse_primary());
    return parse_postfix(std::move(primary));
  }
  const DepthGuard guard(depth_);
  if (depth_ > kMaxExpressionHeight) {
    return unsupported(token.line, "such a long row of signs");
  }
  auto expression = make(token.text == "-" ? ExprKind::kNegate : ExprKind::kPlus, token.line);
  next();
  BATON_TRY(auto operand, parse_unary_without_filter());
  expression->arguments.push_back(std::move(operand));
  BATON_TRY(auto finished, finish(std::move(expression)));
  return parse_postfix(std::move(finished));
}

ExpressionParser::Expression ExpressionParser::parse_primary() {
  if (skip_operator("(")) {
    BATON_TRY(auto inner, parse_tuple(true, true));
    BATON_TRY_VOID(expect_operator(")"));
    return inner;
  }
  if (current().is_operator("[")) {
    return parse_list();
  }
  if (current().is_operator("{")) {
    return parse_dict();
  }
  return parse_literal_or_name();
}

ExpressionParser::Expression ExpressionParser::parse_literal_or_name() {
  const Token& token = current();
  auto expression = make(ExprKind::kConstant, token.line);
  const std::string& text = token.text;
  if (token.kind == TokenKind::kName) {
    if (text == "true" || text == "True" || text == "false" || text == "False") {
      expression->constant = Value::boolean(text == "true" || text == "True");
    } else if (text == "none" || text == "None") {
      expression->constant = Value::none();
    } else {
      expression->kind = ExprKind::kName;
      expression->name = text;
      loop_names_ += text == "loop" ? 1 : 0;
    }
  } else if (token.kind == TokenKind::kString) {
    std::string joined = text;
    for (; ahead().kind == TokenKind::kString; next()) {  // 'a' 'b' is 'ab'
      joined += ahead().text;
    }
    expression->constant = Value::trusted_string(std::move(joined));
  } else if (token.kind == TokenKind::kInteger) {
    std::int64_t value = 0;
    const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
    if (parsed.ec != std::errc() || parsed.ptr != text.data() + text.size()) {
      return unsupported(token.line, fmt::format("the integer {}", text));
    }
    expression->constant = Value::integer(value);
  } else if (token.kind == TokenKind::kFloat) {
    double value = 0;
    std::from_chars(text.data(), text.data() + text.size(), value);
    expression->constant = Value::real(value);
  } else {
    return unexpected("an expression");
  }
  next();
  return expression;
}

bool ExpressionParser::at_tuple_end() const {
  const Token& token = current();
  return token.kind == TokenKind::kVariableEnd || token.kind == TokenKind::kBlockEnd ||
         token.is_operator(")");
}

ExpressionParser::Expression ExpressionParser::parse_tuple(bool with_condition,
                                                           bool explicit_parentheses) {
  auto tuple = make(ExprKind::kTuple, current().line);
  bool is_tuple = false;
  while (!at_tuple_end()) {
    BATON_TRY(auto item, parse_expression(with_condition));
    tuple->arguments.push_back(std::move(item));
    if (!skip_operator(",")) {
      break;
    }
    is_tuple = true;
  }
  if (!is_tuple && tuple->arguments.size() == 1) {
    return std::move(tuple->arguments[0]);
  }
  if (tuple->arguments.empty() && !explicit_parentheses) {
    return unexpected("an expression");
  }
  return finish(std::move(tuple));
}

ExpressionParser::Expression ExpressionParser::parse_list() {
  auto list = make(ExprKind::kList, next().line);
  while (!current().is_operator("]")) {
    if (!list->arguments.empty()) {
      BATON_TRY_VOID(expect_operator(","));
      if (current().is_operator("]")) {
        break;
      }
    }
    BATON_TRY(auto item, parse_expression());
    list->arguments.push_back(std::move(item));
  }
  next();
  return finish(std::move(list));
}

ExpressionParser::Expression ExpressionParser::parse_dict() {
  auto dict = make(ExprKind::kDict, next().line);
  while (!current().is_operator("}")) {
    if (!dict->arguments.empty()) {
      BATON_TRY_VOID(expect_operator(","));
      if (current().is_operator("}")) {
        break;
      }
    }
    BATON_TRY(auto key, parse_expression());
    BATON_TRY_VOID(expect_operator(":"));
    BATON_TRY(auto value, parse_expression());
    dict->arguments.push_back(std::move(key));
    dict->arguments.push_back(std::move(value));
  }
  next();
  return finish(std::move(dict));
}

ExpressionParser::Expression ExpressionParser::parse_postfix(std::unique_ptr<Expr> expression) {
  for (;;) {
    if (current().is_operator(".")) {
      BATON_TRY(expression, parse_attribute(std::move(expression)));
    } else if (current().is_operator("[")) {
      BATON_TRY(expression, parse_item(std::move(expression)));
    } else if (current().is_operator("(")) {
      BATON_TRY(expression, parse_call(std::move(expression)));
    } else {
      return expression;
    }
  }
}

ExpressionParser::Expression ExpressionParser::parse_attribute(std::unique_ptr<Expr> expression) {
  const int line = next().line;
  if (current().kind == TokenKind::kInteger) {  // x.0 is x[0]
    auto item = make(ExprKind::kItem, line);
    BATON_TRY(auto index, parse_literal_or_name());
    item->arguments.push_back(std::move(expression));
    item->arguments.push_back(std::move(index));
    return finish(std::move(item));
  }
  auto attribute = make(ExprKind::kAttribute, line);
  BATON_TRY(attribute->name, expect_name());
  attribute->arguments.push_back(std::move(expression));
  return finish(std::move(attribute));
}

ExpressionParser::Expression ExpressionParser::parse_item(std::unique_ptr<Expr> expression) {
  const int line = next().line;
  auto item = make(ExprKind::kItem, line);
  item->arguments.push_back(std::move(expression));
  std::unique_ptr<Expr> bounds[3];
  std::size_t colons = 0;
  while (!current().is_operator("]")) {
    if (skip_operator(":")) {
      if (++colons > 2) {
        return unexpected("\"]\"");
      }
      continue;
    }
    if (bounds[colons]) {
      return current().is_operator(",") ? unsupported(line, "an index with a comma")
                                        : unexpected("\"]\"");
    }
    BATON_TRY(bounds[colons], parse_expression());
  }
  if (colons == 0 && !bounds[0]) {
    return unexpected("an index");
  }
  next();
  if (colons == 0) {
    item->arguments.push_back(std::move(bounds[0]));
    return finish(std::move(item));
  }
  item->kind = ExprKind::kSlice;
  for (auto& bound : bounds) {
    item->arguments.push_back(std::move(bound));
  }
  return finish(std::move(item));
}

ExpressionParser::Expression ExpressionParser::parse_call(std::unique_ptr<Expr> expression) {
  auto call = make(ExprKind::kCall, current().line);
  call->arguments.push_back(std::move(expression));
  BATON_TRY_VOID(parse_arguments(*call));
  return finish(std::move(call));
}

// "(a, b, name=c)"; current() is the opening parenthesis.
Status ExpressionParser::parse_arguments(Expr& call) {
  const int line = next().line;
  for (bool first = true; !current().is_operator(")"); first = false) {
    if (!first) {
      BATON_TRY_VOID(expect_operator(","));
      if (current().is_operator(")")) {
        break;
      }
    }
    if (current().is_operator("*") || current().is_operator("**")) {
      return unsupported(line, "a call with * or ** arguments");
    }
    if (current().kind == TokenKind::kName && ahead().is_operator("=")) {
      std::string name = next().text;
      next();
      BATON_TRY(auto value, parse_expression());
      call.named.emplace_back(std::move(name), std::move(value));
      continue;
    }
    if (!call.named.empty()) {
      return unexpected("a named argument");
    }
    BATON_TRY(auto value, parse_expression());
    call.arguments.push_back(std::move(value));
  }
  next();
  return {};
}

ExpressionParser::Expression ExpressionParser::parse_filters(std::unique_ptr<Expr> expression) {
  for (;;) {
    if (current().is_operator("|")) {
      BATON_TRY(expression, parse_filter(std::move(expression)));
    } else if (current().is_name("is")) {
      BATON_TRY(expression, parse_test(std::move(expression)));
    } else if (current().is_operator("(")) {
      BATON_TRY(expression, parse_call(std::move(expression)));
    } else {
      return expression;
    }
  }
}

ExpressionParser::Expression ExpressionParser::parse_filter(std::unique_ptr<Expr> expression) {
  auto filter = make(ExprKind::kFilter, next().line);
  BATON_TRY(filter->name, expect_name());
  if (!is_filter(filter->name)) {
    return unsupported(filter->line, fmt::format("the filter \"{}\"", filter->name));
  }
  filter->arguments.push_back(std::move(expression));
  if (current().is_operator("(")) {
    BATON_TRY_VOID(parse_arguments(*filter));
  }
  return finish(std::move(filter));
}

ExpressionParser::Expression ExpressionParser::parse_test(std::unique_ptr<Expr> expression) {
  auto test = make(ExprKind::kTest, next().line);
  const bool negated = skip_name("not");
  BATON_TRY(test->name, expect_name());
  if (!is_test(test->name)) {
    return unsupported(test->line, fmt::format("the test \"{}\"", test->name));
  }
  test->arguments.push_back(std::move(expression));
  const Token& token = current();
  const bool operand =
      token.kind == TokenKind::kString || token.kind == TokenKind::kInteger ||
      token.kind == TokenKind::kFloat || token.is_operator("[") || token.is_operator("{") ||
      (token.kind == TokenKind::kName && token.text != "else" && token.text != "or" &&
       token.text != "and" && token.text != "is" && token.text != "if");
  if (token.is_operator("(")) {
    BATON_TRY_VOID(parse_arguments(*test));
  } else if (operand) {
    BATON_TRY(auto primary, parse_primary());
    BATON_TRY(auto argument, parse_postfix(std::move(primary)));
    test->arguments.push_back(std::move(argument));
  }
  BATON_TRY(auto finished, finish(std::move(test)));
  if (!negated) {
    return finished;
  }
  auto negation = make(ExprKind::kNot, finished->line);
  negation->arguments.push_back(std::move(finished));
  return finish(std::move(negation));
}

}  // namespace baton::text::jinja
