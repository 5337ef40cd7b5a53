// Iteration, attributes, items and slices. Strings are sequences of code points.
#include "baton/text/template/builtins.h"
#include "baton/text/template/operators.h"
#include "baton/text/utf8.h"

#include <fmt/format.h>

#include <algorithm>

namespace baton::text::jinja {
namespace {

// Byte offsets of the code points, and the end.
std::vector<std::size_t> offsets_of(std::string_view bytes) {
  std::vector<std::size_t> offsets;
  for (std::size_t i = 0; i < bytes.size(); i += decode_utf8(bytes, i).bytes) {
    offsets.push_back(i);
  }
  offsets.push_back(bytes.size());
  return offsets;
}

Result<Value> character(Interpreter& run, const Text& text, std::int64_t index) {
  BATON_TRY_VOID(run.charge_bytes(text.bytes().size()));
  const std::vector<std::size_t> offsets = offsets_of(text.bytes());
  const auto count = static_cast<std::int64_t>(offsets.size()) - 1;
  const std::int64_t at = index < 0 ? index + count : index;
  if (at < 0 || at >= count) {
    return Value::undefined(fmt::format("str[{}]", index));
  }
  const auto i = static_cast<std::size_t>(at);
  return Value::text(text.slice(offsets[i], offsets[i + 1]));
}

// The indices that a slice of `count` things takes, as Python's slice.indices().
Result<std::vector<std::size_t>> slice_indices(Interpreter& run, std::int64_t count,
                                               const Value& start, const Value& stop,
                                               const Value& step) {
  const auto given = [](const Value& value) { return !value.is_undefined() && !value.is_none(); };
  for (const Value* bound : {&start, &stop, &step}) {
    if (given(*bound) && !bound->is_integer()) {
      return run.type_error(fmt::format("a slice with a {}", bound->type_name()));
    }
  }
  const std::int64_t by = given(step) ? step.as_integer() : 1;
  if (by == 0) {
    return run.type_error("a slice with step 0");
  }
  const std::int64_t low = by < 0 ? -1 : 0;
  const std::int64_t high = by < 0 ? count - 1 : count;
  const auto resolve = [&](const Value& bound, std::int64_t fallback) {
    if (!given(bound)) {
      return fallback;
    }
    const std::int64_t value = bound.as_integer();
    return value < 0 ? std::max(value + count, low) : std::min(value, high);
  };
  std::int64_t i = resolve(start, by < 0 ? high : low);
  const std::int64_t end = resolve(stop, by < 0 ? low : high);
  std::vector<std::size_t> indices;
  while (by > 0 ? i < end : i > end) {
    indices.push_back(static_cast<std::size_t>(i));
    if (__builtin_add_overflow(i, by, &i)) {
      break;
    }
  }
  BATON_TRY_VOID(run.charge_steps(static_cast<std::int64_t>(indices.size())));
  return indices;
}

}  // namespace

Result<List> iterate(Interpreter& run, const Value& value) {
  List items;
  switch (value.kind()) {
    case Value::Kind::kUndefined:
      return items;
    case Value::Kind::kList:
    case Value::Kind::kTuple:
      BATON_TRY_VOID(run.charge_steps(static_cast<std::int64_t>(value.as_list().size())));
      return value.as_list();
    case Value::Kind::kDict:
      BATON_TRY_VOID(run.charge_steps(static_cast<std::int64_t>(value.as_dict().count())));
      for (const auto& [key, item] : value.as_dict().entries()) {
        items.push_back(Value::text(key));
      }
      return items;
    case Value::Kind::kString: {
      const Text& text = value.as_text();
      BATON_TRY_VOID(run.charge_steps(static_cast<std::int64_t>(text.bytes().size())));
      const std::vector<std::size_t> offsets = offsets_of(text.bytes());
      for (std::size_t i = 0; i + 1 < offsets.size(); ++i) {
        items.push_back(Value::text(text.slice(offsets[i], offsets[i + 1])));
      }
      return items;
    }
    default:
      return run.type_error(fmt::format("a {} cannot be iterated over", value.type_name()));
  }
}

Result<std::int64_t> length(Interpreter& run, const Value& value) {
  switch (value.kind()) {
    case Value::Kind::kUndefined:
      return 0;
    case Value::Kind::kString:
      BATON_TRY_VOID(run.charge_bytes(value.as_bytes().size()));
      return static_cast<std::int64_t>(count_code_points(value.as_bytes()));
    case Value::Kind::kList:
    case Value::Kind::kTuple:
      return static_cast<std::int64_t>(value.as_list().size());
    case Value::Kind::kDict:
      return static_cast<std::int64_t>(value.as_dict().count());
    default:
      return run.type_error(fmt::format("a {} has no length", value.type_name()));
  }
}

Result<Value> attribute(Interpreter& run, const Value& value, const std::string& name) {
  if (value.is_undefined()) {
    return undefined_error(run, value);
  }
  BATON_TRY(const std::optional<Value> bound, method(run, value, name));
  if (bound) {
    return *bound;
  }
  if (value.is_mapping() || value.kind() == Value::Kind::kNamespace) {
    const Value* found = value.as_dict().find(name);
    return found != nullptr ? *found : Value::undefined(name);
  }
  return Value::undefined(name);
}

Result<Value> item(Interpreter& run, const Value& value, const Value& key) {
  if (value.is_undefined()) {
    return undefined_error(run, value);
  }
  if (value.is_mapping()) {
    if (!key.is_string()) {
      return Value::undefined("dict item");
    }
    const Value* found = value.as_dict().find(key.as_bytes());
    if (found != nullptr) {
      return *found;
    }
    BATON_TRY(const std::optional<Value> bound, method(run, value, key.as_bytes()));
    return bound ? *bound : Value::undefined(key.as_bytes());
  }
  if (key.is_integer() && value.is_sequence()) {
    const List& items = value.as_list();
    const auto count = static_cast<std::int64_t>(items.size());
    const std::int64_t index = key.as_integer();
    const std::int64_t at = index < 0 ? index + count : index;
    return at < 0 || at >= count ? Value::undefined(fmt::format("list[{}]", index))
                                 : items[static_cast<std::size_t>(at)];
  }
  if (key.is_integer() && value.is_string()) {
    return character(run, value.as_text(), key.as_integer());
  }
  if (key.is_string()) {
    return attribute(run, value, key.as_bytes());
  }
  return Value::undefined(fmt::format("{} item", value.type_name()));
}

Result<Value> slice(Interpreter& run, const Value& value, const Value& start, const Value& stop,
                    const Value& step) {
  if (value.is_undefined()) {
    return undefined_error(run, value);
  }
  if (value.is_string()) {
    const Text& text = value.as_text();
    BATON_TRY_VOID(run.charge_bytes(text.bytes().size()));
    const std::vector<std::size_t> offsets = offsets_of(text.bytes());
    BATON_TRY(const auto indices,
              slice_indices(run, static_cast<std::int64_t>(offsets.size()) - 1, start, stop, step));
    Text result;
    for (const std::size_t i : indices) {
      result.append_slice(text, offsets[i], offsets[i + 1]);
    }
    return run.make_text(std::move(result));
  }
  if (!value.is_sequence()) {
    return run.type_error(fmt::format("a slice of a {}", value.type_name()));
  }
  const List& items = value.as_list();
  BATON_TRY(const auto indices,
            slice_indices(run, static_cast<std::int64_t>(items.size()), start, stop, step));
  List result;
  for (const std::size_t i : indices) {
    result.push_back(items[i]);
  }
  return value.kind() == Value::Kind::kList ? run.make_list(std::move(result))
                                            : run.make_tuple(std::move(result));
}

}  // namespace baton::text::jinja
