// Character classes for the pre-tokenizers, one byte of bits per code point. They are those of the
// library that defines the patterns (tests/fixtures/text/make_unicode_classes.py), because Unicode
// versions differ and a letter more or less moves a word border. The table is 1.1 MB, made once.
#pragma once

#include <cstddef>
#include <cstdint>

namespace baton::text {

inline constexpr std::size_t kCodePoints = 0x110000;

enum UnicodeClass : std::uint8_t {
  kLetter = 1,  // \p{L}
  kNumber = 2,  // \p{N}
  kSpace = 4,   // \s
  kDigit = 8,   // numeric to Digits(individual_digits=True); nearly \p{N}
};

// [code point] → bits of UnicodeClass. Thread: any.
const std::uint8_t* unicode_classes();

}  // namespace baton::text
