// Expressions. See interpreter.h; statements are in statements.cpp.
#include "baton/text/template/interpreter.h"

#include "baton/text/template/builtins.h"
#include "baton/text/template/lexer.h"
#include "baton/text/template/operators.h"

#include <fmt/format.h>

namespace baton::text::jinja {

Interpreter::~Interpreter() {
  for (const Value& space : namespaces_) {
    space.as_namespace() = Dict();
  }
}

Status Interpreter::charge_steps(std::int64_t steps) {
  steps_ += steps;
  if (steps_ > limits_.steps) {
    return error(ErrorCode::kPayloadTooLarge,
                 fmt::format("more than {} steps were needed", limits_.steps));
  }
  return {};
}

Status Interpreter::charge_bytes(std::size_t bytes) {
  work_bytes_ += static_cast<std::int64_t>(bytes);
  if (work_bytes_ > limits_.work_bytes) {
    return error(
        ErrorCode::kPayloadTooLarge,
        fmt::format("strings of more than {} bytes in all were built", limits_.work_bytes));
  }
  return {};
}

tl::unexpected<Error> Interpreter::error(ErrorCode code, const std::string& what) const {
  return template_error(code, line_, what);
}

Result<Value> Interpreter::make_text(Text text) {
  BATON_TRY_VOID(charge_bytes(text.bytes().size()));
  return Value::text(std::move(text));
}

Result<Value> Interpreter::make_tuple(List items) {
  BATON_TRY_VOID(charge_steps(static_cast<std::int64_t>(items.size())));
  Value value = Value::tuple(std::move(items));
  if (value.depth() > limits_.depth) {
    return error(ErrorCode::kPayloadTooLarge,
                 fmt::format("a list of more than {} levels", limits_.depth));
  }
  return value;
}

Result<Value> Interpreter::make_list(List items) {
  BATON_TRY_VOID(charge_steps(static_cast<std::int64_t>(items.size())));
  Value value = Value::list(std::move(items));
  if (value.depth() > limits_.depth) {
    return error(ErrorCode::kPayloadTooLarge,
                 fmt::format("a list of more than {} levels", limits_.depth));
  }
  return value;
}

Result<Value> Interpreter::make_dict(Dict items) {
  BATON_TRY_VOID(charge_steps(static_cast<std::int64_t>(items.count())));
  Value value = Value::dict(std::move(items));
  if (value.depth() > limits_.depth) {
    return error(ErrorCode::kPayloadTooLarge,
                 fmt::format("a dict of more than {} levels", limits_.depth));
  }
  return value;
}

Value Interpreter::make_namespace(Dict items) {
  return namespaces_.emplace_back(Value::name_space(std::move(items)));
}

Result<Value> Interpreter::call(const Value& callee, const Arguments& arguments) {
  if (callee.is_undefined()) {
    return undefined_error(*this, callee);
  }
  if (callee.kind() != Value::Kind::kFunction) {
    return type_error(fmt::format("a {} cannot be called", callee.type_name()));
  }
  return callee.as_function().call(*this, arguments);
}

Value Interpreter::look_up(const std::string& name) const {
  for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
    for (const auto& [variable, value] : *scope) {
      if (variable == name) {
        return value;
      }
    }
  }
  const Value* global = globals_.find(name);
  return global == nullptr ? Value::undefined(name) : *global;
}

Result<Value> Interpreter::evaluate(const Expr& expr) {
  line_ = expr.line;
  BATON_TRY_VOID(charge_steps(1));
  BATON_TRY_VOID(enter());
  Result<Value> result = evaluate_kind(expr);
  --run_depth_;
  return result;
}

Status Interpreter::enter() {
  if (++run_depth_ > kMaxRunDepth) {
    return error(ErrorCode::kPayloadTooLarge,
                 fmt::format("more than {} evaluations within one another", kMaxRunDepth));
  }
  return {};
}

Result<Value> Interpreter::evaluate_kind(const Expr& expr) {
  switch (expr.kind) {
    case ExprKind::kConstant:
      return expr.constant;
    case ExprKind::kName:
      return look_up(expr.name);
    case ExprKind::kList: {
      BATON_TRY(List items, evaluate_all(expr, 0));
      return make_list(std::move(items));
    }
    case ExprKind::kTuple: {
      BATON_TRY(List items, evaluate_all(expr, 0));
      return make_tuple(std::move(items));
    }
    case ExprKind::kDict:
      return evaluate_dict(expr);
    case ExprKind::kAttribute: {
      BATON_TRY(const Value object, evaluate(*expr.arguments[0]));
      line_ = expr.line;
      return attribute(*this, object, expr.name);
    }
    case ExprKind::kItem: {
      BATON_TRY(const Value object, evaluate(*expr.arguments[0]));
      BATON_TRY(const Value key, evaluate(*expr.arguments[1]));
      line_ = expr.line;
      return item(*this, object, key);
    }
    case ExprKind::kSlice:
      return evaluate_slice(expr);
    case ExprKind::kCall: {
      BATON_TRY(const Value callee, evaluate(*expr.arguments[0]));
      BATON_TRY(const Arguments arguments, evaluate_arguments(expr, 1));
      line_ = expr.line;
      return call(callee, arguments);
    }
    case ExprKind::kFilter: {
      BATON_TRY(const Arguments arguments, evaluate_arguments(expr, 0));
      line_ = expr.line;
      return apply_filter(*this, expr.name, arguments);
    }
    case ExprKind::kTest: {
      BATON_TRY(const Arguments arguments, evaluate_arguments(expr, 0));
      line_ = expr.line;
      BATON_TRY(const bool result, apply_test(*this, expr.name, arguments));
      return Value::boolean(result);
    }
    case ExprKind::kNegate:
    case ExprKind::kPlus:
      return evaluate_sign(expr);
    case ExprKind::kNot: {
      BATON_TRY(const Value operand, evaluate(*expr.arguments[0]));
      return Value::boolean(!operand.truthy());
    }
    case ExprKind::kAnd:
    case ExprKind::kOr: {
      BATON_TRY(Value left, evaluate(*expr.arguments[0]));
      return left.truthy() == (expr.kind == ExprKind::kOr) ? Result<Value>(std::move(left))
                                                           : evaluate(*expr.arguments[1]);
    }
    case ExprKind::kBinary: {
      BATON_TRY(const Value left, evaluate(*expr.arguments[0]));
      BATON_TRY(const Value right, evaluate(*expr.arguments[1]));
      line_ = expr.line;
      return binary(*this, expr.name, left, right);
    }
    case ExprKind::kCompare:
      return evaluate_compare(expr);
    case ExprKind::kConcat:
      return evaluate_concat(expr);
    case ExprKind::kCondition: {
      BATON_TRY(const Value condition, evaluate(*expr.arguments[0]));
      if (condition.truthy()) {
        return evaluate(*expr.arguments[1]);
      }
      return expr.arguments[2] ? evaluate(*expr.arguments[2])
                               : Result<Value>(Value::undefined("an if without else"));
    }
  }
  return error(ErrorCode::kInternal, "unknown expression");
}

Result<List> Interpreter::evaluate_all(const Expr& expr, std::size_t from) {
  List values;
  values.reserve(expr.arguments.size() - from);
  for (std::size_t i = from; i < expr.arguments.size(); ++i) {
    BATON_TRY(values.emplace_back(), evaluate(*expr.arguments[i]));
  }
  return values;
}

Result<Arguments> Interpreter::evaluate_arguments(const Expr& expr, std::size_t from) {
  Arguments arguments;
  BATON_TRY(arguments.positional, evaluate_all(expr, from));
  for (const auto& [name, value] : expr.named) {
    BATON_TRY(Value evaluated, evaluate(*value));
    arguments.named.emplace_back(name, std::move(evaluated));
  }
  return arguments;
}

Result<Value> Interpreter::evaluate_compare(const Expr& expr) {
  BATON_TRY(Value left, evaluate(*expr.arguments[0]));
  for (std::size_t i = 0; i < expr.operators.size(); ++i) {
    BATON_TRY(Value right, evaluate(*expr.arguments[i + 1]));
    line_ = expr.line;
    BATON_TRY(const bool holds, compare(*this, expr.operators[i], left, right));
    if (!holds) {
      return Value::boolean(false);
    }
    left = std::move(right);
  }
  return Value::boolean(true);
}

Result<Value> Interpreter::evaluate_concat(const Expr& expr) {
  Text text;
  for (const ExprPtr& argument : expr.arguments) {
    BATON_TRY(const Value value, evaluate(*argument));
    line_ = expr.line;
    BATON_TRY(const Text part, to_text(*this, value));
    BATON_TRY_VOID(charge_bytes(part.bytes().size()));
    text.append(part);
  }
  return make_text(std::move(text));
}

Result<Value> Interpreter::evaluate_dict(const Expr& expr) {
  Dict dict;
  for (std::size_t i = 0; i < expr.arguments.size(); i += 2) {
    BATON_TRY(const Value key, evaluate(*expr.arguments[i]));
    BATON_TRY(Value value, evaluate(*expr.arguments[i + 1]));
    if (!key.is_string()) {
      line_ = expr.line;
      return error(ErrorCode::kUnsupported,
                   fmt::format("a dict key of type {} is not supported", key.type_name()));
    }
    dict.set(key.as_text(), std::move(value));
  }
  return make_dict(std::move(dict));
}

Result<Value> Interpreter::evaluate_slice(const Expr& expr) {
  BATON_TRY(const Value object, evaluate(*expr.arguments[0]));
  Value bounds[3];
  for (std::size_t i = 0; i < 3; ++i) {
    if (expr.arguments[i + 1]) {
      BATON_TRY(bounds[i], evaluate(*expr.arguments[i + 1]));
    }
  }
  line_ = expr.line;
  return slice(*this, object, bounds[0], bounds[1], bounds[2]);
}

Result<Value> Interpreter::evaluate_sign(const Expr& expr) {
  BATON_TRY(const Value operand, evaluate(*expr.arguments[0]));
  line_ = expr.line;
  if (operand.is_undefined()) {
    return undefined_error(*this, operand);
  }
  if (!operand.is_number()) {
    return type_error(fmt::format("a sign before a {}", operand.type_name()));
  }
  // 0 - x and 0 + x differ from -x and +x only for floats' signed zeros.
  if (operand.kind() == Value::Kind::kFloat) {
    return Value::real(expr.kind == ExprKind::kNegate ? -operand.as_real() : operand.as_real());
  }
  return binary(*this, expr.kind == ExprKind::kNegate ? "-" : "+", Value::integer(0), operand);
}

}  // namespace baton::text::jinja
