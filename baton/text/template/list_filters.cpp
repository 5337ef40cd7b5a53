// See list_filters.h. Results that Jinja yields lazily are lists here: templates cannot tell.
#include "baton/text/template/list_filters.h"

#include "baton/text/template/builtins.h"
#include "baton/text/template/operators.h"
#include "baton/text/template/strings.h"

#include <fmt/format.h>

#include <algorithm>

namespace baton::text::jinja {
namespace {

const Value& value_of(const Arguments& arguments) { return arguments.positional[0]; }

// "a.b.0" of an item, as attribute= arguments name it.
Result<Value> attribute_path(Interpreter& run, Value value, const Value& path) {
  if (path.is_integer()) {
    return item(run, value, path);
  }
  BATON_TRY(const Text* names, text_argument(run, "attribute", path));
  const std::string_view bytes = names->bytes();
  for (std::size_t begin = 0; begin <= bytes.size();) {
    const std::size_t end = std::min(bytes.find('.', begin), bytes.size());
    const std::string name(bytes.substr(begin, end - begin));
    const bool number =
        !name.empty() && name.size() < 10 &&
        std::all_of(name.begin(), name.end(), [](char c) { return c >= '0' && c <= '9'; });
    BATON_TRY(value, item(run, value,
                          number ? Value::integer(std::stoi(name)) : Value::trusted_string(name)));
    begin = end + 1;
  }
  return value;
}

Value folded(const Value& value, bool case_sensitive) {
  return value.is_string() && !case_sensitive ? Value::text(lower_case(value.as_text())) : value;
}

struct Keyed {
  Value key;
  Value value;
};

// Stable merge sort: comparisons may fail, and std::sort must not see a broken order.
Status merge_sort(Interpreter& run, std::vector<Keyed>& values, bool reverse) {
  std::vector<Keyed> merged(values.size());
  for (std::size_t width = 1; width < values.size(); width *= 2) {
    for (std::size_t low = 0; low < values.size(); low += 2 * width) {
      const std::size_t middle = std::min(low + width, values.size());
      const std::size_t high = std::min(low + 2 * width, values.size());
      std::size_t left = low;
      std::size_t right = middle;
      for (std::size_t out = low; out < high; ++out) {
        bool take_left = right >= high;
        if (left < middle && right < high) {
          BATON_TRY(const int difference, order(run, values[left].key, values[right].key));
          take_left = reverse ? difference >= 0 : difference <= 0;
        }
        merged[out] = std::move(values[take_left ? left++ : right++]);
      }
    }
    values.swap(merged);
  }
  return {};
}

Result<Value> best(Interpreter& run, const Arguments& arguments, int sign) {
  BATON_TRY(const List given, bind(run, "min/max", arguments, 1, {"case_sensitive", "attribute"}));
  BATON_TRY(const List all, iterate(run, value_of(arguments)));
  Value best_value = Value::undefined("the least or greatest of nothing");
  Value best_key;
  for (const Value& candidate : all) {
    Value key = candidate;
    if (!given[1].is_undefined()) {
      BATON_TRY(key, attribute_path(run, candidate, given[1]));
    }
    key = folded(key, given[0].truthy());
    int difference = sign;
    if (!best_key.is_undefined()) {
      BATON_TRY(difference, order(run, key, best_key));
    }
    if (difference * sign > 0) {
      best_value = candidate;
      best_key = key;
    }
  }
  return best_value;
}

// select, reject, selectattr, rejectattr: positional[0] the list, then (with an attribute) its
// name, then a test and its arguments; without a test, truth.
Result<Value> chosen(Interpreter& run, const Arguments& arguments, bool by_attribute, bool keep) {
  const std::size_t test_at = by_attribute ? 2 : 1;
  if (arguments.positional.size() < test_at) {
    return run.type_error("selectattr and rejectattr need the name of an attribute");
  }
  std::string test;
  if (arguments.positional.size() > test_at) {
    BATON_TRY(const Text* name, text_argument(run, "test", arguments.positional[test_at]));
    test = name->bytes();
  }
  BATON_TRY(const List all, iterate(run, value_of(arguments)));
  List kept;
  for (const Value& candidate : all) {
    Value subject = candidate;
    if (by_attribute) {
      BATON_TRY(subject, attribute_path(run, candidate, arguments.positional[1]));
    }
    bool holds = subject.truthy();
    if (!test.empty()) {
      Arguments of_test{{subject}, arguments.named};
      of_test.positional.insert(of_test.positional.end(),
                                arguments.positional.begin() + static_cast<long>(test_at) + 1,
                                arguments.positional.end());
      BATON_TRY(holds, apply_test(run, test, of_test));
    }
    if (holds == keep) {
      kept.push_back(candidate);
    }
  }
  return run.make_list(std::move(kept));
}

}  // namespace

Result<Value> first(Interpreter& run, const Arguments& arguments) {
  BATON_TRY(const List all, iterate(run, value_of(arguments)));
  return all.empty() ? Value::undefined("the first of nothing") : all.front();
}

Result<Value> last(Interpreter& run, const Arguments& arguments) {
  BATON_TRY(const List all, iterate(run, value_of(arguments)));
  return all.empty() ? Value::undefined("the last of nothing") : all.back();
}

Result<Value> list(Interpreter& run, const Arguments& arguments) {
  BATON_TRY(List all, iterate(run, value_of(arguments)));
  return run.make_list(std::move(all));
}

Result<Value> items(Interpreter& run, const Arguments& arguments) {
  const Value& value = value_of(arguments);
  List pairs;
  if (value.is_undefined()) {
    return run.make_list(std::move(pairs));
  }
  if (!value.is_mapping()) {
    return run.type_error(fmt::format("items of a {}", value.type_name()));
  }
  for (const auto& [key, item] : value.as_dict().entries()) {
    BATON_TRY(pairs.emplace_back(), run.make_tuple({Value::text(key), item}));
  }
  return run.make_list(std::move(pairs));
}

Result<Value> dictsort(Interpreter& run, const Arguments& arguments) {
  BATON_TRY(const List given,
            bind(run, "dictsort", arguments, 1, {"case_sensitive", "by", "reverse"}));
  const bool by_value = given[1].is_string() && given[1].as_bytes() == "value";
  if (!value_of(arguments).is_mapping()) {
    return run.type_error(fmt::format("dictsort of a {}", value_of(arguments).type_name()));
  }
  std::vector<Keyed> sorted;
  for (const auto& [key, item] : value_of(arguments).as_dict().entries()) {
    BATON_TRY(Value pair, run.make_tuple({Value::text(key), item}));
    sorted.push_back(
        {folded(by_value ? item : Value::text(key), given[0].truthy()), std::move(pair)});
  }
  BATON_TRY_VOID(merge_sort(run, sorted, given[2].truthy()));
  List result;
  for (Keyed& entry : sorted) {
    result.push_back(std::move(entry.value));
  }
  return run.make_list(std::move(result));
}

Result<Value> join(Interpreter& run, const Arguments& arguments) {
  BATON_TRY(const List given, bind(run, "join", arguments, 1, {"d", "attribute"}));
  BATON_TRY(List all, iterate(run, value_of(arguments)));
  if (!given[1].is_undefined()) {
    for (Value& value : all) {
      BATON_TRY(value, attribute_path(run, value, given[1]));
    }
  }
  BATON_TRY(const Text separator, to_text(run, given[0]));
  BATON_TRY(Text text, joined_texts(run, all, separator));
  return Value::text(std::move(text));
}

Result<Value> map(Interpreter& run, const Arguments& arguments) {
  BATON_TRY(List all, iterate(run, value_of(arguments)));
  if (arguments.positional.size() > 1) {  // a filter and its arguments
    BATON_TRY(const Text* name, text_argument(run, "map", arguments.positional[1]));
    for (Value& value : all) {
      Arguments of_filter{{value}, arguments.named};
      of_filter.positional.insert(of_filter.positional.end(), arguments.positional.begin() + 2,
                                  arguments.positional.end());
      BATON_TRY(value, apply_filter(run, name->bytes(), of_filter));
    }
    return run.make_list(std::move(all));
  }
  BATON_TRY(const List given, bind(run, "map", arguments, 1, {"attribute", "default"}));
  if (given[0].is_undefined()) {
    return run.type_error("map needs a filter or an attribute");
  }
  for (Value& value : all) {
    BATON_TRY(value, attribute_path(run, value, given[0]));
    if (value.is_undefined() && !given[1].is_undefined()) {
      value = given[1];
    }
  }
  return run.make_list(std::move(all));
}

Result<Value> max(Interpreter& run, const Arguments& arguments) { return best(run, arguments, 1); }
Result<Value> min(Interpreter& run, const Arguments& arguments) { return best(run, arguments, -1); }

Result<Value> select(Interpreter& run, const Arguments& arguments) {
  return chosen(run, arguments, false, true);
}
Result<Value> reject(Interpreter& run, const Arguments& arguments) {
  return chosen(run, arguments, false, false);
}
Result<Value> selectattr(Interpreter& run, const Arguments& arguments) {
  return chosen(run, arguments, true, true);
}
Result<Value> rejectattr(Interpreter& run, const Arguments& arguments) {
  return chosen(run, arguments, true, false);
}

Result<Value> reverse(Interpreter& run, const Arguments& arguments) {
  const Value& value = value_of(arguments);
  if (value.is_string() || value.is_sequence()) {
    return slice(run, value, Value(), Value(), Value::integer(-1));
  }
  BATON_TRY(List all, iterate(run, value));
  std::reverse(all.begin(), all.end());
  return run.make_list(std::move(all));
}

Result<Value> sort(Interpreter& run, const Arguments& arguments) {
  BATON_TRY(const List given,
            bind(run, "sort", arguments, 1, {"reverse", "case_sensitive", "attribute"}));
  BATON_TRY(const List all, iterate(run, value_of(arguments)));
  std::vector<Keyed> sorted;
  for (const Value& value : all) {
    Value key = value;
    if (!given[2].is_undefined()) {
      BATON_TRY(key, attribute_path(run, value, given[2]));
    }
    sorted.push_back({folded(key, given[1].truthy()), value});
  }
  BATON_TRY_VOID(merge_sort(run, sorted, given[0].truthy()));
  List result;
  for (Keyed& entry : sorted) {
    result.push_back(std::move(entry.value));
  }
  return run.make_list(std::move(result));
}

Result<Value> sum(Interpreter& run, const Arguments& arguments) {
  BATON_TRY(const List given, bind(run, "sum", arguments, 1, {"attribute", "start"}));
  BATON_TRY(const List all, iterate(run, value_of(arguments)));
  Value total = given[1].is_undefined() ? Value::integer(0) : given[1];
  for (const Value& value : all) {
    Value term = value;
    if (!given[0].is_undefined()) {
      BATON_TRY(term, attribute_path(run, value, given[0]));
    }
    BATON_TRY(total, binary(run, "+", total, term));
  }
  return total;
}

// Quadratic in the number of different values; each comparison is charged.
Result<Value> unique(Interpreter& run, const Arguments& arguments) {
  BATON_TRY(const List given, bind(run, "unique", arguments, 1, {"case_sensitive", "attribute"}));
  BATON_TRY(const List all, iterate(run, value_of(arguments)));
  List kept;
  List keys;
  for (const Value& value : all) {
    Value key = value;
    if (!given[1].is_undefined()) {
      BATON_TRY(key, attribute_path(run, value, given[1]));
    }
    key = folded(key, given[0].truthy());
    bool known = false;
    for (const Value& other : keys) {
      BATON_TRY(known, equal(run, key, other));
      if (known) {
        break;
      }
    }
    if (!known) {
      keys.push_back(std::move(key));
      kept.push_back(value);
    }
  }
  return run.make_list(std::move(kept));
}

}  // namespace baton::text::jinja
