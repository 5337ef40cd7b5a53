// Append-only JSON text: no tree, no allocation beyond the output string. Commas are placed by the
// writer. Floats are shortest round-trip digits; NaN and infinities, which JSON lacks, become null.
// Strings must be UTF-8 (invalid parts become U+FFFD). Misuse of nesting is our bug.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace baton::api {

class JsonWriter {
 public:
  explicit JsonWriter(std::string& out) : out_(out) {}

  JsonWriter& begin_object();
  JsonWriter& end_object();
  JsonWriter& begin_array();
  JsonWriter& end_array();
  JsonWriter& key(std::string_view name);

  JsonWriter& string(std::string_view value);
  JsonWriter& integer(std::int64_t value);
  JsonWriter& unsigned_integer(std::uint64_t value);
  JsonWriter& real(float value);
  JsonWriter& boolean(bool value);
  JsonWriter& null();

 private:
  void separate();

  std::string& out_;
  bool need_comma_ = false;
};

}  // namespace baton::api
