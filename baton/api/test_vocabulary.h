// A small byte-level tokenizer for the tests of api/: ids of single bytes, a few words, control
// tokens.
#pragma once

#include "baton/text/tokenizer.h"

#include <map>
#include <memory>
#include <stdexcept>
#include <string>

namespace baton::api {

// A byte-level vocabulary: ids of single bytes, a few words, one end token.
class Vocabulary {
 public:
  explicit Vocabulary(bool add_bos = false) {
    for (int byte = 0x21; byte <= 0x7e; ++byte) {
      add(std::string(1, static_cast<char>(byte)));
    }
    add("\xc4\xa0");  // the alphabet's name of a space
    add("\xc3\x83");  // byte C3
    add("\xc2\xa9");  // byte A9
    for (const char* word : {"Wed", "nesday", ",", "\xc4\xa0Thurs", "day", "\xc4\xa0X", "ylo"}) {
      words_[word] = static_cast<TokenId>(description_.tokens.size());
      add(word);
    }
    add("\xc4\x8a");  // a line break
    end_ = static_cast<TokenId>(description_.tokens.size());
    add("<|end|>", text::TokenType::kControl);
    for (const char* control : {"<s>", "<|turn|>"}) {
      words_[control] = static_cast<TokenId>(description_.tokens.size());
      add(control, text::TokenType::kControl);
    }
    description_.bos = words_["<s>"];
    description_.add_bos = add_bos;
    description_.model = "gpt2";
    description_.pre = "smollm";
    description_.eos = end_;
    auto made = text::Tokenizer::create(description_);
    if (!made) {
      throw std::runtime_error(made.error().message);
    }
    tokenizer_ = std::make_unique<text::Tokenizer>(std::move(*made));
  }
  [[nodiscard]] const text::Tokenizer& tokenizer() const { return *tokenizer_; }
  [[nodiscard]] TokenId word(const std::string& name) const { return words_.at(name); }
  [[nodiscard]] TokenId byte(char c) const { return static_cast<TokenId>(c - 0x21); }
  [[nodiscard]] TokenId space() const { return 0x7e - 0x21 + 1; }
  [[nodiscard]] TokenId c3() const { return space() + 1; }
  [[nodiscard]] TokenId a9() const { return space() + 2; }
  [[nodiscard]] TokenId end() const { return end_; }

 private:
  void add(const std::string& token, text::TokenType type = text::TokenType::kNormal) {
    description_.tokens.push_back(token);
    description_.token_types.push_back(static_cast<std::int32_t>(type));
  }
  text::TokenizerDescription description_;
  std::map<std::string, TokenId> words_;
  TokenId end_ = 0;
  std::unique_ptr<text::Tokenizer> tokenizer_;
};

inline const Vocabulary& vocabulary() {
  static const Vocabulary made;
  return made;
}

}  // namespace baton::api
