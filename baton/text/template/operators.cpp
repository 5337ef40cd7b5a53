// Arithmetic and comparison. See operators.h.
#include "baton/text/template/operators.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>

namespace baton::text::jinja {
namespace {

tl::unexpected<Error> overflow(Interpreter& run) {
  return run.type_error("an integer does not fit into 64 bits");
}
tl::unexpected<Error> division_by_zero(Interpreter& run) {
  return run.type_error("division by zero");
}

Result<Value> integer_power(Interpreter& run, std::int64_t base, std::int64_t exponent) {
  if (exponent < 0) {
    if (base == 0) {
      return division_by_zero(run);
    }
    return Value::real(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  }
  std::int64_t result = 1;
  if (base == 0 || base == 1 || base == -1) {
    return Value::integer(exponent == 0 ? 1 : base == -1 && exponent % 2 == 0 ? 1 : base);
  }
  for (; exponent > 0; --exponent) {  // at most 63 times before it overflows
    if (__builtin_mul_overflow(result, base, &result)) {
      return overflow(run);
    }
  }
  return Value::integer(result);
}

// Rounds towards minus infinity; the remainder has the sign of the divisor.
Result<Value> floor_division(Interpreter& run, std::int64_t a, std::int64_t b, bool remainder) {
  if (b == 0) {
    return division_by_zero(run);
  }
  if (b == -1) {
    std::int64_t negated = 0;
    if (remainder) {
      return Value::integer(0);
    }
    return __builtin_sub_overflow(std::int64_t{0}, a, &negated) ? Result<Value>(overflow(run))
                                                                : Value::integer(negated);
  }
  std::int64_t quotient = a / b;
  std::int64_t rest = a % b;
  if (rest != 0 && (rest < 0) != (b < 0)) {
    --quotient;
    rest += b;
  }
  return Value::integer(remainder ? rest : quotient);
}

Result<Value> integer_arithmetic(Interpreter& run, const std::string& op, std::int64_t a,
                                 std::int64_t b) {
  std::int64_t result = 0;
  if (op == "+") {
    return __builtin_add_overflow(a, b, &result) ? Result<Value>(overflow(run))
                                                 : Value::integer(result);
  }
  if (op == "-") {
    return __builtin_sub_overflow(a, b, &result) ? Result<Value>(overflow(run))
                                                 : Value::integer(result);
  }
  if (op == "*") {
    return __builtin_mul_overflow(a, b, &result) ? Result<Value>(overflow(run))
                                                 : Value::integer(result);
  }
  if (op == "/") {
    return b == 0 ? Result<Value>(division_by_zero(run))
                  : Value::real(static_cast<double>(a) / static_cast<double>(b));
  }
  if (op == "**") {
    return integer_power(run, a, b);
  }
  return floor_division(run, a, b, op == "%");
}

Result<Value> real_arithmetic(Interpreter& run, const std::string& op, double a, double b) {
  if (op == "+") {
    return Value::real(a + b);
  }
  if (op == "-") {
    return Value::real(a - b);
  }
  if (op == "*") {
    return Value::real(a * b);
  }
  if (op == "**") {
    return Value::real(std::pow(a, b));
  }
  if (b == 0) {
    return division_by_zero(run);
  }
  if (op == "/") {
    return Value::real(a / b);
  }
  double rest = std::fmod(a, b);
  if (rest != 0 && (rest < 0) != (b < 0)) {
    rest += b;
  }
  return Value::real(op == "%" ? rest : std::round((a - rest) / b));
}

Result<Value> add_sequences(Interpreter& run, const Value& left, const Value& right) {
  List items = left.as_list();
  const List& more = right.as_list();
  items.insert(items.end(), more.begin(), more.end());
  return left.kind() == Value::Kind::kList ? run.make_list(std::move(items))
                                           : run.make_tuple(std::move(items));
}

// "ab" * 3, [x] * 3
Result<Value> repeat(Interpreter& run, const Value& value, std::int64_t times) {
  const std::int64_t count = std::max<std::int64_t>(times, 0);
  if (value.is_string()) {
    const Text& text = value.as_text();
    const auto bytes = static_cast<std::int64_t>(text.bytes().size());
    if (bytes > 0 && count > run.limits().work_bytes / bytes) {
      return run.error(ErrorCode::kPayloadTooLarge, "a repeated string is too long");
    }
    // Before it is built, not after.
    BATON_TRY_VOID(run.charge_bytes(static_cast<std::size_t>(bytes * count)));
    Text result;
    for (std::int64_t i = 0; bytes > 0 && i < count; ++i) {
      result.append(text);
    }
    return Value::text(std::move(result));
  }
  const List& items = value.as_list();
  const auto per_copy = static_cast<std::int64_t>(items.size());
  if (per_copy > 0 && count > run.limits().steps / per_copy) {
    return run.error(ErrorCode::kPayloadTooLarge, "a repeated list is too long");
  }
  BATON_TRY_VOID(run.charge_steps(per_copy * count));
  List result;
  for (std::int64_t i = 0; per_copy > 0 && i < count; ++i) {
    result.insert(result.end(), items.begin(), items.end());
  }
  return value.kind() == Value::Kind::kList ? run.make_list(std::move(result))
                                            : run.make_tuple(std::move(result));
}

Result<bool> contains(Interpreter& run, const Value& container, const Value& item) {
  if (container.is_string()) {
    if (!item.is_string()) {
      return run.type_error(fmt::format("\"in\" a string needs a string, not {}",
                                        item.is_undefined() ? "undefined" : item.type_name()));
    }
    BATON_TRY_VOID(run.charge_bytes(container.as_bytes().size()));
    return container.as_bytes().find(item.as_bytes()) != std::string::npos;
  }
  if (container.is_mapping()) {
    return item.is_string() && container.as_dict().find(item.as_bytes()) != nullptr;
  }
  if (container.is_sequence()) {
    for (const Value& candidate : container.as_list()) {
      BATON_TRY(const bool same, equal(run, candidate, item));
      if (same) {
        return true;
      }
    }
    return false;
  }
  if (container.is_undefined()) {
    return false;
  }
  return run.type_error(fmt::format("\"in\" a {}", container.type_name()));
}

Result<bool> equal_dicts(Interpreter& run, const Dict& left, const Dict& right) {
  if (left.count() != right.count()) {
    return false;
  }
  for (const auto& [key, value] : left.entries()) {
    const Value* other = right.find(key.bytes());
    if (other == nullptr) {
      return false;
    }
    BATON_TRY(const bool same, equal(run, value, *other));
    if (!same) {
      return false;
    }
  }
  return true;
}

}  // namespace

tl::unexpected<Error> undefined_error(Interpreter& run, const Value& value) {
  return run.type_error(value.undefined_name().empty()
                            ? "a value is undefined"
                            : fmt::format("'{}' is undefined", value.undefined_name()));
}

Result<Value> binary(Interpreter& run, const std::string& op, const Value& left,
                     const Value& right) {
  if (left.is_undefined() || right.is_undefined()) {
    return undefined_error(run, left.is_undefined() ? left : right);
  }
  if (left.is_integer() && right.is_integer()) {
    return integer_arithmetic(run, op, left.as_integer(), right.as_integer());
  }
  if (left.is_number() && right.is_number()) {
    return real_arithmetic(run, op, left.as_real(), right.as_real());
  }
  if (op == "+" && left.is_string() && right.is_string()) {
    Text text = left.as_text();
    text.append(right.as_text());
    return run.make_text(std::move(text));
  }
  if (op == "+" && left.is_sequence() && left.kind() == right.kind()) {
    return add_sequences(run, left, right);
  }
  if (op == "*" && (left.is_string() || left.is_sequence()) && right.is_integer()) {
    return repeat(run, left, right.as_integer());
  }
  if (op == "*" && left.is_integer() && (right.is_string() || right.is_sequence())) {
    return repeat(run, right, left.as_integer());
  }
  if (op == "%" && left.is_string()) {
    return run.error(ErrorCode::kUnsupported, "formatting with % is not supported");
  }
  return run.type_error(
      fmt::format("\"{}\" of {} and {}", op, left.type_name(), right.type_name()));
}

Result<bool> equal(Interpreter& run, const Value& left, const Value& right) {
  BATON_TRY_VOID(run.charge_steps(1));
  if (left.is_integer() && right.is_integer()) {
    return left.as_integer() == right.as_integer();
  }
  if (left.is_number() && right.is_number()) {
    return left.as_real() == right.as_real();
  }
  if (left.kind() != right.kind()) {
    return false;
  }
  switch (left.kind()) {
    case Value::Kind::kUndefined:
    case Value::Kind::kNone:
      return true;
    case Value::Kind::kString:
      BATON_TRY_VOID(run.charge_bytes(left.as_bytes().size()));
      return left.as_bytes() == right.as_bytes();
    case Value::Kind::kList:
    case Value::Kind::kTuple: {
      const List& a = left.as_list();
      const List& b = right.as_list();
      if (a.size() != b.size()) {
        return false;
      }
      for (std::size_t i = 0; i < a.size(); ++i) {
        BATON_TRY(const bool same, equal(run, a[i], b[i]));
        if (!same) {
          return false;
        }
      }
      return true;
    }
    case Value::Kind::kDict:
      return equal_dicts(run, left.as_dict(), right.as_dict());
    case Value::Kind::kNamespace:
      return &left.as_dict() == &right.as_dict();
    case Value::Kind::kFunction:
      return &left.as_function() == &right.as_function();
    default:
      return false;
  }
}

Result<int> order(Interpreter& run, const Value& left, const Value& right) {
  BATON_TRY_VOID(run.charge_steps(1));
  const auto sign = [](const auto& a, const auto& b) { return a < b ? -1 : (a > b ? 1 : 0); };
  if (left.is_undefined() || right.is_undefined()) {
    return undefined_error(run, left.is_undefined() ? left : right);
  }
  if (left.is_integer() && right.is_integer()) {
    return sign(left.as_integer(), right.as_integer());
  }
  if (left.is_number() && right.is_number()) {
    return sign(left.as_real(), right.as_real());
  }
  if (left.is_string() && right.is_string()) {
    BATON_TRY_VOID(run.charge_bytes(left.as_bytes().size()));
    return sign(left.as_bytes(), right.as_bytes());  // UTF-8 sorts as its code points do
  }
  if (left.is_sequence() && left.kind() == right.kind()) {
    const List& a = left.as_list();
    const List& b = right.as_list();
    for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
      BATON_TRY(const bool same, equal(run, a[i], b[i]));
      if (!same) {
        return order(run, a[i], b[i]);
      }
    }
    return sign(a.size(), b.size());
  }
  return run.type_error(
      fmt::format("{} and {} have no order", left.type_name(), right.type_name()));
}

Result<bool> compare(Interpreter& run, const std::string& op, const Value& left,
                     const Value& right) {
  if (op == "==" || op == "!=") {
    BATON_TRY(const bool same, equal(run, left, right));
    return same == (op == "==");
  }
  if (op == "in" || op == "not in") {
    BATON_TRY(const bool inside, contains(run, right, left));
    return inside == (op == "in");
  }
  if ((left.is_number() && std::isnan(left.as_real())) ||
      (right.is_number() && std::isnan(right.as_real()))) {
    return false;
  }
  BATON_TRY(const int difference, order(run, left, right));
  if (op == "<") {
    return difference < 0;
  }
  if (op == "<=") {
    return difference <= 0;
  }
  return op == ">" ? difference > 0 : difference >= 0;
}

}  // namespace baton::text::jinja
