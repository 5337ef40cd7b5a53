#include "baton/api/json_fields.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

namespace baton::api {

using simdjson::dom::element_type;

Error wrong(std::string field, const std::string& what) {
  std::string message = field.empty() ? what : field + " " + what;
  return {ErrorCode::kInvalidArgument, std::move(message), std::move(field), 0};
}

Error unsupported(std::string field, const std::string& what) {
  return {ErrorCode::kUnsupported, field + " " + what, field, 0};
}

std::string_view json_type_name(Json value) {
  switch (value.type()) {
    case element_type::ARRAY:
      return "an array";
    case element_type::OBJECT:
      return "an object";
    case element_type::INT64:
    case element_type::UINT64:
    case element_type::DOUBLE:
      return "a number";
    case element_type::STRING:
      return "a string";
    case element_type::BOOL:
      return "a boolean";
    case element_type::NULL_VALUE:
      return "null";
  }
  return "something else";
}

Result<std::int64_t> read_integer(Json value, const std::string& field, std::int64_t least,
                                  std::int64_t most) {
  const auto out_of_range = [&] {
    return fail(wrong(field, fmt::format("must be from {} to {}", least, most)));
  };
  std::int64_t number = 0;
  std::uint64_t large = 0;
  double real = 0;
  if (value.get_int64().get(number) == simdjson::SUCCESS) {
  } else if (value.get_uint64().get(large) == simdjson::SUCCESS) {
    return out_of_range();  // above every int64
  } else if (value.get_double().get(real) == simdjson::SUCCESS && real == std::trunc(real)) {
    if (std::fabs(real) > 9007199254740992.0) {  // 2^53: digits are lost above
      return out_of_range();
    }
    number = static_cast<std::int64_t>(real);
  } else {
    return fail(
        wrong(field, fmt::format("must be an integer, not {}",
                                 value.is_double() ? "a fraction" : json_type_name(value))));
  }
  if (number < least || number > most) {
    return out_of_range();
  }
  return number;
}

Result<double> read_number(Json value, const std::string& field, double least, double most) {
  double number = 0;
  if (value.get_double().get(number) != simdjson::SUCCESS) {
    return fail(wrong(field, fmt::format("must be a number, not {}", json_type_name(value))));
  }
  if (!(number >= least && number <= most)) {
    return fail(wrong(field, fmt::format("must be from {} to {}", least, most)));
  }
  return number;
}

Result<bool> read_bool(Json value, const std::string& field) {
  bool flag = false;
  if (value.get_bool().get(flag) != simdjson::SUCCESS) {
    return fail(wrong(field, fmt::format("must be true or false, not {}", json_type_name(value))));
  }
  return flag;
}

Result<std::string> read_string(Json value, const std::string& field) {
  std::string_view text;
  if (value.get_string().get(text) != simdjson::SUCCESS) {
    return fail(wrong(field, fmt::format("must be a string, not {}", json_type_name(value))));
  }
  return std::string(text);
}

bool asks_for_something(Json value) {
  switch (value.type()) {
    case element_type::ARRAY:
      return value.get_array().value_unsafe().size() > 0;
    case element_type::OBJECT:
      return value.get_object().value_unsafe().size() > 0;
    case element_type::STRING:
      return !value.get_string().value_unsafe().empty();
    case element_type::BOOL:
      return value.get_bool().value_unsafe();
    case element_type::NULL_VALUE:
      return false;
    default:
      return value.get_double().value_unsafe() != 0.0;
  }
}

namespace {

// The end of the string that opens at `open`; text.size() when it never ends.
std::size_t string_end(std::string_view text, std::size_t open) {
  std::size_t at = open + 1;
  while (at < text.size() && text[at] != '"') {
    at += text[at] == '\\' ? 2U : 1U;
  }
  return std::min(at, text.size());
}

bool fits(std::string_view digits) {
  const char* const end = digits.data() + digits.size();
  double real = 0;
  const auto as_real = std::from_chars(digits.data(), end, real);
  if (as_real.ec != std::errc() || as_real.ptr != end) {
    return false;
  }
  if (digits.find_first_of(".eE") != std::string_view::npos) {
    return true;
  }
  std::int64_t number = 0;
  std::uint64_t large = 0;
  return std::from_chars(digits.data(), end, number).ec == std::errc() ||
         std::from_chars(digits.data(), end, large).ec == std::errc();
}

}  // namespace

std::string field_of_bad_number(std::string_view body) {
  constexpr std::string_view kNumber = "+-.0123456789eE";
  std::string field;
  std::string_view last_string;
  int depth = 0;
  for (std::size_t at = 0; at < body.size(); ++at) {
    const char c = body[at];
    if (c == '"') {
      const std::size_t end = string_end(body, at);
      last_string = body.substr(at + 1, end - at - 1);
      at = end;
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if (c == '}' || c == ']') {
      --depth;
    } else if (c == ':' && depth == 1) {
      field.assign(last_string);
    } else if (c == '-' || (c >= '0' && c <= '9')) {
      const std::size_t end = std::min(body.find_first_not_of(kNumber, at), body.size());
      if (!fits(body.substr(at, end - at))) {
        return field;
      }
      at = end - 1;
    }
  }
  return {};
}

}  // namespace baton::api
