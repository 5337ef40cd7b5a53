// See byte_alphabet.h.
#include "baton/text/byte_alphabet.h"

#include "baton/text/utf8.h"

#include <unordered_map>

namespace baton::text {
namespace {

bool stands_for_itself(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

std::array<std::string, 256> make_characters() {
  std::array<std::string, 256> characters;
  char32_t spare = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const char32_t c = stands_for_itself(byte) ? static_cast<char32_t>(byte) : spare++;
    append_utf8(characters[static_cast<std::size_t>(byte)], c);
  }
  return characters;
}

std::unordered_map<char32_t, char> make_bytes() {
  std::unordered_map<char32_t, char> bytes;
  for (std::size_t byte = 0; byte < 256; ++byte) {
    bytes.emplace(decode_utf8(byte_characters()[byte], 0).code_point, static_cast<char>(byte));
  }
  return bytes;
}

}  // namespace

const std::array<std::string, 256>& byte_characters() {
  static const std::array<std::string, 256> characters = make_characters();
  return characters;
}

std::optional<std::string> bytes_of_alphabet(std::string_view token) {
  static const std::unordered_map<char32_t, char> bytes = make_bytes();
  std::string out;
  for (std::size_t i = 0; i < token.size();) {
    const Utf8Step step = decode_utf8(token, i);
    const auto found = bytes.find(step.code_point);
    if (!step.valid || found == bytes.end()) {
      return std::nullopt;
    }
    out += found->second;
    i += step.bytes;
  }
  return out;
}

}  // namespace baton::text
