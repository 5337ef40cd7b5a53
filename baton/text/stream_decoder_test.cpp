// UTF-8 in pieces, stop strings, and both together: what a client sees does not depend on where
// tokens cut the text.
#include "baton/text/stream_decoder.h"

#include "baton/text/byte_alphabet.h"
#include "baton/text/test_support.h"
#include "baton/text/utf8.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

namespace baton::text {
namespace {

std::shared_ptr<const StopStrings> stops(std::vector<std::string> strings) {
  auto made = StopStrings::create(std::move(strings));
  EXPECT_TRUE(made);
  return std::make_shared<const StopStrings>(*std::move(made));
}

// A tokenizer whose token i is byte i, 256 is a control token.
const Tokenizer& byte_tokenizer() {
  static const Tokenizer tokenizer = [] {
    TokenizerDescription description;
    description.model = "gpt2";
    description.pre = "gpt-2";
    description.tokens.assign(byte_characters().begin(), byte_characters().end());
    description.token_types.assign(256, 1);
    description.tokens.emplace_back("<end>");
    description.token_types.push_back(3);
    description.eos = 256;
    auto made = Tokenizer::create(description);
    EXPECT_TRUE(made) << made.error().message;
    return *std::move(made);
  }();
  return tokenizer;
}
TokenId byte(unsigned char c) { return static_cast<TokenId>(c); }

TEST(Utf8, ReplacesMaximalInvalidParts) {
  // Expected values are Python's bytes.decode("utf-8", "replace").
  const std::string r = "\uFFFD";
  EXPECT_EQ(sanitized_utf8("a\xFF"
                           "b"),
            "a" + r + "b");
  EXPECT_EQ(sanitized_utf8("\xE2\x82"), r);
  EXPECT_EQ(sanitized_utf8("\xE2\x28\xA1"), r + "(" + r);
  EXPECT_EQ(sanitized_utf8("\xED\xA0\x80"), r + r + r);
  EXPECT_EQ(sanitized_utf8("\xF0\x9F\x98"
                           "x"),
            r + "x");
  EXPECT_EQ(sanitized_utf8("\xC0\x80"), r + r);
  EXPECT_EQ(sanitized_utf8("\xF4\x90\x80\x80"), r + r + r + r);
  EXPECT_TRUE(is_valid_utf8("naïve 🙂"));
  EXPECT_EQ(count_code_points("naïve 🙂"), 7U);
}

TEST(Utf8, PiecesMakeNoDifference) {
  std::mt19937 random(5);
  const std::string alphabet = "a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x99\x82\xFF\xED\xA0\xC0\x80";
  for (int round = 0; round < 3000; ++round) {
    std::string bytes;
    for (std::size_t i = 0; i < 1 + random() % 12; ++i) {
      bytes += alphabet[random() % alphabet.size()];
    }
    Utf8Decoder decoder;
    std::string out;
    for (std::size_t at = 0; at < bytes.size();) {
      const std::size_t count = 1 + random() % 3;
      decoder.feed(std::string_view(bytes).substr(at, count), out);
      EXPECT_TRUE(is_valid_utf8(out));
      EXPECT_LE(decoder.pending_bytes(), 3U);
      at += count;
    }
    decoder.flush(out);
    EXPECT_EQ(out, sanitized_utf8(bytes));
  }
}

TEST(Detokenizer, HoldsHalfACharacter) {
  Detokenizer detokenizer(byte_tokenizer());
  EXPECT_EQ(detokenizer.feed(byte(0xF0)), "");
  EXPECT_EQ(detokenizer.feed(byte(0x9F)), "");
  EXPECT_EQ(detokenizer.feed(256), "");  // a control token has no text
  EXPECT_EQ(detokenizer.feed(byte(0x99)), "");
  EXPECT_EQ(detokenizer.feed(byte(0x82)), "🙂");
  EXPECT_EQ(detokenizer.feed(byte(0xC3)), "");
  EXPECT_EQ(detokenizer.feed(byte('x')), "\uFFFDx");
  EXPECT_EQ(detokenizer.feed(99999), "");
  EXPECT_EQ(detokenizer.feed(byte(0xE2)), "");
  EXPECT_EQ(detokenizer.flush(), "\uFFFD");
  EXPECT_EQ(detokenizer.flush(), "");
}

TEST(StopStrings, RefusesWhatIsOutOfBounds) {
  EXPECT_FALSE(StopStrings::create({""}));
  EXPECT_FALSE(StopStrings::create({std::string(kMaxStopStringBytes + 1, 'x')}));
  EXPECT_FALSE(StopStrings::create(std::vector<std::string>(kMaxStopStrings + 1, "x")));
  EXPECT_FALSE(StopStrings::create({"\xFF"}));
  EXPECT_EQ(StopStrings::create({""}).error().param, "stop");
  EXPECT_TRUE(StopStrings::create({std::string(kMaxStopStringBytes, 'x')}));
}

// B10, both halves.
TEST(StopStrings, HoldsBackAcrossTokensAndReleases) {
  const std::vector<std::string> tokens = {"Monday", ", ", "Tues", "day, W", "ednes",
                                           "day",    ", ", "Thu",  "rsday",  ", Friday"};
  const auto run = [&](const std::string& stop, std::string& out) {
    StopMatcher matcher(stops({stop}));
    for (const std::string& token : tokens) {
      if (matcher.feed(token, out)) {
        return true;
      }
      EXPECT_TRUE(stop == "Wednesday, Xylo" || out.find('W') == std::string::npos) << out;
    }
    matcher.flush(out);
    return false;
  };
  std::string out;
  EXPECT_TRUE(run("Wednesday, Thursday", out));
  EXPECT_EQ(out, "Monday, Tuesday, ");
  out.clear();
  EXPECT_FALSE(run("Wednesday, Xylo", out));
  EXPECT_EQ(out, "Monday, Tuesday, Wednesday, Thursday, Friday");
}

TEST(StopStrings, FirstCompleteMatchWins) {
  const auto run = [](std::vector<std::string> strings, const std::string& text) {
    StopMatcher matcher(stops(std::move(strings)));
    std::string out;
    matcher.feed(text, out);
    matcher.flush(out);
    return out + "/" + std::string(matcher.matched());
  };
  EXPECT_EQ(run({"abcd", "bc"}, "xabcd"), "xa/bc");
  EXPECT_EQ(run({"c", "abc"}, "xabc"), "x/abc");  // complete together: the longest
  EXPECT_EQ(run({"aab"}, "aaab"), "a/aab");
  EXPECT_EQ(run({"abab"}, "aabaabab"), "aaba/abab");
  EXPECT_EQ(run({"zzz"}, "abzz"), "abzz/");
}

// Against a search over the whole text, however it is cut.
TEST(StopStrings, CutsMakeNoDifference) {
  std::mt19937 random(9);
  const auto word = [&](std::size_t longest) {
    std::string text;
    for (std::size_t i = 0; i < 1 + random() % longest; ++i) {
      text += "aab é"[random() % 4];
    }
    return text;
  };
  for (int round = 0; round < 4000; ++round) {
    std::vector<std::string> strings;
    for (std::size_t i = 0; i < 1 + random() % 3; ++i) {
      strings.push_back(word(4));
    }
    const std::string text = word(30);
    std::string expected = text;
    bool stopped = false;
    for (std::size_t end = 1; end <= text.size() && !stopped; ++end) {
      for (const std::string& string : strings) {
        if (end >= string.size() && text.compare(end - string.size(), string.size(), string) == 0) {
          stopped = true;
          expected = std::min(expected, text.substr(0, end - string.size()),
                              [](const auto& a, const auto& b) { return a.size() < b.size(); });
        }
      }
    }
    StopMatcher matcher(stops(strings));
    std::string out;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t count = random() % 4;
      matcher.feed(std::string_view(text).substr(at, count), out);
      ASSERT_EQ(expected.compare(0, out.size(), out), 0) << "nothing of a stop string goes out";
      at += count;
    }
    matcher.flush(out);
    ASSERT_EQ(out, expected) << text;
    ASSERT_EQ(matcher.stopped(), stopped);
  }
}

TEST(StreamDecoder, HoldsBackWhatMayBecomeAStopString) {
  StreamDecoder decoder(byte_tokenizer(), stops({"xyz"}));
  EXPECT_EQ(decoder.feed(byte('a')).text, "a");
  EXPECT_EQ(decoder.feed(byte('x')).text, "");
  EXPECT_EQ(decoder.feed(byte('y')).text, "");
  EXPECT_EQ(decoder.feed(byte('x')).text, "xy");
  EXPECT_EQ(decoder.feed(byte(0xC3)).text, "");  // what follows the x is not known yet
  EXPECT_EQ(decoder.feed(byte(0xA9)).text, "xé");
  for (const char c : {'x', 'y'}) {
    EXPECT_EQ(decoder.feed(byte(static_cast<unsigned char>(c))).text, "");
  }
  const auto last = decoder.feed(byte('z'));
  EXPECT_TRUE(last.stopped);
  EXPECT_EQ(last.text, "");
  EXPECT_EQ(decoder.matched_stop(), "xyz");
  EXPECT_EQ(decoder.feed(byte('q')).text, "");  // overrun
  EXPECT_EQ(decoder.finish().text, "");
}

TEST(StreamDecoder, FinishReleasesWhatWasHeld) {
  StreamDecoder decoder(byte_tokenizer(), stops({"abc"}));
  EXPECT_EQ(decoder.feed(byte('a')).text, "");
  EXPECT_EQ(decoder.feed(byte('b')).text, "");
  EXPECT_EQ(decoder.feed(byte(0xE2)).text, "");
  const auto end = decoder.finish();
  EXPECT_EQ(end.text, "ab\uFFFD");
  EXPECT_FALSE(end.stopped);
}

TEST(StreamDecoder, WithoutStopsTextIsThatOfTheWholeAnswer) {
  const std::string text = "Grüße 🙂👩🏽‍🚀 и 字字字\n";
  StreamDecoder decoder(test_tokenizer(), nullptr);
  std::string out;
  for (const TokenId token : test_tokenizer().encode_plain(text)) {
    out += decoder.feed(token).text;
    EXPECT_TRUE(is_valid_utf8(out));
  }
  out += decoder.finish().text;
  EXPECT_EQ(out, text);
}

TEST(StreamDecoder, StopOnTheFirstToken) {
  StreamDecoder decoder(test_tokenizer(), stops({"el"}));
  const auto step = decoder.feed(*test_tokenizer().find("Hello"));
  EXPECT_TRUE(step.stopped);
  EXPECT_EQ(step.text, "H");
}

}  // namespace
}  // namespace baton::text
