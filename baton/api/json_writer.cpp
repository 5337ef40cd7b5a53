#include "baton/api/json_writer.h"

#include "baton/text/utf8.h"

#include <charconv>
#include <cmath>

namespace baton::api {

namespace {

constexpr std::string_view kHex = "0123456789abcdef";

void append_escaped(std::string& out, std::string_view valid) {
  std::size_t copied = 0;  // [copied, at) needs no escape
  for (std::size_t at = 0; at < valid.size(); ++at) {
    const auto byte = static_cast<unsigned char>(valid[at]);
    if (byte >= 0x20 && byte != '"' && byte != '\\') {
      continue;
    }
    out.append(valid.substr(copied, at - copied));
    copied = at + 1;
    switch (byte) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      default:
        out += "\\u00";
        out += kHex[byte >> 4];
        out += kHex[byte & 15];
    }
  }
  out.append(valid.substr(copied));
}

template <class T>
void append_number(std::string& out, T value) {
  char digits[40];
  const auto end = std::to_chars(digits, digits + sizeof(digits), value).ptr;
  out.append(digits, static_cast<std::size_t>(end - digits));
}

}  // namespace

void JsonWriter::separate() {
  if (need_comma_) {
    out_ += ',';
  }
  need_comma_ = true;
}

JsonWriter& JsonWriter::begin_object() {
  separate();
  out_ += '{';
  need_comma_ = false;
  return *this;
}
JsonWriter& JsonWriter::end_object() {
  out_ += '}';
  need_comma_ = true;
  return *this;
}
JsonWriter& JsonWriter::begin_array() {
  separate();
  out_ += '[';
  need_comma_ = false;
  return *this;
}
JsonWriter& JsonWriter::end_array() {
  out_ += ']';
  need_comma_ = true;
  return *this;
}
JsonWriter& JsonWriter::key(std::string_view name) {
  string(name);
  out_ += ':';
  need_comma_ = false;
  return *this;
}

JsonWriter& JsonWriter::string(std::string_view value) {
  separate();
  out_ += '"';
  if (text::is_valid_utf8(value)) {
    append_escaped(out_, value);
  } else {
    append_escaped(out_, text::sanitized_utf8(value));
  }
  out_ += '"';
  return *this;
}
JsonWriter& JsonWriter::integer(std::int64_t value) {
  separate();
  append_number(out_, value);
  return *this;
}
JsonWriter& JsonWriter::unsigned_integer(std::uint64_t value) {
  separate();
  append_number(out_, value);
  return *this;
}
JsonWriter& JsonWriter::real(float value) {
  if (!std::isfinite(value)) {
    return null();
  }
  separate();
  append_number(out_, value);
  return *this;
}
JsonWriter& JsonWriter::boolean(bool value) {
  separate();
  out_ += value ? "true" : "false";
  return *this;
}
JsonWriter& JsonWriter::null() {
  separate();
  out_ += "null";
  return *this;
}

}  // namespace baton::api
