// GPT-2's byte alphabet: each byte has one printable character, by which vocabularies and merges
// are written. Bytes that are printable in Latin-1 stand for themselves, the other 68 are U+0100
// and up in order.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>

namespace baton::text {

// The character of each byte, as UTF-8.
const std::array<std::string, 256>& byte_characters();

// The bytes that a token's characters stand for; none when one of them is not in the alphabet.
std::optional<std::string> bytes_of_alphabet(std::string_view token);

}  // namespace baton::text
