// The parser behind GgufFile::open: a cursor over the header in which every read names what it
// wants and is checked against the bytes that are there. Internal to files/.
#pragma once

#include "baton/base/result.h"
#include "baton/files/gguf.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace baton::files {

class GgufParser {
 public:
  static Result<GgufFile> parse(const std::string& path, MappedFile file);

 private:
  GgufParser(const std::string& path, MappedFile file);

  Status parse_all();
  Status parse_start();
  Status parse_metadata();
  Status parse_value(std::string_view key, GgufValue& value);
  Status parse_array(std::string_view key, GgufValue& value);
  Status parse_tensor_info(std::uint64_t index);
  Status check_alignment();
  Status check_split() const;
  Status place_tensors();

  Result<std::uint64_t> read_unsigned(std::size_t bytes, std::string_view what);
  Result<std::string_view> read_string(std::string_view what);
  Result<std::span<const std::byte>> take(std::uint64_t bytes, std::string_view what);
  [[nodiscard]] std::uint64_t left() const { return bytes_.size() - at_; }
  [[nodiscard]] tl::unexpected<Error> malformed(const std::string& what) const;

  GgufFile result_;
  std::span<const std::byte> bytes_;
  std::uint64_t at_ = 0;
  std::uint64_t tensor_count_ = 0;
  std::uint64_t entry_count_ = 0;
  std::uint64_t alignment_ = 32;        // the format's default
  std::vector<std::uint64_t> offsets_;  // of each tensor, from the start of the data
};

// Bytes of one element of a scalar type; 0 for strings and arrays.
std::size_t scalar_bytes(GgufValueType type);

}  // namespace baton::files
