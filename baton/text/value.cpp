// See value.h.
#include "baton/text/value.h"

#include "baton/base/check.h"

#include <algorithm>

namespace baton::text {

namespace {
const std::string kNoName;
}

Value Value::undefined(std::string name) {
  Value value;
  value.data_ = std::make_shared<const Text>(std::move(name), false);
  return value;
}
Value Value::none() {
  Value value;
  value.kind_ = Kind::kNone;
  return value;
}
Value Value::boolean(bool boolean) {
  Value value;
  value.kind_ = Kind::kBool;
  value.data_ = boolean;
  return value;
}
Value Value::integer(std::int64_t integer) {
  Value value;
  value.kind_ = Kind::kInt;
  value.data_ = integer;
  return value;
}
Value Value::real(double real) {
  Value value;
  value.kind_ = Kind::kFloat;
  value.data_ = real;
  return value;
}
Value Value::string(std::string bytes) { return text(Text(std::move(bytes), false)); }
Value Value::trusted_string(std::string bytes) { return text(Text(std::move(bytes), true)); }
Value Value::text(Text text) {
  Value value;
  value.kind_ = Kind::kString;
  value.data_ = std::make_shared<const Text>(std::move(text));
  return value;
}
Value Value::list(List items) {
  Value value = tuple(std::move(items));
  value.kind_ = Kind::kList;
  return value;
}
Value Value::tuple(List items) {
  Value value;
  value.kind_ = Kind::kTuple;
  for (const Value& item : items) {
    value.depth_ = std::max(value.depth_, item.depth_);
  }
  ++value.depth_;
  value.data_ = std::make_shared<List>(std::move(items));
  return value;
}
Value Value::dict(Dict items) {
  Value value;
  value.kind_ = Kind::kDict;
  for (const auto& [key, item] : items.entries()) {
    value.depth_ = std::max(value.depth_, item.depth_);
  }
  ++value.depth_;
  value.data_ = std::make_shared<Dict>(std::move(items));
  return value;
}
Value Value::name_space(Dict items) {
  Value value;
  value.kind_ = Kind::kNamespace;
  value.data_ = std::make_shared<Dict>(std::move(items));
  return value;
}
Value Value::function(std::shared_ptr<const Function> function) {
  Value value;
  value.kind_ = Kind::kFunction;
  value.data_ = std::move(function);
  return value;
}

bool Value::is_integer() const { return kind_ == Kind::kBool || kind_ == Kind::kInt; }
bool Value::is_number() const { return is_integer() || kind_ == Kind::kFloat; }
bool Value::is_sequence() const { return kind_ == Kind::kList || kind_ == Kind::kTuple; }

const Text& Value::as_text() const {
  BATON_CHECK(is_string(), "{}", type_name());
  return *std::get<std::shared_ptr<const Text>>(data_);
}
std::int64_t Value::as_integer() const {
  BATON_CHECK(is_integer(), "{}", type_name());
  return kind_ == Kind::kBool ? (std::get<bool>(data_) ? 1 : 0) : std::get<std::int64_t>(data_);
}
double Value::as_real() const {
  return kind_ == Kind::kFloat ? std::get<double>(data_) : static_cast<double>(as_integer());
}
const List& Value::as_list() const {
  BATON_CHECK(is_sequence(), "{}", type_name());
  return *std::get<std::shared_ptr<List>>(data_);
}
const Dict& Value::as_dict() const {
  BATON_CHECK(kind_ == Kind::kDict || kind_ == Kind::kNamespace, "{}", type_name());
  return *std::get<std::shared_ptr<Dict>>(data_);
}
Dict& Value::as_namespace() const {
  BATON_CHECK(kind_ == Kind::kNamespace, "{}", type_name());
  return *std::get<std::shared_ptr<Dict>>(data_);
}
const Function& Value::as_function() const {
  BATON_CHECK(kind_ == Kind::kFunction, "{}", type_name());
  return *std::get<std::shared_ptr<const Function>>(data_);
}
const std::string& Value::undefined_name() const {
  const auto* name = std::get_if<std::shared_ptr<const Text>>(&data_);
  return is_undefined() && name != nullptr ? (*name)->bytes() : kNoName;
}

bool Value::truthy() const {
  switch (kind_) {
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBool:
    case Kind::kInt:
      return as_integer() != 0;
    case Kind::kFloat:
      return as_real() != 0.0;
    case Kind::kString:
      return !as_text().empty();
    case Kind::kList:
    case Kind::kTuple:
      return !as_list().empty();
    case Kind::kDict:
      return as_dict().count() != 0;
    case Kind::kNamespace:
    case Kind::kFunction:
      return true;
  }
  return false;
}

std::string_view Value::type_name() const {
  switch (kind_) {
    case Kind::kUndefined:
      return "undefined";
    case Kind::kNone:
      return "NoneType";
    case Kind::kBool:
      return "bool";
    case Kind::kInt:
      return "int";
    case Kind::kFloat:
      return "float";
    case Kind::kString:
      return "str";
    case Kind::kList:
      return "list";
    case Kind::kTuple:
      return "tuple";
    case Kind::kDict:
      return "dict";
    case Kind::kNamespace:
      return "namespace";
    case Kind::kFunction:
      return "function";
  }
  return "?";
}

void Dict::set(Text key, Value value) {
  const auto [found, inserted] = index_.try_emplace(key.bytes(), entries_.size());
  if (inserted) {
    entries_.emplace_back(std::move(key), std::move(value));
  } else {
    entries_[found->second].second = std::move(value);
  }
}

const Value* Dict::find(std::string_view key) const {
  // Small dicts are the rule: no hashing, no temporary string.
  if (entries_.size() <= 8) {
    for (const auto& [name, value] : entries_) {
      if (name.bytes() == key) {
        return &value;
      }
    }
    return nullptr;
  }
  const auto found = index_.find(std::string(key));
  return found == index_.end() ? nullptr : &entries_[found->second].second;
}

}  // namespace baton::text
