// The scanners follow the published patterns alternative by alternative; each comment is the
// alternative. Possessive reading is exact here: no alternative gives characters back except the
// two on white space, whose result is computed directly.
#include "baton/text/pretokenizer.h"

#include "baton/text/unicode_classes.h"
#include "baton/text/utf8.h"

#include <array>

namespace baton::text {
namespace {

struct Character {
  char32_t code_point = 0;
  std::size_t next = 0;  // where the following one begins; 0 bytes long at the end
  std::uint8_t classes = 0;
  bool end = false;
};

class Scanner {
 public:
  Scanner(std::string_view text, std::size_t end) : text_(text.substr(0, end)) {}

  [[nodiscard]] Character at(std::size_t position) const {
    if (position >= text_.size()) {
      return {0, position, 0, true};
    }
    const auto byte = static_cast<unsigned char>(text_[position]);
    if (byte < 0x80) {
      return {byte, position + 1, classes_[byte], false};
    }
    const Utf8Step step = decode_utf8(text_, position);
    return {step.code_point, position + step.bytes, classes_[step.code_point], false};
  }

  // End of the longest run from `position` of characters with one of `bits`.
  [[nodiscard]] std::size_t run_of(std::size_t position, std::uint8_t bits) const {
    for (Character c = at(position); !c.end && (c.classes & bits) != 0; c = at(position)) {
      position = c.next;
    }
    return position;
  }

  // [^\s\p{L}\p{N}]*
  [[nodiscard]] std::size_t run_of_others(std::size_t position) const {
    for (Character c = at(position); is_other(c); c = at(position)) {
      position = c.next;
    }
    return position;
  }

  [[nodiscard]] std::size_t run_of_newlines(std::size_t position) const {
    while (position < text_.size() && (text_[position] == '\r' || text_[position] == '\n')) {
      ++position;
    }
    return position;
  }

  static bool is_other(const Character& c) {
    return !c.end && (c.classes & (kLetter | kNumber | kSpace)) == 0;
  }

  // \s+(?!\S)|\s+ : the whole run at the end of the text or when it is one character long, else
  // all but its last character.
  [[nodiscard]] std::size_t white_space(std::size_t position) const {
    std::size_t last = position;
    std::size_t end = position;
    for (Character c = at(end); !c.end && (c.classes & kSpace) != 0; c = at(end)) {
      last = end;
      end = c.next;
    }
    return end == text_.size() || last == position ? end : last;
  }

  // \s*[\r\n]+ : up to the last line break of the run of white space; `position` without one.
  [[nodiscard]] std::size_t through_last_newline(std::size_t position) const {
    std::size_t end = position;
    for (Character c = at(position); !c.end && (c.classes & kSpace) != 0; c = at(position)) {
      position = c.next;
      if (c.code_point == '\r' || c.code_point == '\n') {
        end = position;
      }
    }
    return end;
  }

  // 's|'t|'re|'ve|'m|'ll|'d ; the end of it, or `position`. `fold`: (?i:...), where U+017F (long
  // s) is an s too.
  [[nodiscard]] std::size_t contraction(std::size_t position, bool fold) const {
    if (text_[position] != '\'') {
      return position;
    }
    const Character first = at(position + 1);
    const char32_t a = lower(first, fold);
    if (a == 's' || a == 't' || a == 'm' || a == 'd') {
      return first.next;
    }
    const Character second = first.end ? first : at(first.next);
    const char32_t b = lower(second, fold);
    const bool two = (a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l');
    return two ? second.next : position;
  }

 private:
  static char32_t lower(const Character& c, bool fold) {
    if (c.end) {
      return 0;
    }
    if (fold && c.code_point >= 'A' && c.code_point <= 'Z') {
      return c.code_point + ('a' - 'A');
    }
    return fold && c.code_point == 0x17F ? U's' : c.code_point;
  }

  std::string_view text_;
  const std::uint8_t* classes_ = unicode_classes();
};

// 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
std::size_t gpt2_word(const Scanner& scan, std::size_t position) {
  const Character c = scan.at(position);
  if (c.code_point == '\'') {
    const std::size_t end = scan.contraction(position, false);
    if (end != position) {
      return end;
    }
  }
  const std::size_t start = c.code_point == ' ' ? c.next : position;
  const Character head = c.code_point == ' ' ? scan.at(start) : c;
  if (!head.end && (head.classes & kLetter) != 0) {
    return scan.run_of(head.next, kLetter);
  }
  if (!head.end && (head.classes & kNumber) != 0) {
    return scan.run_of(head.next, kNumber);
  }
  if (Scanner::is_other(head)) {
    return scan.run_of_others(head.next);
  }
  return scan.white_space(position);
}

// (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*
// |\s*[\r\n]+|\s+(?!\S)|\s+
std::size_t qwen2_word(const Scanner& scan, std::size_t position) {
  const Character c = scan.at(position);
  if (c.code_point == '\'') {
    const std::size_t end = scan.contraction(position, true);
    if (end != position) {
      return end;
    }
  }
  if ((c.classes & kLetter) != 0) {
    return scan.run_of(c.next, kLetter);
  }
  if ((c.classes & kNumber) != 0) {
    return c.next;
  }
  if (c.code_point != '\r' && c.code_point != '\n') {
    const Character next = scan.at(c.next);
    if (!next.end && (next.classes & kLetter) != 0) {
      return scan.run_of(next.next, kLetter);
    }
  }
  const Character head = c.code_point == ' ' ? scan.at(c.next) : c;
  if (Scanner::is_other(head)) {
    return scan.run_of_newlines(scan.run_of_others(head.next));
  }
  const std::size_t newline = scan.through_last_newline(position);
  return newline != position ? newline : scan.white_space(position);
}

template <class NextWord>
void scan_words(NextWord next_word, std::string_view text, std::size_t begin, std::size_t end,
                const WordSink& word) {
  const Scanner scan(text, end);
  while (begin < end) {
    const std::size_t stop = next_word(scan, begin);
    word(begin, stop);
    begin = stop;
  }
}

// Digits(individual_digits=True), then the pattern inside of each part: white space before a digit
// is thus at the end of its part.
void split_smollm(std::string_view text, const WordSink& word) {
  const Scanner scan(text, text.size());
  std::size_t begin = 0;
  for (std::size_t i = 0; i < text.size();) {
    const Character c = scan.at(i);
    if ((c.classes & kDigit) != 0) {
      scan_words(gpt2_word, text, begin, i, word);
      word(i, c.next);
      begin = c.next;
    }
    i = c.next;
  }
  scan_words(gpt2_word, text, begin, text.size(), word);
}

}  // namespace

std::optional<PreTokenizer> find_pre_tokenizer(std::string_view name) {
  struct Named {
    std::string_view name;
    PreTokenizer kind;
  };
  static constexpr std::array<Named, 4> kNames = {{{"smollm", PreTokenizer::kSmolLm},
                                                   {"gpt-2", PreTokenizer::kGpt2},
                                                   {"default", PreTokenizer::kGpt2},
                                                   {"qwen2", PreTokenizer::kQwen2}}};
  for (const Named& named : kNames) {
    if (named.name == name) {
      return named.kind;
    }
  }
  return std::nullopt;
}

void split_words(PreTokenizer kind, std::string_view text, const WordSink& word) {
  switch (kind) {
    case PreTokenizer::kGpt2:
      scan_words(gpt2_word, text, 0, text.size(), word);
      return;
    case PreTokenizer::kSmolLm:
      split_smollm(text, word);
      return;
    case PreTokenizer::kQwen2:
      scan_words(qwen2_word, text, 0, text.size(), word);
      return;
  }
}

}  // namespace baton::text
