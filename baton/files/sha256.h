// SHA-256 over bytes that come in pieces (OpenSSL's). Thread: one per object.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace baton::files {

using Sha256Digest = std::array<std::uint8_t, 32>;
std::string to_hex(const Sha256Digest& digest);  // 64 lower-case digits

class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  void update(std::span<const std::byte> bytes);
  [[nodiscard]] Sha256Digest finish();  // once

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace baton::files
