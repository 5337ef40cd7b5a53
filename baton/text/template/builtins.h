// Filters, tests, functions and methods of the language, by name. To add one: write it, add it to
// the table of its file.
#pragma once

#include "baton/base/result.h"
#include "baton/text/template/interpreter.h"
#include "baton/text/value.h"

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

namespace baton::text::jinja {

bool is_filter(std::string_view name);
bool is_test(std::string_view name);

// arguments.positional[0] is the value itself.
Result<Value> apply_filter(Interpreter& run, const std::string& name, const Arguments& arguments);
Result<bool> apply_test(Interpreter& run, const std::string& name, const Arguments& arguments);

// A bound method; none when the value's type has no such method, an error when Python's type has
// it but baton does not.
Result<std::optional<Value>> method(Interpreter& run, const Value& object, const std::string& name);
// range, namespace, dict, raise_exception
Dict global_functions();

// The arguments by position of `names`; undefined where not given. Positional ones from `from`.
// Errors: too many, unknown name, fewer than `required`.
Result<List> bind(Interpreter& run, std::string_view what, const Arguments& arguments,
                  std::size_t from, std::initializer_list<std::string_view> names,
                  std::size_t required = 0);
Result<const Text*> text_argument(Interpreter& run, std::string_view what, const Value& value);

// strip() of either end. `chars` undefined or none: white space.
Result<Text> stripped(Interpreter& run, const Text& text, const Value& chars, bool left,
                      bool right);
// Every `from` by `to`, at most `count` times (negative: all).
Result<Text> replaced(Interpreter& run, const Text& text, const Text& from, const Text& to,
                      std::int64_t count);
Result<Text> joined_texts(Interpreter& run, const List& items, const Text& separator);

}  // namespace baton::text::jinja
