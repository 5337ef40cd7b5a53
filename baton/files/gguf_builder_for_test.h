// Builds GGUF bytes for tests, good or damaged. Test code only.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

namespace baton::files {

class GgufBuilder {
 public:
  std::uint32_t version = 3;
  std::uint64_t alignment = 32;

  void u32(std::string_view key, std::uint32_t value) { entry(key, 4), put(metadata_, value); }
  void f32(std::string_view key, float value) { entry(key, 6), put(metadata_, value); }
  void string(std::string_view key, std::string_view value) {
    entry(key, 8), text(metadata_, value);
  }
  void strings(std::string_view key, const std::vector<std::string>& values) {
    entry(key, 9), put(metadata_, std::uint32_t{8});
    put(metadata_, static_cast<std::uint64_t>(values.size()));
    for (const std::string& value : values) {
      text(metadata_, value);
    }
  }
  void i32s(std::string_view key, const std::vector<std::int32_t>& values) {
    entry(key, 9), put(metadata_, std::uint32_t{5});
    put(metadata_, static_cast<std::uint64_t>(values.size()));
    for (const std::int32_t value : values) {
      put(metadata_, value);
    }
  }
  // `bytes` of data, all `fill`; the directory says what dims and type say.
  void tensor(std::string_view name, std::uint32_t type, const std::vector<std::uint64_t>& dims,
              std::size_t bytes, char fill = 0) {
    tensor(name, type, dims, std::string(bytes, fill));
  }
  void tensor(std::string_view name, std::uint32_t type, const std::vector<std::uint64_t>& dims,
              const std::string& bytes) {
    ++tensors_;
    text(directory_, name);
    put(directory_, static_cast<std::uint32_t>(dims.size()));
    for (const std::uint64_t extent : dims) {
      put(directory_, extent);
    }
    put(directory_, type);
    data_.resize((data_.size() + alignment - 1) / alignment * alignment);
    put(directory_, static_cast<std::uint64_t>(data_.size()));
    data_.append(bytes);
  }
  [[nodiscard]] std::string build() const {
    std::string file = "GGUF";
    put(file, version);
    put(file, tensors_);
    put(file, entries_);
    file += metadata_ + directory_;
    file.resize((file.size() + alignment - 1) / alignment * alignment);
    return file + data_;
  }

 private:
  template <class T>
  static void put(std::string& to, T value) {
    to.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  static void text(std::string& to, std::string_view value) {
    put(to, static_cast<std::uint64_t>(value.size()));
    to.append(value);
  }
  void entry(std::string_view key, std::uint32_t type) {
    ++entries_;
    text(metadata_, key);
    put(metadata_, type);
  }

  std::string metadata_;
  std::string directory_;
  std::string data_;
  std::uint64_t tensors_ = 0;
  std::uint64_t entries_ = 0;
};

// A file that is gone at the end of the scope.
class TemporaryFile {
 public:
  explicit TemporaryFile(std::string_view bytes) {
    static int count = 0;
    path_ = std::filesystem::temp_directory_path() /
            ("baton_files_" + std::to_string(::getpid()) + "_" + std::to_string(count++) + ".gguf");
    write(bytes);
  }
  ~TemporaryFile() {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  void write(std::string_view bytes) const {
    std::ofstream(path_, std::ios::binary | std::ios::trunc)
        .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }
  [[nodiscard]] std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

}  // namespace baton::files
