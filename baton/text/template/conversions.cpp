// Values as text: str(), repr() and JSON. Punctuation counts as the template's text, contents keep
// their marks. Each value and byte is charged, so that shared values cannot multiply unseen.
#include "baton/text/template/operators.h"
#include "baton/text/template/strings.h"

#include <fmt/format.h>

#include <algorithm>

namespace baton::text::jinja {
namespace {

class Writer {
 public:
  explicit Writer(Interpreter& run) : run_(run) {}

  Status repr(const Value& value) {
    BATON_TRY_VOID(run_.charge_steps(1));
    switch (value.kind()) {
      case Value::Kind::kUndefined:
        return put("Undefined");
      case Value::Kind::kNone:
        return put("None");
      case Value::Kind::kBool:
        return put(value.as_integer() != 0 ? "True" : "False");
      case Value::Kind::kInt:
        return put(fmt::format("{}", value.as_integer()));
      case Value::Kind::kFloat:
        return put(float_repr(value.as_real()));
      case Value::Kind::kString:
        append_repr(out_, value.as_text());
        return run_.charge_bytes(value.as_bytes().size() + 2);
      case Value::Kind::kList:
        return repr_items(value.as_list(), "[", "]");
      case Value::Kind::kTuple:
        return repr_items(value.as_list(), "(", value.as_list().size() == 1 ? ",)" : ")");
      case Value::Kind::kDict:
        return repr_dict(value.as_dict());
      default:
        return run_.error(ErrorCode::kUnsupported,
                          fmt::format("a {} as text is not supported", value.type_name()));
    }
  }

  Status json(const Value& value, const JsonStyle& style, int level) {
    BATON_TRY_VOID(run_.charge_steps(1));
    switch (value.kind()) {
      case Value::Kind::kNone:
        return put("null");
      case Value::Kind::kBool:
        return put(value.as_integer() != 0 ? "true" : "false");
      case Value::Kind::kInt:
        return put(fmt::format("{}", value.as_integer()));
      case Value::Kind::kFloat: {
        const std::string text = float_repr(value.as_real());
        return put(text == "nan"    ? "NaN"
                   : text == "inf"  ? "Infinity"
                   : text == "-inf" ? "-Infinity"
                                    : text);
      }
      case Value::Kind::kString:
        append_json_string(out_, value.as_text(), style.ascii_only);
        return run_.charge_bytes(value.as_bytes().size() + 2);
      case Value::Kind::kList:
      case Value::Kind::kTuple:
        return json_list(value.as_list(), style, level);
      case Value::Kind::kDict:
        return json_dict(value.as_dict(), style, level);
      case Value::Kind::kUndefined:
        return undefined_error(run_, value);
      default:
        return run_.type_error(fmt::format("a {} as JSON", value.type_name()));
    }
  }

  Text take() { return std::move(out_); }

 private:
  Status put(std::string_view text) {
    out_.append(text, true);
    return run_.charge_bytes(text.size());
  }

  Status repr_items(const List& items, std::string_view open, std::string_view close) {
    BATON_TRY_VOID(put(open));
    for (std::size_t i = 0; i < items.size(); ++i) {
      BATON_TRY_VOID(put(i == 0 ? "" : ", "));
      BATON_TRY_VOID(repr(items[i]));
    }
    return put(close);
  }

  Status repr_dict(const Dict& dict) {
    BATON_TRY_VOID(put("{"));
    bool first = true;
    for (const auto& [key, value] : dict.entries()) {
      BATON_TRY_VOID(put(first ? "" : ", "));
      first = false;
      append_repr(out_, key);
      BATON_TRY_VOID(put(": "));
      BATON_TRY_VOID(repr(value));
    }
    return put("}");
  }

  Status json_break(const JsonStyle& style, int level) {
    if (!style.pretty) {
      return {};
    }
    BATON_TRY_VOID(put("\n"));
    for (int i = 0; i < level; ++i) {
      BATON_TRY_VOID(put(style.indent));
    }
    return {};
  }

  Status json_list(const List& items, const JsonStyle& style, int level) {
    if (items.empty()) {
      return put("[]");
    }
    BATON_TRY_VOID(put("["));
    for (std::size_t i = 0; i < items.size(); ++i) {
      BATON_TRY_VOID(put(i == 0 ? "" : style.item_separator));
      BATON_TRY_VOID(json_break(style, level + 1));
      BATON_TRY_VOID(json(items[i], style, level + 1));
    }
    BATON_TRY_VOID(json_break(style, level));
    return put("]");
  }

  Status json_dict(const Dict& dict, const JsonStyle& style, int level) {
    if (dict.count() == 0) {
      return put("{}");
    }
    std::vector<const Dict::Entry*> entries;
    for (const Dict::Entry& entry : dict.entries()) {
      entries.push_back(&entry);
    }
    if (style.sort_keys) {
      std::sort(entries.begin(), entries.end(),
                [](const auto* a, const auto* b) { return a->first.bytes() < b->first.bytes(); });
    }
    BATON_TRY_VOID(put("{"));
    for (std::size_t i = 0; i < entries.size(); ++i) {
      BATON_TRY_VOID(put(i == 0 ? "" : style.item_separator));
      BATON_TRY_VOID(json_break(style, level + 1));
      append_json_string(out_, entries[i]->first, style.ascii_only);
      BATON_TRY_VOID(run_.charge_bytes(entries[i]->first.bytes().size()));
      BATON_TRY_VOID(put(style.key_separator));
      BATON_TRY_VOID(json(entries[i]->second, style, level + 1));
    }
    BATON_TRY_VOID(json_break(style, level));
    return put("}");
  }

  Interpreter& run_;
  Text out_;
};

}  // namespace

Result<Text> to_text(Interpreter& run, const Value& value) {
  if (value.is_string()) {
    return value.as_text();
  }
  if (value.is_undefined()) {
    return Text();
  }
  Writer writer(run);
  BATON_TRY_VOID(writer.repr(value));
  return writer.take();
}

Result<Text> to_json(Interpreter& run, const Value& value, const JsonStyle& style) {
  Writer writer(run);
  BATON_TRY_VOID(writer.json(value, style, 0));
  return writer.take();
}

}  // namespace baton::text::jinja
