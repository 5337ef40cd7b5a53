// Pre-tokenizers: where a text is cut into words before BPE. The published regular expressions as
// hand-written scanners (PCRE2 is their oracle in the tests): linear time, no backtracking. The
// character classes are those of the library that defines the pattern (unicode_classes.h).
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string_view>

namespace baton::text {

enum class PreTokenizer {
  kGpt2,    // "gpt-2", "default"
  kSmolLm,  // "smollm": every digit alone, then GPT-2's pattern inside of the parts between
  kQwen2,   // "qwen2"
};

// None when the name is not known.
std::optional<PreTokenizer> find_pre_tokenizer(std::string_view name);

// Calls word(begin, end) for each word [begin, end) in bytes; together they are the whole text,
// which must be valid UTF-8.
using WordSink = std::function<void(std::size_t begin, std::size_t end)>;
void split_words(PreTokenizer kind, std::string_view text, const WordSink& word);

}  // namespace baton::text
