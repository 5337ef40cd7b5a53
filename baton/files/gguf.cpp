#include "baton/files/gguf.h"

#include "baton/files/gguf_parser.h"
#include "baton/files/sha256.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

namespace baton::files {

namespace {

template <class T>
T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

// Empty for a type that is no integer, and for a u64 above int64's range.
std::optional<std::int64_t> integer_at(GgufValueType type, const std::byte* from) {
  switch (type) {
    case GgufValueType::kU8:
      return load<std::uint8_t>(from);
    case GgufValueType::kI8:
      return load<std::int8_t>(from);
    case GgufValueType::kU16:
      return load<std::uint16_t>(from);
    case GgufValueType::kI16:
      return load<std::int16_t>(from);
    case GgufValueType::kU32:
      return load<std::uint32_t>(from);
    case GgufValueType::kI32:
      return load<std::int32_t>(from);
    case GgufValueType::kI64:
      return load<std::int64_t>(from);
    case GgufValueType::kU64: {
      const auto value = load<std::uint64_t>(from);
      if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
        return std::nullopt;
      }
      return static_cast<std::int64_t>(value);
    }
    default:
      return std::nullopt;
  }
}

std::string_view string_at(const std::byte* from) {
  const auto length = load<std::uint64_t>(from);
  return {reinterpret_cast<const char*>(from + 8), length};
}

std::string kind_of(const GgufValue& value) {
  if (value.type != GgufValueType::kArray) {
    return std::string(gguf_value_type_name(value.type));
  }
  return fmt::format("array of {}", gguf_value_type_name(value.element));
}

tl::unexpected<Error> wrong_kind(const std::string& path, std::string_view key,
                                 const GgufValue& value, std::string_view wanted) {
  return fail(
      ErrorCode::kInvalidArgument,
      fmt::format("{}: key '{}' is of type {}, {} is needed", path, key, kind_of(value), wanted),
      path);
}

}  // namespace

std::string_view gguf_value_type_name(GgufValueType type) {
  constexpr std::array<std::string_view, 13> kNames = {"u8",  "i8",  "u16",  "i16",    "u32",
                                                       "i32", "f32", "bool", "string", "array",
                                                       "u64", "i64", "f64"};
  return kNames[static_cast<std::size_t>(type)];
}

Result<GgufFile> GgufFile::open(const std::string& path) {
  BATON_TRY(MappedFile file, MappedFile::open(path));
  return GgufParser::parse(path, std::move(file));
}

Result<GgufFile> GgufFile::from_memory(const std::string& name, MappedFile memory) {
  return GgufParser::parse(name, std::move(memory));
}

std::span<const std::byte> GgufFile::header_bytes() const {
  return file_.bytes().first(data_offset_);
}

const GgufValue* GgufFile::find(std::string_view key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : &found->second;
}

const GgufTensor* GgufFile::find_tensor(std::string_view name) const {
  const auto found = tensor_index_.find(name);
  return found == tensor_index_.end() ? nullptr : &tensors_[found->second];
}

Result<const GgufValue*> GgufFile::need(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) {
    return fail(ErrorCode::kInvalidArgument, fmt::format("{}: key '{}' is missing", path_, key),
                path_);
  }
  return value;
}

Result<std::string_view> GgufFile::string(std::string_view key) const {
  BATON_TRY(const GgufValue* value, need(key));
  if (value->type != GgufValueType::kString) {
    return wrong_kind(path_, key, *value, "string");
  }
  return string_at(value->bytes.data());
}

Result<std::int64_t> GgufFile::integer(std::string_view key) const {
  BATON_TRY(const GgufValue* value, need(key));
  const auto number = integer_at(value->type, value->bytes.data());
  if (!number) {
    return wrong_kind(path_, key, *value, "an integer below 2^63");
  }
  return *number;
}

Result<double> GgufFile::number(std::string_view key) const {
  BATON_TRY(const GgufValue* value, need(key));
  if (value->type == GgufValueType::kF32) {
    return static_cast<double>(load<float>(value->bytes.data()));
  }
  if (value->type == GgufValueType::kF64) {
    return load<double>(value->bytes.data());
  }
  const auto whole = integer_at(value->type, value->bytes.data());
  if (!whole) {
    return wrong_kind(path_, key, *value, "a number");
  }
  return static_cast<double>(*whole);
}

Result<bool> GgufFile::boolean(std::string_view key) const {
  BATON_TRY(const GgufValue* value, need(key));
  if (value->type != GgufValueType::kBool) {
    return wrong_kind(path_, key, *value, "bool");
  }
  return load<std::uint8_t>(value->bytes.data()) != 0;
}

Result<std::vector<std::string_view>> GgufFile::strings(std::string_view key) const {
  BATON_TRY(const GgufValue* value, need(key));
  if (value->type != GgufValueType::kArray || value->element != GgufValueType::kString) {
    return wrong_kind(path_, key, *value, "an array of strings");
  }
  std::vector<std::string_view> strings;
  strings.reserve(value->count);
  const std::byte* at = value->bytes.data();
  for (std::uint64_t i = 0; i < value->count; ++i) {
    strings.push_back(string_at(at));
    at += 8 + strings.back().size();
  }
  return strings;
}

Result<std::vector<std::int64_t>> GgufFile::integers(std::string_view key) const {
  BATON_TRY(const GgufValue* value, need(key));
  std::vector<std::int64_t> integers;
  const std::size_t step = scalar_bytes(value->element);
  if (value->type == GgufValueType::kArray && step > 0) {
    integers.reserve(value->count);
    for (std::uint64_t i = 0; i < value->count; ++i) {
      const auto element = integer_at(value->element, value->bytes.data() + i * step);
      if (!element) {
        return wrong_kind(path_, key, *value, "an array of integers below 2^63");
      }
      integers.push_back(*element);
    }
    return integers;
  }
  return wrong_kind(path_, key, *value, "an array of integers");
}

Result<std::vector<float>> GgufFile::floats(std::string_view key) const {
  BATON_TRY(const GgufValue* value, need(key));
  if (value->type != GgufValueType::kArray || value->element != GgufValueType::kF32) {
    return wrong_kind(path_, key, *value, "an array of f32");
  }
  std::vector<float> floats(value->count);
  if (!floats.empty()) {
    std::memcpy(floats.data(), value->bytes.data(), value->bytes.size());
  }
  return floats;
}

Result<std::int64_t> GgufFile::integer_or(std::string_view key, std::int64_t fallback) const {
  return has(key) ? integer(key) : Result<std::int64_t>(fallback);
}
Result<double> GgufFile::number_or(std::string_view key, double fallback) const {
  return has(key) ? number(key) : Result<double>(fallback);
}
Result<bool> GgufFile::boolean_or(std::string_view key, bool fallback) const {
  return has(key) ? boolean(key) : Result<bool>(fallback);
}
Result<std::string_view> GgufFile::string_or(std::string_view key,
                                             std::string_view fallback) const {
  return has(key) ? string(key) : Result<std::string_view>(fallback);
}

Sha256Digest GgufFile::tokenizer_digest() const {
  std::vector<std::string_view> keys;
  for (const std::string_view key : keys_) {
    if (key.starts_with("tokenizer.")) {
      keys.push_back(key);
    }
  }
  std::ranges::sort(keys);
  Sha256 sha;
  for (const std::string_view key : keys) {
    sha.update(values_.at(key).entry);
  }
  return sha.finish();
}

}  // namespace baton::files
