// What the tests of text/ share: the real model's tokenizer, fixtures, JSON to values.
#pragma once

#include "baton/files/gguf.h"
#include "baton/text/gguf_tokenizer.h"
#include "baton/text/tokenizer.h"
#include "baton/text/value.h"

#include <nlohmann/json.hpp>

#include "tests/support/model_files.h"
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace baton::text {

using Json = nlohmann::ordered_json;

using testing::test_model_path;

// Opened once. Throws, which fails the test, when the model is not there.
inline const files::GgufFile& test_model() {
  static const files::GgufFile file = [] {
    auto opened = files::GgufFile::open(test_model_path());
    if (!opened) {
      throw std::runtime_error(opened.error().message + " (run scripts/test, which fetches it)");
    }
    return *std::move(opened);
  }();
  return file;
}

inline const Tokenizer& test_tokenizer() {
  static const Tokenizer tokenizer = [] {
    auto loaded = load_gguf_tokenizer(test_model());
    if (!loaded) {
      throw std::runtime_error(loaded.error().message);
    }
    return *std::move(loaded);
  }();
  return tokenizer;
}

// The lines of tests/fixtures/text/NAME, each a JSON value.
inline std::vector<Json> fixture_lines(const std::string& name) {
  std::ifstream in("tests/fixtures/text/" + name);
  if (!in) {
    throw std::runtime_error("no fixture " + name + " (run from the repository's root)");
  }
  std::vector<Json> lines;
  for (std::string line; std::getline(in, line);) {
    lines.push_back(Json::parse(line));
  }
  return lines;
}

inline std::string from_base64(const std::string& text) {
  const std::string alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  unsigned bits = 0;
  int count = 0;
  for (const char c : text) {
    const std::size_t digit = alphabet.find(c);
    if (digit == std::string::npos) {
      continue;  // padding
    }
    bits = (bits << 6) | static_cast<unsigned>(digit);
    count += 6;
    if (count >= 8) {
      count -= 8;
      out += static_cast<char>((bits >> count) & 0xFF);
    }
  }
  return out;
}

inline Value to_value(const Json& json) {
  if (json.is_null()) {
    return Value::none();
  }
  if (json.is_boolean()) {
    return Value::boolean(json.get<bool>());
  }
  if (json.is_number_integer()) {
    return Value::integer(json.get<std::int64_t>());
  }
  if (json.is_number()) {
    return Value::real(json.get<double>());
  }
  if (json.is_string()) {
    return Value::string(json.get<std::string>());
  }
  if (json.is_array()) {
    List items;
    for (const Json& item : json) {
      items.push_back(to_value(item));
    }
    return Value::list(std::move(items));
  }
  Dict dict;
  for (const auto& [key, item] : json.items()) {
    dict.set(key, to_value(item));
  }
  return Value::dict(std::move(dict));
}

}  // namespace baton::text
