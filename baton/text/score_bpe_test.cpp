// The tokenizer of SentencePiece models against the library's ids: with a small vocabulary of our
// own, and with Gemma 3's where its file is. Bytes, spaces, broken descriptions, hostile lengths.
#include "baton/text/score_bpe.h"

#include "baton/text/detokenizer.h"
#include "baton/text/test_support.h"
#include "baton/text/tokenizer_loader.h"
#include "baton/text/utf8.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>

namespace baton::text {
namespace {

// tests/fixtures/text/pieces.json as a GGUF file would describe it.
TokenizerDescription small_description() {
  std::ifstream in("tests/fixtures/text/pieces.json");
  const Json pieces = Json::parse(in);
  TokenizerDescription description;
  description.model = "llama";
  for (const Json& piece : pieces) {
    description.tokens.push_back(piece[0].get<std::string>());
    description.token_types.push_back(piece[1].get<std::int32_t>());
    description.scores.push_back(piece[2].get<float>());
  }
  return description;
}

const Tokenizer& small_tokenizer() {
  static const Tokenizer tokenizer = *Tokenizer::create(small_description());
  return tokenizer;
}

TokenId id_of(const std::string& token) {
  const TokenizerDescription description = small_description();
  const auto found = std::find(description.tokens.begin(), description.tokens.end(), token);
  EXPECT_NE(found, description.tokens.end()) << token;
  return static_cast<TokenId>(found - description.tokens.begin());
}

void expect_library_ids(const Tokenizer& tokenizer, const std::string& fixture) {
  const auto lines = fixture_lines(fixture);
  ASSERT_GE(lines.size(), 1000U);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const std::string bytes = from_base64(lines[i]["b"].get<std::string>());
    EXPECT_EQ(tokenizer.encode_plain(bytes), lines[i]["ids"].get<std::vector<TokenId>>())
        << fixture << " line " << i + 1 << ": " << bytes;
  }
}

// Token by token: whole characters only, and in the end what was said.
void expect_whole_characters(const Tokenizer& tokenizer, const std::string& fixture) {
  std::size_t held_back = 0;
  for (const Json& line : fixture_lines(fixture)) {
    const std::string bytes = from_base64(line["b"].get<std::string>());
    Detokenizer detokenizer(tokenizer);
    std::string text;
    for (const TokenId id : tokenizer.encode_plain(bytes)) {
      const std::string now = detokenizer.feed(id);
      ASSERT_TRUE(is_valid_utf8(now)) << bytes;
      held_back += detokenizer.pending_bytes() > 0 ? 1 : 0;
      text += now;
    }
    text += detokenizer.flush();
    ASSERT_EQ(text, with_spaces(sanitized_utf8(bytes)));
  }
  EXPECT_GT(held_back, 500U) << "characters without a token of their own";
}

TEST(ScoreBpe, MatchesTheLibraryOnEveryFixtureString) {
  expect_library_ids(small_tokenizer(), "pieces_strings.jsonl");
}
TEST(ScoreBpe, CharactersComeOutWhole) {
  expect_whole_characters(small_tokenizer(), "pieces_strings.jsonl");
}

TEST(ScoreBpe, MatchesTheLibraryWithGemmasVocabulary) {
  if (!std::filesystem::exists(testing::gemma_path())) {
    GTEST_SKIP() << testing::gemma_path() << " is not there: scripts/nightly fetches it";
  }
  const auto file = files::GgufFile::open(testing::gemma_path());
  ASSERT_TRUE(file) << file.error().message;
  const auto tokenizer = load_gguf_tokenizer(*file);
  ASSERT_TRUE(tokenizer) << tokenizer.error().message;
  expect_library_ids(*tokenizer, "gemma3_strings.jsonl");
  expect_whole_characters(*tokenizer, "gemma3_strings.jsonl");
  const Piece text{"Hello", false};
  EXPECT_EQ(prompt_ids(*tokenizer, {&text, 1}, PromptKind::kRaw).front(), *tokenizer->bos());
  EXPECT_EQ(tokenizer->find("\n\n"), 108);
  EXPECT_EQ(tokenizer->token_bytes(236743), " ");
}

TEST(ScoreBpe, ControlTokensOnlyFromTheTemplate) {
  const TokenId control = id_of("<start_of_turn>");
  const std::vector<Piece> from_template = {{"<start_of_turn>", true}, {"hi", false}};
  EXPECT_EQ(small_tokenizer().encode(from_template).front(), control);
  for (const TokenId id : small_tokenizer().encode_plain("<start_of_turn>hi")) {
    EXPECT_NE(id, control);
  }
  EXPECT_TRUE(small_tokenizer().is_control(control));
}

TEST(ScoreBpe, BytesAreAFallbackNotAText) {
  const TokenId letter_byte = id_of("<0x41>");
  EXPECT_EQ(small_tokenizer().token_bytes(letter_byte), "A");
  EXPECT_NE(small_tokenizer().find("A"), letter_byte);
  for (const TokenId id : small_tokenizer().encode_plain("<0x41>A")) {
    EXPECT_NE(id, letter_byte);
  }
}

TEST(ScoreBpe, LongTextsTakeNoMoreThanTheirShare) {
  const std::string letters(300'000, 'a');
  const std::string spaces(300'000, ' ');
  std::string no_tokens;
  for (int i = 0; i < 100'000; ++i) {
    no_tokens += "\u4e00";
  }
  for (const std::string& text : {letters, spaces, no_tokens}) {
    EXPECT_EQ(small_tokenizer().decode(small_tokenizer().encode_plain(text)), text);
  }
}

TEST(ScoreBpe, BrokenDescriptionsAreRefusedByName) {
  const auto error = [](const std::function<void(TokenizerDescription&)>& change) {
    TokenizerDescription description = small_description();
    change(description);
    const auto made = Tokenizer::create(description);
    return made ? "no error" : made.error().message;
  };
  const auto expect = [&](const char* what,
                          const std::function<void(TokenizerDescription&)>& change) {
    EXPECT_NE(error(change).find(what), std::string::npos) << error(change);
  };
  const auto byte = static_cast<std::size_t>(id_of("<0x41>"));
  expect("scores for", [](auto& d) { d.scores.pop_back(); });
  expect("is no number", [](auto& d) { d.scores[700] = std::numeric_limits<float>::quiet_NaN(); });
  expect("add_space_prefix", [](auto& d) { d.add_space_prefix = true; });
  expect("no token for byte 0x41", [&](auto& d) { d.token_types[byte] = 1; });
  expect("is no byte", [&](auto& d) { d.tokens[byte] = "<0x4>"; });
  expect("type \"unused\"", [](auto& d) { d.token_types[700] = 5; });
}

}  // namespace
}  // namespace baton::text
