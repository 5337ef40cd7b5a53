// The table of filters, and those on text and numbers; those on lists are in list_filters.cpp.
#include "baton/text/template/builtins.h"
#include "baton/text/template/list_filters.h"
#include "baton/text/template/operators.h"
#include "baton/text/template/strings.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <unordered_map>

namespace baton::text::jinja {
namespace {

const Value& value_of(const Arguments& arguments) { return arguments.positional[0]; }

Result<Value> trim(Interpreter& run, const Arguments& arguments) {
  BATON_TRY(const List given, bind(run, "trim", arguments, 1, {"chars"}));
  BATON_TRY(const Text text, to_text(run, value_of(arguments)));
  BATON_TRY(Text result, stripped(run, text, given[0], true, true));
  return run.make_text(std::move(result));
}

Result<Value> length_filter(Interpreter& run, const Arguments& arguments) {
  BATON_TRY_VOID(bind(run, "length", arguments, 1, {}));
  BATON_TRY(const std::int64_t result, length(run, value_of(arguments)));
  return Value::integer(result);
}

template <Text (*map)(const Text&)>
Result<Value> mapped_text(Interpreter& run, const Arguments& arguments) {
  BATON_TRY_VOID(bind(run, "this filter", arguments, 1, {}));
  BATON_TRY(const Text text, to_text(run, value_of(arguments)));
  return run.make_text(map(text));
}
Text capitalize(const Text& text) { return capitalized(text, false); }
Text title(const Text& text) { return capitalized(text, true); }
Text same(const Text& text) { return text; }

Result<Value> default_filter(Interpreter& run, const Arguments& arguments) {
  BATON_TRY(const List given, bind(run, "default", arguments, 1, {"default_value", "boolean"}));
  const Value& value = value_of(arguments);
  if (!value.is_undefined() && (value.truthy() || !given[1].truthy())) {
    return value;
  }
  const bool has_default = arguments.positional.size() > 1 || !given[0].is_undefined();
  return has_default ? given[0] : Value::trusted_string("");
}

Result<Value> tojson(Interpreter& run, const Arguments& arguments) {
  BATON_TRY(const List given, bind(run, "tojson", arguments, 1,
                                   {"ensure_ascii", "indent", "separators", "sort_keys"}));
  JsonStyle style;
  style.ascii_only = given[0].truthy();
  style.sort_keys = given[3].truthy();
  if (given[1].is_integer()) {
    constexpr std::int64_t kMaxIndent = 64;
    style.pretty = true;
    style.indent.assign(
        static_cast<std::size_t>(std::clamp<std::int64_t>(given[1].as_integer(), 0, kMaxIndent)),
        ' ');
    style.item_separator = ",";
  } else if (given[1].is_string()) {
    style.pretty = true;
    style.indent = given[1].as_bytes();
    style.item_separator = ",";
  }
  if (given[2].is_sequence()) {
    const List& separators = given[2].as_list();
    if (separators.size() != 2 || !separators[0].is_string() || !separators[1].is_string()) {
      return run.type_error("tojson: separators must be two strings");
    }
    style.item_separator = separators[0].as_bytes();
    style.key_separator = separators[1].as_bytes();
  }
  BATON_TRY(Text text, to_json(run, value_of(arguments), style));
  return Value::text(std::move(text));
}

Result<Value> replace(Interpreter& run, const Arguments& arguments) {
  BATON_TRY(const List given, bind(run, "replace", arguments, 1, {"old", "new", "count"}, 2));
  BATON_TRY(const Text text, to_text(run, value_of(arguments)));
  BATON_TRY(const Text from, to_text(run, given[0]));
  BATON_TRY(const Text to, to_text(run, given[1]));
  const std::int64_t count = given[2].is_integer() ? given[2].as_integer() : -1;
  BATON_TRY(Text result, replaced(run, text, from, to, count));
  return Value::text(std::move(result));
}

// int and float give their default (0) for what they cannot read.
Result<Value> int_filter(Interpreter& run, const Arguments& arguments) {
  BATON_TRY(const List given, bind(run, "int", arguments, 1, {"default", "base"}));
  Value fallback = given[0].is_undefined() ? Value::integer(0) : given[0];
  const Value& value = value_of(arguments);
  if (value.is_integer()) {
    return Value::integer(value.as_integer());
  }
  double real = 0;
  if (value.kind() == Value::Kind::kFloat) {
    real = value.as_real();
  } else if (value.is_string()) {
    BATON_TRY(const Text text, stripped(run, value.as_text(), Value(), true, true));
    const std::string& bytes = text.bytes();
    const char* begin = bytes.data() + (bytes.starts_with('+') ? 1 : 0);
    const char* end = bytes.data() + bytes.size();
    std::int64_t integer = 0;
    const auto parsed = std::from_chars(begin, end, integer);
    if (parsed.ec == std::errc() && parsed.ptr == end) {
      return Value::integer(integer);
    }
    const auto parsed_real = std::from_chars(begin, end, real);
    if (parsed_real.ec != std::errc() || parsed_real.ptr != end) {
      return fallback;
    }
  } else {
    return fallback;
  }
  constexpr double kBound = 9.2e18;
  return std::isfinite(real) && std::fabs(real) < kBound
             ? Value::integer(static_cast<std::int64_t>(real))
             : fallback;
}

Result<Value> float_filter(Interpreter& run, const Arguments& arguments) {
  BATON_TRY(const List given, bind(run, "float", arguments, 1, {"default"}));
  const Value& value = value_of(arguments);
  if (value.is_number()) {
    return Value::real(value.as_real());
  }
  if (value.is_string()) {
    BATON_TRY(const Text text, stripped(run, value.as_text(), Value(), true, true));
    const std::string& bytes = text.bytes();
    double real = 0;
    const auto parsed = std::from_chars(bytes.data(), bytes.data() + bytes.size(), real);
    if (parsed.ec == std::errc() && parsed.ptr == bytes.data() + bytes.size()) {
      return Value::real(real);
    }
  }
  return given[0].is_undefined() ? Value::real(0) : given[0];
}

Result<Value> abs_filter(Interpreter& run, const Arguments& arguments) {
  const Value& value = value_of(arguments);
  if (value.kind() == Value::Kind::kFloat) {
    return Value::real(std::fabs(value.as_real()));
  }
  if (!value.is_integer()) {
    return run.type_error(fmt::format("abs of a {}", value.type_name()));
  }
  return value.as_integer() < 0 ? binary(run, "-", Value::integer(0), value)
                                : Result<Value>(Value::integer(value.as_integer()));
}

// The lines of a text, line breaks left out.
std::vector<Text> lines_of(const Text& text) {
  std::vector<Text> lines;
  const std::string& bytes = text.bytes();
  for (std::size_t begin = 0; begin < bytes.size();) {
    const std::size_t end = std::min(bytes.find('\n', begin), bytes.size());
    lines.push_back(text.slice(begin, end));
    begin = end + 1;
  }
  return lines;
}

Result<Value> indent(Interpreter& run, const Arguments& arguments) {
  BATON_TRY(const List given, bind(run, "indent", arguments, 1, {"width", "first", "blank"}));
  BATON_TRY(Text text, to_text(run, value_of(arguments)));
  std::string margin(4, ' ');
  constexpr std::int64_t kMaxWidth = 1024;
  if (given[0].is_integer()) {
    margin.assign(
        static_cast<std::size_t>(std::clamp<std::int64_t>(given[0].as_integer(), 0, kMaxWidth)),
        ' ');
  } else if (given[0].is_string()) {
    margin = given[0].as_bytes();
  }
  text.append("\n", true);
  Text result;
  bool first = true;
  for (const Text& line : lines_of(text)) {
    BATON_TRY_VOID(run.charge_bytes(margin.size() + line.bytes().size()));
    if (!first) {
      result.append("\n", true);
    }
    const bool wanted = first ? given[1].truthy() : (given[2].truthy() || !line.empty());
    result.append(wanted ? margin : "", true);
    result.append(line);
    first = false;
  }
  return Value::text(std::move(result));
}

Result<Value> round_filter(Interpreter& run, const Arguments& arguments) {
  BATON_TRY(const List given, bind(run, "round", arguments, 1, {"precision", "method"}));
  const Value& value = value_of(arguments);
  if (!value.is_number()) {
    return run.type_error(fmt::format("round of a {}", value.type_name()));
  }
  const std::int64_t precision = given[0].is_integer() ? given[0].as_integer() : 0;
  const std::string way = given[1].is_string() ? given[1].as_bytes() : "common";
  if (precision != 0) {
    return run.error(ErrorCode::kUnsupported, "round with a precision is not supported");
  }
  const double real = value.as_real();
  return Value::real(way == "ceil"    ? std::ceil(real)
                     : way == "floor" ? std::floor(real)
                                      : std::nearbyint(real));  // half to even
}

using Filter = Result<Value> (*)(Interpreter&, const Arguments&);

const std::unordered_map<std::string_view, Filter>& filters() {
  static const std::unordered_map<std::string_view, Filter> table = {
      {"abs", abs_filter},
      {"capitalize", mapped_text<capitalize>},
      {"count", length_filter},
      {"d", default_filter},
      {"default", default_filter},
      {"dictsort", dictsort},
      {"first", first},
      {"float", float_filter},
      {"indent", indent},
      {"int", int_filter},
      {"items", items},
      {"join", join},
      {"last", last},
      {"length", length_filter},
      {"list", list},
      {"lower", mapped_text<lower_case>},
      {"map", map},
      {"max", max},
      {"min", min},
      {"reject", reject},
      {"rejectattr", rejectattr},
      {"replace", replace},
      {"reverse", reverse},
      {"round", round_filter},
      {"safe", mapped_text<same>},
      {"select", select},
      {"selectattr", selectattr},
      {"sort", sort},
      {"string", mapped_text<same>},
      {"sum", sum},
      {"title", mapped_text<title>},
      {"tojson", tojson},
      {"trim", trim},
      {"unique", unique},
      {"upper", mapped_text<upper_case>},
  };
  return table;
}

}  // namespace

bool is_filter(std::string_view name) { return filters().contains(name); }

Result<Value> apply_filter(Interpreter& run, const std::string& name, const Arguments& arguments) {
  const auto found = filters().find(name);
  if (found == filters().end()) {
    return run.error(ErrorCode::kUnsupported,
                     fmt::format("the filter \"{}\" is not supported", name));
  }
  return found->second(run, arguments);
}

}  // namespace baton::text::jinja
