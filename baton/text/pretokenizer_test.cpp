// The scanners against Hugging Face's cuts (fixtures) and against PCRE2 on random text.
#include "baton/text/pretokenizer.h"

#include <gtest/gtest.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include "baton/text/normalizer.h"
#include "baton/text/test_support.h"
#include "baton/text/utf8.h"

#include <pcre2.h>

#include <array>
#include <random>
#include <string>
#include <vector>

namespace baton::text {
namespace {

std::vector<std::size_t> cuts_of(PreTokenizer kind, const std::string& text) {
  std::vector<std::size_t> cuts;
  std::size_t expected_begin = 0;
  split_words(kind, text, [&](std::size_t begin, std::size_t end) {
    EXPECT_EQ(begin, expected_begin);
    EXPECT_LT(begin, end);
    expected_begin = end;
    cuts.push_back(end);
  });
  EXPECT_EQ(expected_begin, text.size());
  return cuts;
}

TEST(PreTokenizer, CutsWhereHuggingFaceCuts) {
  std::size_t checked = 0;
  for (const Json& line : fixture_lines("splits.jsonl")) {
    const std::string text = from_base64(line["b"].get<std::string>());
    for (const char* name : {"gpt-2", "smollm", "qwen2"}) {
      if (line.contains(name)) {
        EXPECT_EQ(cuts_of(*find_pre_tokenizer(name), text),
                  line[name].get<std::vector<std::size_t>>())
            << name << ": " << text;
        ++checked;
      }
    }
    const std::string nfc =
        line.contains("nfc") ? from_base64(line["nfc"].get<std::string>()) : text;
    EXPECT_EQ(to_nfc(text), nfc) << text;
  }
  EXPECT_GE(checked, 4000U);
}

TEST(PreTokenizer, UnknownNamesAreUnknown) {
  EXPECT_FALSE(find_pre_tokenizer("llama-bpe"));
  EXPECT_FALSE(find_pre_tokenizer(""));
  EXPECT_EQ(find_pre_tokenizer("default"), PreTokenizer::kGpt2);
}

class Oracle {
 public:
  explicit Oracle(const char* pattern) {
    int error = 0;
    PCRE2_SIZE offset = 0;
    code_ = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern), PCRE2_ZERO_TERMINATED,
                          PCRE2_UTF | PCRE2_UCP, &error, &offset, nullptr);
    match_ = pcre2_match_data_create_from_pattern(code_, nullptr);
  }
  ~Oracle() {
    pcre2_match_data_free(match_);
    pcre2_code_free(code_);
  }
  Oracle(const Oracle&) = delete;
  Oracle& operator=(const Oracle&) = delete;

  std::vector<std::size_t> cuts(const std::string& text) {
    std::vector<std::size_t> ends;
    for (std::size_t at = 0; at < text.size();) {
      const int found = pcre2_match(code_, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                                    at, 0, match_, nullptr);
      if (found < 1) {
        ADD_FAILURE() << "PCRE2: " << found;
        return ends;
      }
      EXPECT_EQ(pcre2_get_ovector_pointer(match_)[0], at);
      at = pcre2_get_ovector_pointer(match_)[1];
      ends.push_back(at);
    }
    return ends;
  }

 private:
  pcre2_code* code_ = nullptr;
  pcre2_match_data* match_ = nullptr;
};

// Characters of every class that all Unicode versions agree on.
std::string random_text(std::mt19937& random) {
  static const std::array<const char*, 40> kParts = {
      "a",      "B",    "é",      "ß",      "ж",  "字",     "ア",     "ſ",      "'",      "'s",
      "'S",     "'re",  "'L",     "'ll",    "1",  "٣",      "Ⅷ",      "½",      " ",      "  ",
      "\t",     "\n",   "\r",     "\r\n",   "\v", "\u00A0", "\u2003", "\u3000", "!",      "?!",
      "\u0301", "🙂", "\u200D", "\u200B", "_",  "-",      "'d",     "'ve",    "\u0085", "\u2028"};
  std::string text;
  const std::size_t parts = 1 + random() % 12;
  for (std::size_t i = 0; i < parts; ++i) {
    text += kParts[random() % kParts.size()];
  }
  return text;
}

TEST(PreTokenizer, AgreesWithPcre2) {
  Oracle gpt2("'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+");
  Oracle qwen2(
      "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}|"
      " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+");
  std::mt19937 random(3);
  for (int i = 0; i < 20'000; ++i) {
    const std::string text = random_text(random);
    ASSERT_EQ(cuts_of(PreTokenizer::kGpt2, text), gpt2.cuts(text)) << text;
    ASSERT_EQ(cuts_of(PreTokenizer::kQwen2, text), qwen2.cuts(text)) << text;
  }
}

TEST(Normalizer, LongRunsOfMarksStayFast) {
  std::string text = "a";
  for (int i = 0; i < 200'000; ++i) {
    text += i % 2 == 0 ? "\u0301" : "\u0316";  // classes 230 and 220, out of order
  }
  const std::string nfc = to_nfc(text);
  EXPECT_TRUE(nfc.starts_with("\u00E1\u0316\u0316"));
  EXPECT_EQ(to_nfc(nfc), nfc);
}

}  // namespace
}  // namespace baton::text
