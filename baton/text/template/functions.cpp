// Global functions, and what filters and methods share: binding of arguments, strip, replace, join.
#include "baton/text/template/builtins.h"
#include "baton/text/template/operators.h"
#include "baton/text/template/strings.h"
#include "baton/text/utf8.h"

#include <fmt/format.h>

#include <algorithm>

namespace baton::text::jinja {
namespace {

Result<Value> range(Interpreter& run, const Arguments& arguments) {
  BATON_TRY(const List given, bind(run, "range", arguments, 0, {"start", "stop", "step"}, 1));
  for (const Value& value : given) {
    if (!value.is_undefined() && !value.is_integer()) {
      return run.type_error(fmt::format("range of a {}", value.type_name()));
    }
  }
  const bool one = given[1].is_undefined();
  const std::int64_t start = one ? 0 : given[0].as_integer();
  const std::int64_t stop = one ? given[0].as_integer() : given[1].as_integer();
  const std::int64_t step = given[2].is_undefined() ? 1 : given[2].as_integer();
  if (step == 0) {
    return run.type_error("range with step 0");
  }
  List values;
  for (std::int64_t i = start; step > 0 ? i < stop : i > stop;) {
    if (static_cast<std::int64_t>(values.size()) >= run.limits().range_items) {
      return run.error(ErrorCode::kPayloadTooLarge,
                       fmt::format("a range of more than {} items", run.limits().range_items));
    }
    values.push_back(Value::integer(i));
    if (__builtin_add_overflow(i, step, &i)) {
      break;
    }
  }
  return run.make_list(std::move(values));
}

// dict(a=1) and namespace(a=1), also from a dict.
Result<Dict> dict_of_arguments(Interpreter& run, std::string_view what,
                               const Arguments& arguments) {
  Dict dict;
  if (arguments.positional.size() > 1) {
    return run.type_error(fmt::format("{} takes one dict at most", what));
  }
  if (!arguments.positional.empty()) {
    if (!arguments.positional[0].is_mapping()) {
      return run.error(ErrorCode::kUnsupported, fmt::format("{} of a {} is not supported", what,
                                                            arguments.positional[0].type_name()));
    }
    dict = arguments.positional[0].as_dict();
  }
  for (const auto& [name, value] : arguments.named) {
    dict.set(Text(name, true), value);
  }
  return dict;
}

Result<Value> make_dict(Interpreter& run, const Arguments& arguments) {
  BATON_TRY(Dict dict, dict_of_arguments(run, "dict", arguments));
  return run.make_dict(std::move(dict));
}

Result<Value> make_namespace(Interpreter& run, const Arguments& arguments) {
  BATON_TRY(Dict dict, dict_of_arguments(run, "namespace", arguments));
  return run.make_namespace(std::move(dict));
}

// The template refuses the messages: the client's mistake, in the template's words.
Result<Value> raise_exception(Interpreter& run, const Arguments& arguments) {
  BATON_TRY(const List given, bind(run, "raise_exception", arguments, 0, {"message"}, 1));
  BATON_TRY(const Text message, to_text(run, given[0]));
  return run.error(ErrorCode::kInvalidArgument, message.bytes());
}

}  // namespace

Dict global_functions() {
  Dict functions;
  const auto add = [&functions](const char* name, auto function) {
    functions.set(Text(name, true),
                  Value::function(std::make_shared<const Function>(Function{name, function})));
  };
  add("dict", make_dict);
  add("namespace", make_namespace);
  add("raise_exception", raise_exception);
  add("range", range);
  return functions;
}

Result<List> bind(Interpreter& run, std::string_view what, const Arguments& arguments,
                  std::size_t from, std::initializer_list<std::string_view> names,
                  std::size_t required) {
  List given(names.size());
  const std::size_t positional = arguments.positional.size() - from;
  if (positional > names.size()) {
    return run.type_error(
        fmt::format("{} takes at most {} arguments, {} given", what, names.size(), positional));
  }
  std::copy(arguments.positional.begin() + static_cast<long>(from), arguments.positional.end(),
            given.begin());
  std::size_t present = positional;
  for (const auto& [name, value] : arguments.named) {
    const auto found = std::find(names.begin(), names.end(), name);
    if (found == names.end()) {
      return run.type_error(fmt::format("{} has no argument \"{}\"", what, name));
    }
    given[static_cast<std::size_t>(found - names.begin())] = value;
    ++present;
  }
  if (present < required) {
    return run.type_error(fmt::format("{} needs {} arguments", what, required));
  }
  return given;
}

Result<const Text*> text_argument(Interpreter& run, std::string_view what, const Value& value) {
  if (!value.is_string()) {
    return run.type_error(fmt::format("{}: a string is needed, not {}", what, value.type_name()));
  }
  return &value.as_text();
}

Result<Text> stripped(Interpreter& run, const Text& text, const Value& chars, bool left,
                      bool right) {
  const std::string_view bytes = text.bytes();
  BATON_TRY_VOID(run.charge_bytes(bytes.size()));
  if (chars.is_undefined() || chars.is_none()) {
    const std::size_t begin = left ? leading_white_space(bytes) : 0;
    const std::size_t tail = right ? trailing_white_space(bytes.substr(begin)) : 0;
    return text.slice(begin, bytes.size() - tail);
  }
  BATON_TRY(const Text* set, text_argument(run, "strip", chars));
  BATON_TRY_VOID(run.charge_bytes(set->bytes().size()));
  const auto in_set = [&](std::size_t from, std::size_t to) {
    return set->bytes().find(bytes.substr(from, to - from)) != std::string::npos;
  };
  std::size_t begin = 0;
  std::size_t end = bytes.size();
  while (left && begin < end) {
    const std::size_t next = begin + decode_utf8(bytes, begin).bytes;
    if (!in_set(begin, next)) {
      break;
    }
    BATON_TRY_VOID(run.charge_bytes(set->bytes().size()));
    begin = next;
  }
  while (right && begin < end) {
    const std::size_t last = previous_character(bytes, end);
    if (!in_set(last, end)) {
      break;
    }
    BATON_TRY_VOID(run.charge_bytes(set->bytes().size()));
    end = last;
  }
  return text.slice(begin, end);
}

Result<Text> replaced(Interpreter& run, const Text& text, const Text& from, const Text& to,
                      std::int64_t count) {
  const std::string_view bytes = text.bytes();
  const std::string_view wanted = from.bytes();
  BATON_TRY_VOID(run.charge_bytes(bytes.size()));
  Text result;
  std::size_t done = 0;
  std::size_t search = 0;
  while (count != 0 && search <= bytes.size()) {
    const std::size_t found = bytes.find(wanted, search);
    if (found == std::string_view::npos) {
      break;
    }
    result.append_slice(text, done, found);
    result.append(to);
    BATON_TRY_VOID(run.charge_bytes(to.bytes().size() + 1));
    done = found + wanted.size();
    // An empty string is found before every character and at the end.
    search = !wanted.empty()         ? done
             : found == bytes.size() ? found + 1
                                     : found + decode_utf8(bytes, found).bytes;
    count -= count > 0 ? 1 : 0;
  }
  result.append_slice(text, done, bytes.size());
  return result;
}

Result<Text> joined_texts(Interpreter& run, const List& items, const Text& separator) {
  Text result;
  bool first = true;
  for (const Value& value : items) {
    BATON_TRY(const Text text, to_text(run, value));
    BATON_TRY_VOID(run.charge_bytes(text.bytes().size() + separator.bytes().size()));
    if (!first) {
      result.append(separator);
    }
    first = false;
    result.append(text);
  }
  return result;
}

}  // namespace baton::text::jinja
