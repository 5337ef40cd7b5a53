// `x is name`: the table of tests.
#include "baton/text/template/builtins.h"
#include "baton/text/template/operators.h"
#include "baton/text/template/strings.h"

#include <fmt/format.h>

#include <cmath>
#include <unordered_map>

namespace baton::text::jinja {
namespace {

using Kind = Value::Kind;
using OneTest = bool (*)(const Value&);

const std::unordered_map<std::string_view, OneTest>& simple_tests() {
  static const std::unordered_map<std::string_view, OneTest> table = {
      {"defined", [](const Value& v) { return !v.is_undefined(); }},
      {"undefined", [](const Value& v) { return v.is_undefined(); }},
      {"none", [](const Value& v) { return v.is_none(); }},
      {"boolean", [](const Value& v) { return v.kind() == Kind::kBool; }},
      {"true", [](const Value& v) { return v.kind() == Kind::kBool && v.truthy(); }},
      {"false", [](const Value& v) { return v.kind() == Kind::kBool && !v.truthy(); }},
      {"integer", [](const Value& v) { return v.kind() == Kind::kInt; }},
      {"float", [](const Value& v) { return v.kind() == Kind::kFloat; }},
      {"number", [](const Value& v) { return v.is_number(); }},
      {"string", [](const Value& v) { return v.is_string(); }},
      {"mapping", [](const Value& v) { return v.is_mapping(); }},
      {"callable", [](const Value& v) { return v.kind() == Kind::kFunction; }},
      // Undefined can be iterated over and has a length.
      {"iterable",
       [](const Value& v) {
         return v.is_string() || v.is_sequence() || v.is_mapping() || v.is_undefined();
       }},
      {"sequence",
       [](const Value& v) {
         return v.is_string() || v.is_sequence() || v.is_mapping() || v.is_undefined();
       }},
  };
  return table;
}

// Tests that are comparisons: their operator.
const std::unordered_map<std::string_view, std::string>& comparisons() {
  static const std::unordered_map<std::string_view, std::string> table = {
      {"eq", "=="}, {"equalto", "=="}, {"==", "=="},      {"ne", "!="},
      {"!=", "!="}, {"lt", "<"},       {"lessthan", "<"}, {"<", "<"},
      {"le", "<="}, {"<=", "<="},      {"gt", ">"},       {"greaterthan", ">"},
      {">", ">"},   {"ge", ">="},      {">=", ">="},      {"in", "in"}};
  return table;
}

Result<bool> divisible(Interpreter& run, const Value& value, std::int64_t by,
                       std::int64_t remainder) {
  BATON_TRY(const Value rest, binary(run, "%", value, Value::integer(by)));
  return rest.as_real() == static_cast<double>(remainder);
}

Result<bool> numeric_or_case_test(Interpreter& run, const std::string& name,
                                  const Arguments& arguments) {
  const Value& value = arguments.positional[0];
  if (name == "upper" || name == "lower") {
    BATON_TRY(const Text text, to_text(run, value));
    const bool cased = upper_case(text).bytes() != lower_case(text).bytes();
    return cased && (name == "upper" ? upper_case(text) : lower_case(text)).bytes() == text.bytes();
  }
  if (!value.is_number()) {
    return value.is_undefined()
               ? Result<bool>(undefined_error(run, value))
               : run.type_error(fmt::format("\"{}\" of a {}", name, value.type_name()));
  }
  if (name == "odd" || name == "even") {
    return divisible(run, value, 2, name == "odd" ? 1 : 0);
  }
  if (arguments.positional.size() != 2 || !arguments.positional[1].is_integer()) {
    return run.type_error("divisibleby needs an integer");
  }
  return divisible(run, value, arguments.positional[1].as_integer(), 0);
}

bool is_other_test(std::string_view name) {
  return name == "odd" || name == "even" || name == "divisibleby" || name == "upper" ||
         name == "lower" || name == "sameas";
}

// Identity: what can be told apart here is kind and value.
Result<bool> same_as(Interpreter& run, const Value& left, const Value& right) {
  return left.kind() == right.kind() ? equal(run, left, right) : Result<bool>(false);
}

}  // namespace

bool is_test(std::string_view name) {
  return simple_tests().contains(name) || comparisons().contains(name) || is_other_test(name);
}

Result<bool> apply_test(Interpreter& run, const std::string& name, const Arguments& arguments) {
  const Value& value = arguments.positional[0];
  if (!arguments.named.empty()) {
    return run.type_error(fmt::format("the test \"{}\" takes no named arguments", name));
  }
  if (const auto simple = simple_tests().find(name); simple != simple_tests().end()) {
    if (arguments.positional.size() != 1) {
      return run.type_error(fmt::format("the test \"{}\" takes no arguments", name));
    }
    return simple->second(value);
  }
  const auto comparison = comparisons().find(name);
  if (comparison == comparisons().end() && !is_other_test(name)) {
    return run.error(ErrorCode::kUnsupported,
                     fmt::format("the test \"{}\" is not supported", name));
  }
  if (comparison == comparisons().end() && name != "sameas") {
    return numeric_or_case_test(run, name, arguments);
  }
  if (arguments.positional.size() != 2) {
    return run.type_error(fmt::format("the test \"{}\" takes one argument", name));
  }
  return name == "sameas" ? same_as(run, value, arguments.positional[1])
                          : compare(run, comparison->second, value, arguments.positional[1]);
}

}  // namespace baton::text::jinja
