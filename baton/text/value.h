// Values of the template language: what a chat template sees (messages, tools, flags) and what its
// expressions produce. JSON-like, plus undefined, functions and namespaces. Values are immutable
// and cheap to copy (shared), but for namespaces, which only the interpreter changes; strings carry
// provenance (text.h). There are no host objects: a template can reach nothing but such values.
// Build input bottom up: fill a Dict or List, then dict() or list(). Thread: any, once built.
#pragma once

#include "baton/text/text.h"

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

namespace baton::text {

class Value;
using List = std::vector<Value>;
class Dict;
struct Function;  // macro, built-in or bound method; made by the interpreter only

class Value {
 public:
  enum class Kind {
    kUndefined,
    kNone,
    kBool,
    kInt,
    kFloat,
    kString,
    kList,
    kTuple,
    kDict,
    kNamespace,
    kFunction
  };

  Value() = default;                         // undefined
  static Value undefined(std::string name);  // remembers the name for error messages
  static Value none();
  static Value boolean(bool value);
  static Value integer(std::int64_t value);
  static Value real(double value);
  // Text from outside (requests): never becomes control ids.
  static Value string(std::string value);
  // Text of the model file or the template (bos_token, eos_token): may become control ids.
  static Value trusted_string(std::string value);
  static Value text(Text value);
  static Value list(List items = {});
  static Value tuple(List items);
  static Value dict(Dict items);
  static Value name_space(Dict items);
  static Value function(std::shared_ptr<const Function> function);

  [[nodiscard]] Kind kind() const { return kind_; }
  [[nodiscard]] bool is_undefined() const { return kind_ == Kind::kUndefined; }
  [[nodiscard]] bool is_none() const { return kind_ == Kind::kNone; }
  [[nodiscard]] bool is_string() const { return kind_ == Kind::kString; }
  [[nodiscard]] bool is_number() const;    // bool, int or float
  [[nodiscard]] bool is_integer() const;   // bool or int
  [[nodiscard]] bool is_sequence() const;  // list or tuple
  [[nodiscard]] bool is_mapping() const { return kind_ == Kind::kDict; }

  // Each needs the matching kind (checked).
  [[nodiscard]] const Text& as_text() const;
  [[nodiscard]] const std::string& as_bytes() const { return as_text().bytes(); }
  [[nodiscard]] std::int64_t as_integer() const;  // bool or int
  [[nodiscard]] double as_real() const;           // bool, int or float
  [[nodiscard]] const List& as_list() const;      // list or tuple
  [[nodiscard]] const Dict& as_dict() const;      // dict or namespace
  [[nodiscard]] Dict& as_namespace() const;       // shared by all copies of the value
  [[nodiscard]] const Function& as_function() const;
  [[nodiscard]] const std::string& undefined_name() const;

  // Python's truth: empty, zero, none and undefined are false.
  [[nodiscard]] bool truthy() const;
  // Python's type name, for error messages.
  [[nodiscard]] std::string_view type_name() const;
  // Levels of lists and dicts below this value: 0 for a scalar. A namespace counts as a scalar.
  [[nodiscard]] int depth() const { return depth_; }

 private:
  Kind kind_ = Kind::kUndefined;
  int depth_ = 0;
  std::variant<std::monostate, bool, std::int64_t, double, std::shared_ptr<const Text>,
               std::shared_ptr<List>, std::shared_ptr<Dict>, std::shared_ptr<const Function>>
      data_;
};

// Keeps the order of insertion. Keys are strings (the only keys that JSON and templates use).
class Dict {
 public:
  using Entry = std::pair<Text, Value>;
  // Replaces the value when the key is there; the key keeps its place.
  void set(Text key, Value value);
  void set(std::string key, Value value) { set(Text(std::move(key), false), std::move(value)); }
  [[nodiscard]] const Value* find(std::string_view key) const;
  [[nodiscard]] const std::vector<Entry>& entries() const { return entries_; }
  [[nodiscard]] std::size_t count() const { return entries_.size(); }

 private:
  std::vector<Entry> entries_;
  std::unordered_map<std::string, std::size_t> index_;
};

}  // namespace baton::text
