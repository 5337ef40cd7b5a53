// Methods of strings, dicts and lists. Lists and dicts cannot be changed (Hugging Face's sandbox
// forbids it too).
#include "baton/text/template/builtins.h"
#include "baton/text/template/operators.h"
#include "baton/text/template/strings.h"
#include "baton/text/utf8.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

namespace baton::text::jinja {
namespace {

using Method = Result<Value> (*)(Interpreter&, const Value& self, const Arguments&);

template <bool left, bool right>
Result<Value> strip(Interpreter& run, const Value& self, const Arguments& arguments) {
  BATON_TRY(const List given, bind(run, "strip", arguments, 0, {"chars"}));
  BATON_TRY(Text result, stripped(run, self.as_text(), given[0], left, right));
  return Value::text(std::move(result));
}

template <Text (*mapping)(const Text&)>
Result<Value> mapped_text(Interpreter& run, const Value& self, const Arguments& arguments) {
  BATON_TRY_VOID(bind(run, "this method", arguments, 0, {}));
  return run.make_text(mapping(self.as_text()));
}
Text capitalize(const Text& text) { return capitalized(text, false); }
Text title(const Text& text) { return capitalized(text, true); }

// split() without a separator: words between white space, from the left or from the right.
Result<Value> split_words_of(Interpreter& run, const Text& text, std::int64_t limit,
                             bool from_right) {
  const std::string_view bytes = text.bytes();
  List parts;
  std::size_t begin = leading_white_space(bytes);
  std::size_t end = bytes.size() - trailing_white_space(bytes.substr(begin));
  while (begin < end) {
    BATON_TRY_VOID(run.charge_steps(1));
    if (limit-- == 0) {
      parts.push_back(Value::text(text.slice(begin, end)));
      break;
    }
    const std::string_view rest = bytes.substr(begin, end - begin);
    if (from_right) {
      std::size_t word = end;
      while (word > begin) {
        const std::size_t before = previous_character(bytes, word);
        if (is_white_space(decode_utf8(bytes, before).code_point)) {
          break;
        }
        word = before;
      }
      parts.push_back(Value::text(text.slice(word, end)));
      end = word - trailing_white_space(bytes.substr(begin, word - begin));
    } else {
      std::size_t word = 0;
      while (word < rest.size()) {
        const Utf8Step step = decode_utf8(rest, word);
        if (is_white_space(step.code_point)) {
          break;
        }
        word += step.bytes;
      }
      parts.push_back(Value::text(text.slice(begin, begin + word)));
      begin += word;
      begin += leading_white_space(bytes.substr(begin, end - begin));
    }
  }
  if (from_right) {
    std::reverse(parts.begin(), parts.end());
  }
  return run.make_list(std::move(parts));
}

template <bool from_right>
Result<Value> split(Interpreter& run, const Value& self, const Arguments& arguments) {
  BATON_TRY(const List given, bind(run, "split", arguments, 0, {"sep", "maxsplit"}));
  const Text& text = self.as_text();
  const std::string_view bytes = text.bytes();
  BATON_TRY_VOID(run.charge_bytes(bytes.size()));
  std::int64_t limit = given[1].is_integer() ? given[1].as_integer() : -1;
  if (given[0].is_undefined() || given[0].is_none()) {
    return split_words_of(run, text, limit, from_right);
  }
  BATON_TRY(const Text* separator, text_argument(run, "split", given[0]));
  const std::string_view sep = separator->bytes();
  if (sep.empty()) {
    return run.type_error("split with an empty separator");
  }
  List parts;
  std::size_t begin = 0;
  std::size_t end = bytes.size();
  while (limit-- != 0) {
    BATON_TRY_VOID(run.charge_steps(1));
    const std::size_t found = from_right ? bytes.substr(0, end).rfind(sep) : bytes.find(sep, begin);
    if (found == std::string_view::npos) {
      break;
    }
    if (from_right) {
      parts.push_back(Value::text(text.slice(found + sep.size(), end)));
      end = found;
    } else {
      parts.push_back(Value::text(text.slice(begin, found)));
      begin = found + sep.size();
    }
  }
  parts.push_back(Value::text(text.slice(begin, end)));
  if (from_right) {
    std::reverse(parts.begin(), parts.end());
  }
  return run.make_list(std::move(parts));
}

Result<Value> splitlines(Interpreter& run, const Value& self, const Arguments& arguments) {
  BATON_TRY(const List given, bind(run, "splitlines", arguments, 0, {"keepends"}));
  const Text& text = self.as_text();
  const std::string_view bytes = text.bytes();
  BATON_TRY_VOID(run.charge_bytes(bytes.size()));
  const auto ends_line = [](char32_t c) {
    return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 ||
           c == 0x2029;
  };
  List lines;
  std::size_t begin = 0;
  for (std::size_t i = 0; i < bytes.size();) {
    const Utf8Step step = decode_utf8(bytes, i);
    std::size_t next = i + step.bytes;
    if (ends_line(step.code_point)) {
      next += step.code_point == '\r' && next < bytes.size() && bytes[next] == '\n' ? 1 : 0;
      lines.push_back(Value::text(text.slice(begin, given[0].truthy() ? next : i)));
      begin = next;
    }
    i = next;
  }
  if (begin < bytes.size()) {
    lines.push_back(Value::text(text.slice(begin, bytes.size())));
  }
  return run.make_list(std::move(lines));
}

template <bool at_start>
Result<Value> starts_or_ends(Interpreter& run, const Value& self, const Arguments& arguments) {
  BATON_TRY(const List given, bind(run, "startswith/endswith", arguments, 0, {"prefix"}, 1));
  const std::string_view bytes = self.as_bytes();
  const List options = given[0].kind() == Value::Kind::kTuple ? given[0].as_list() : List{given[0]};
  for (const Value& option : options) {
    BATON_TRY(const Text* affix, text_argument(run, "startswith/endswith", option));
    BATON_TRY_VOID(run.charge_bytes(affix->bytes().size()));
    if (at_start ? bytes.starts_with(affix->bytes()) : bytes.ends_with(affix->bytes())) {
      return Value::boolean(true);
    }
  }
  return Value::boolean(false);
}

template <bool at_start>
Result<Value> without(Interpreter& run, const Value& self, const Arguments& arguments) {
  BATON_TRY(const List given, bind(run, "removeprefix/removesuffix", arguments, 0, {"affix"}, 1));
  BATON_TRY(const Text* affix, text_argument(run, "removeprefix/removesuffix", given[0]));
  const Text& text = self.as_text();
  const std::size_t bytes = text.bytes().size();
  const std::size_t cut = affix->bytes().size();
  if (at_start && text.bytes().starts_with(affix->bytes())) {
    return run.make_text(text.slice(cut, bytes));
  }
  if (!at_start && text.bytes().ends_with(affix->bytes())) {
    return run.make_text(text.slice(0, bytes - cut));
  }
  return self;
}

Result<Value> replace(Interpreter& run, const Value& self, const Arguments& arguments) {
  BATON_TRY(const List given, bind(run, "replace", arguments, 0, {"old", "new", "count"}, 2));
  BATON_TRY(const Text* from, text_argument(run, "replace", given[0]));
  BATON_TRY(const Text* to, text_argument(run, "replace", given[1]));
  const std::int64_t count = given[2].is_integer() ? given[2].as_integer() : -1;
  BATON_TRY(Text result, replaced(run, self.as_text(), *from, *to, count));
  return Value::text(std::move(result));
}

// Positions count code points.
template <bool from_right>
Result<Value> find(Interpreter& run, const Value& self, const Arguments& arguments) {
  BATON_TRY(const List given, bind(run, "find", arguments, 0, {"sub"}, 1));
  BATON_TRY(const Text* wanted, text_argument(run, "find", given[0]));
  const std::string_view bytes = self.as_bytes();
  BATON_TRY_VOID(run.charge_bytes(bytes.size()));
  const std::size_t found = from_right ? bytes.rfind(wanted->bytes()) : bytes.find(wanted->bytes());
  return found == std::string_view::npos
             ? Value::integer(-1)
             : Value::integer(static_cast<std::int64_t>(count_code_points(bytes.substr(0, found))));
}

Result<Value> count(Interpreter& run, const Value& self, const Arguments& arguments) {
  BATON_TRY(const List given, bind(run, "count", arguments, 0, {"sub"}, 1));
  if (self.is_sequence()) {
    std::int64_t equal_items = 0;
    for (const Value& value : self.as_list()) {
      BATON_TRY(const bool same, equal(run, value, given[0]));
      equal_items += same ? 1 : 0;
    }
    return Value::integer(equal_items);
  }
  BATON_TRY(const Text* wanted, text_argument(run, "count", given[0]));
  const std::string_view bytes = self.as_bytes();
  BATON_TRY_VOID(run.charge_bytes(bytes.size()));
  if (wanted->empty()) {
    return Value::integer(static_cast<std::int64_t>(count_code_points(bytes)) + 1);
  }
  std::int64_t found = 0;
  for (std::size_t at = bytes.find(wanted->bytes()); at != std::string_view::npos;
       at = bytes.find(wanted->bytes(), at + wanted->bytes().size())) {
    ++found;
  }
  return Value::integer(found);
}

Result<Value> join(Interpreter& run, const Value& self, const Arguments& arguments) {
  BATON_TRY(const List given, bind(run, "join", arguments, 0, {"iterable"}, 1));
  BATON_TRY(const List items, iterate(run, given[0]));
  for (const Value& value : items) {
    BATON_TRY_VOID(text_argument(run, "join", value));
  }
  BATON_TRY(Text text, joined_texts(run, items, self.as_text()));
  return Value::text(std::move(text));
}

Result<Value> isdigit(Interpreter& run, const Value& self, const Arguments& arguments) {
  BATON_TRY_VOID(bind(run, "isdigit", arguments, 0, {}));
  const std::string& bytes = self.as_bytes();
  BATON_TRY_VOID(run.charge_bytes(bytes.size()));
  return Value::boolean(!bytes.empty() && std::all_of(bytes.begin(), bytes.end(),
                                                      [](char c) { return c >= '0' && c <= '9'; }));
}

Result<Value> get(Interpreter& run, const Value& self, const Arguments& arguments) {
  BATON_TRY(const List given, bind(run, "get", arguments, 0, {"key", "default"}, 1));
  const Value* found = given[0].is_string() ? self.as_dict().find(given[0].as_bytes()) : nullptr;
  if (found != nullptr) {
    return *found;
  }
  const bool has_default = arguments.positional.size() > 1 || !arguments.named.empty();
  return has_default ? given[1] : Value::none();
}

template <bool with_keys, bool with_values>
Result<Value> entries(Interpreter& run, const Value& self, const Arguments& arguments) {
  BATON_TRY_VOID(bind(run, "this method", arguments, 0, {}));
  List result;
  for (const auto& [key, value] : self.as_dict().entries()) {
    if (with_keys && with_values) {
      BATON_TRY(result.emplace_back(), run.make_tuple({Value::text(key), value}));
    } else {
      result.push_back(with_keys ? Value::text(key) : value);
    }
  }
  return run.make_list(std::move(result));
}

Result<Value> index(Interpreter& run, const Value& self, const Arguments& arguments) {
  BATON_TRY(const List given, bind(run, "index", arguments, 0, {"value"}, 1));
  const List& items = self.as_list();
  for (std::size_t i = 0; i < items.size(); ++i) {
    BATON_TRY(const bool same, equal(run, items[i], given[0]));
    if (same) {
      return Value::integer(static_cast<std::int64_t>(i));
    }
  }
  return run.type_error("index: the value is not in the list");
}

using Methods = std::unordered_map<std::string_view, Method>;
using Names = std::unordered_set<std::string_view>;

const Methods& string_methods() {
  static const Methods table = {{"capitalize", mapped_text<capitalize>},
                                {"count", count},
                                {"endswith", starts_or_ends<false>},
                                {"find", find<false>},
                                {"isdigit", isdigit},
                                {"join", join},
                                {"lower", mapped_text<lower_case>},
                                {"lstrip", strip<true, false>},
                                {"removeprefix", without<true>},
                                {"removesuffix", without<false>},
                                {"replace", replace},
                                {"rfind", find<true>},
                                {"rsplit", split<true>},
                                {"rstrip", strip<false, true>},
                                {"split", split<false>},
                                {"splitlines", splitlines},
                                {"startswith", starts_or_ends<true>},
                                {"strip", strip<true, true>},
                                {"title", mapped_text<title>},
                                {"upper", mapped_text<upper_case>}};
  return table;
}

const Methods& dict_methods() {
  static const Methods table = {{"get", get},
                                {"items", entries<true, true>},
                                {"keys", entries<true, false>},
                                {"values", entries<false, true>}};
  return table;
}

const Methods& list_methods() {
  static const Methods table = {{"count", count}, {"index", index}};
  return table;
}

// Python has these, baton does not: an error instead of an undefined value.
const Names& missing_string_methods() {
  static const Names names = {
      "casefold", "center",  "encode",       "expandtabs",  "format",    "format_map", "index",
      "isalnum",  "isalpha", "isascii",      "isdecimal",   "islower",   "isnumeric",  "isspace",
      "istitle",  "isupper", "isidentifier", "isprintable", "ljust",     "maketrans",  "partition",
      "rindex",   "rjust",   "rpartition",   "swapcase",    "translate", "zfill"};
  return names;
}
const Names& missing_dict_methods() {
  static const Names names = {"clear",   "copy",       "fromkeys", "pop",
                              "popitem", "setdefault", "update"};
  return names;
}
const Names& missing_list_methods() {
  static const Names names = {"append", "clear",  "copy",    "extend", "insert",
                              "pop",    "remove", "reverse", "sort"};
  return names;
}

}  // namespace

Result<std::optional<Value>> method(Interpreter& run, const Value& object,
                                    const std::string& name) {
  const Methods* methods = nullptr;
  const Names* missing = nullptr;
  if (object.is_string()) {
    methods = &string_methods();
    missing = &missing_string_methods();
  } else if (object.is_mapping()) {
    methods = &dict_methods();
    missing = &missing_dict_methods();
  } else if (object.is_sequence()) {
    methods = &list_methods();
    missing = &missing_list_methods();
  } else {
    return std::optional<Value>();
  }
  if (const auto found = methods->find(name); found != methods->end()) {
    const Method function = found->second;
    const auto bound = [object, function](Interpreter& runner, const Arguments& arguments) {
      return function(runner, object, arguments);
    };
    return std::optional<Value>(
        Value::function(std::make_shared<const Function>(Function{name, bound})));
  }
  if (missing->contains(name)) {
    return run.error(ErrorCode::kUnsupported, fmt::format("the method \"{}\" of a {} is not "
                                                          "supported",
                                                          name, object.type_name()));
  }
  return std::optional<Value>();
}

}  // namespace baton::text::jinja
