// GGUF v2 and v3 files: bytes to a checked description. The file is mapped read-only; every count,
// length and offset is checked against the file's size before it is used, so that a cut or hostile
// file is an error at open and never a signal later. Tensor bytes are not touched by open: a router
// opens the same way for the tokenizer's keys alone. Format: ggml's docs/gguf.md.
// Thread: open on any; a GgufFile is immutable afterwards and may be read by all.
#pragma once

#include "baton/base/result.h"
#include "baton/files/mapped_file.h"
#include "baton/files/sha256.h"
#include "baton/files/tensor_type.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace baton::files {

// Numbers of the format.
enum class GgufValueType : std::uint32_t {
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kF32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kU64 = 10,
  kI64 = 11,
  kF64 = 12,
};
std::string_view gguf_value_type_name(GgufValueType type);

// One metadata value. All views point into the mapping: valid while the GgufFile lives.
struct GgufValue {
  GgufValueType type = GgufValueType::kU8;
  GgufValueType element = GgufValueType::kU8;  // kArray only
  std::uint64_t count = 1;                     // elements of an array, else 1
  // Scalars and arrays of scalars: count little-endian values. Strings: length-prefixed, one after
  // the other.
  std::span<const std::byte> bytes;
  // The whole entry, key included: what digests run over.
  std::span<const std::byte> entry;
};

struct GgufTensor {
  std::string_view name;
  TensorType type = TensorType::kF32;
  // ggml order: dims[0] is the contiguous one (inputs of a linear), dims[1] its rows (outputs).
  std::vector<std::uint64_t> dims;
  std::span<const std::byte> bytes;  // in the mapping; alignment as the file gives it
};

class GgufFile {
 public:
  // Errors: kNotFound (no such file), kIo, kInvalidArgument (cut, malformed: the message names
  // file, key or tensor, bytes needed and bytes there), kUnsupported (tensor type, version,
  // endianness, split file: named).
  static Result<GgufFile> open(const std::string& path);

  // The same bytes from memory; `name` stands for the path in messages. Errors: as open's, less
  // kNotFound and kIo.
  static Result<GgufFile> from_memory(const std::string& name, MappedFile memory);

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::uint64_t file_bytes() const { return file_.bytes().size(); }
  // [0, first tensor byte): magic, counts, metadata and tensor directory.
  [[nodiscard]] std::span<const std::byte> header_bytes() const;

  [[nodiscard]] const GgufValue* find(std::string_view key) const;  // null when absent
  [[nodiscard]] bool has(std::string_view key) const { return find(key) != nullptr; }

  // Errors of all getters: kInvalidArgument naming file and key when the key is absent, of another
  // kind, or (integers) out of range. Integers accept any integer type of the format.
  [[nodiscard]] Result<std::string_view> string(std::string_view key) const;
  [[nodiscard]] Result<std::int64_t> integer(std::string_view key) const;
  [[nodiscard]] Result<double> number(std::string_view key) const;  // floats and integers
  [[nodiscard]] Result<bool> boolean(std::string_view key) const;
  [[nodiscard]] Result<std::vector<std::string_view>> strings(std::string_view key) const;
  [[nodiscard]] Result<std::vector<std::int64_t>> integers(std::string_view key) const;
  [[nodiscard]] Result<std::vector<float>> floats(std::string_view key) const;
  // The same with a default for an absent key; a key of another kind is still an error.
  [[nodiscard]] Result<std::int64_t> integer_or(std::string_view key, std::int64_t fallback) const;
  [[nodiscard]] Result<double> number_or(std::string_view key, double fallback) const;
  [[nodiscard]] Result<bool> boolean_or(std::string_view key, bool fallback) const;
  [[nodiscard]] Result<std::string_view> string_or(std::string_view key,
                                                   std::string_view fallback) const;

  [[nodiscard]] std::span<const GgufTensor> tensors() const { return tensors_; }  // file order
  [[nodiscard]] const GgufTensor* find_tensor(std::string_view name) const;  // null when absent

  // SHA-256 over the tokenizer.* entries in the order of their keys: what a router and its nodes
  // must have in common.
  [[nodiscard]] Sha256Digest tokenizer_digest() const;

  // Tells the system that these bytes (of a tensor) are not needed any more. Best effort.
  void release_pages(std::span<const std::byte> bytes) const { file_.release_pages(bytes); }

 private:
  friend class GgufParser;
  GgufFile() = default;
  [[nodiscard]] Result<const GgufValue*> need(std::string_view key) const;

  std::string path_;
  MappedFile file_;
  std::uint64_t data_offset_ = 0;
  std::vector<std::string_view> keys_;  // file order
  std::unordered_map<std::string_view, GgufValue> values_;
  std::vector<GgufTensor> tensors_;
  std::unordered_map<std::string_view, std::size_t> tensor_index_;
};

}  // namespace baton::files
