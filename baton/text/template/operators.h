// What operators and conversions mean: Python's rules as far as templates use them. Numbers are 64
// bits wide and an overflow is an error. Strings keep their marks through every operation.
#pragma once

#include "baton/base/result.h"
#include "baton/text/template/interpreter.h"
#include "baton/text/value.h"

#include <string>
#include <string_view>

namespace baton::text::jinja {

// op: + - * / // % **
Result<Value> binary(Interpreter& run, const std::string& op, const Value& left,
                     const Value& right);
// op: == != < <= > >= in "not in"
Result<bool> compare(Interpreter& run, const std::string& op, const Value& left,
                     const Value& right);
Result<bool> equal(Interpreter& run, const Value& left, const Value& right);
// Negative, zero, positive. Errors: values without an order.
Result<int> order(Interpreter& run, const Value& left, const Value& right);

// str(value); undefined is "".
Result<Text> to_text(Interpreter& run, const Value& value);

struct JsonStyle {
  bool ascii_only = false;
  bool sort_keys = false;
  std::string indent;  // empty: all on one line
  bool pretty = false;
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};
Result<Text> to_json(Interpreter& run, const Value& value, const JsonStyle& style);

// What a for loop over the value sees: items, keys or characters. Undefined: nothing.
Result<List> iterate(Interpreter& run, const Value& value);
// value.name: a method, else an item of that name; undefined when there is neither.
Result<Value> attribute(Interpreter& run, const Value& value, const std::string& name);
// value[key]
Result<Value> item(Interpreter& run, const Value& value, const Value& key);
// value[start:stop:step]; none or undefined: left out.
Result<Value> slice(Interpreter& run, const Value& value, const Value& start, const Value& stop,
                    const Value& step);
Result<std::int64_t> length(Interpreter& run, const Value& value);

// "'x' is undefined", for uses that need a value.
tl::unexpected<Error> undefined_error(Interpreter& run, const Value& value);

}  // namespace baton::text::jinja
