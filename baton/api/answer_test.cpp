// Answers: streamed and whole ones say the same, usage counts what it should, stop strings never
// leak.
#include "baton/api/answer.h"

#include "baton/api/test_vocabulary.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <limits>

namespace baton::api {
namespace {

using message::FinishReason;
using Json = nlohmann::json;

std::shared_ptr<const text::StopStrings> stops(std::vector<std::string> strings) {
  return std::make_shared<text::StopStrings>(*text::StopStrings::create(std::move(strings)));
}

AnswerOptions options(Endpoint endpoint, bool stream) {
  AnswerOptions out;
  out.endpoint = endpoint;
  out.event_id.answer = {1, 2};
  out.event_id.created_s = 1700000000;
  out.event_id.seed = 42;
  out.event_id.max_tokens = 100;
  out.model = "smol";
  out.stream = stream;
  out.prompt_tokens = 5;
  return out;
}

struct Made {
  TokenId token;
  FinishReason finish = FinishReason::kNone;
};

struct Heard {
  std::vector<Json> chunks;  // without [DONE]
  bool done = false;
  std::string text;
  std::vector<std::string> pieces;  // text of each chunk
  std::vector<TokenId> ids;
  std::string finish;
  std::size_t stopped_at = 0;  // tokens fed when `stopped` was said; 0 = never
};

message::Token event(const Made& made, std::int32_t index, std::uint32_t choice = 0) {
  message::Token token;
  token.key.choice.value = choice;
  token.index = index;
  token.token = made.token;
  token.logprob = -0.1F * static_cast<float>(index + 1);
  token.top = {{made.token, token.logprob}, {vocabulary().byte('z'), -3.25F}};
  token.finish = made.finish;
  return token;
}

void hear(Heard& heard, const std::string& sse) {
  std::size_t at = 0;
  while (at < sse.size()) {
    const std::size_t end = sse.find("\n\n", at);
    ASSERT_NE(end, std::string::npos);
    std::string line = sse.substr(at, end - at);
    at = end + 2;
    ASSERT_FALSE(heard.done) << "something follows [DONE]";
    if (line == "data: [DONE]") {
      heard.done = true;
      continue;
    }
    const std::size_t id_end = line.find('\n');
    ASSERT_EQ(line.find("id: "), 0U) << line;
    ASSERT_NE(id_end, std::string::npos) << line;
    line.erase(0, id_end + 1);
    ASSERT_EQ(line.find("data: "), 0U) << line;
    const Json chunk = Json::parse(line.substr(6));
    heard.chunks.push_back(chunk);
    if (chunk["choices"].empty()) {
      continue;
    }
    const Json& choice = chunk["choices"][0];
    std::string piece = choice.contains("text") ? choice["text"].get<std::string>()
                                                : choice["delta"].value("content", "");
    heard.text += piece;
    heard.pieces.push_back(std::move(piece));
    if (choice.contains("token_ids")) {
      for (const Json& id : choice["token_ids"]) {
        heard.ids.push_back(id.get<TokenId>());
      }
    }
    if (!choice["finish_reason"].is_null()) {
      EXPECT_EQ(heard.finish, "");
      heard.finish = choice["finish_reason"].get<std::string>();
    }
  }
}

Heard run_stream(Answer& answer, const std::vector<Made>& tokens) {
  Heard heard;
  for (std::size_t index = 0; index < tokens.size(); ++index) {
    const Served served{"p", "d", true, index * 1000};
    const Answer::Step step =
        answer.on_token(event(tokens[index], static_cast<std::int32_t>(index)), served);
    hear(heard, step.sse);
    if (step.stopped) {
      EXPECT_EQ(heard.stopped_at, 0U);
      heard.stopped_at = index + 1;
    }
  }
  return heard;
}

Json run_whole(AnswerOptions with, const std::vector<Made>& tokens,
               std::shared_ptr<const text::StopStrings> stop) {
  with.stream = false;
  Answer answer(with, vocabulary().tokenizer(), std::move(stop));
  for (std::size_t index = 0; index < tokens.size(); ++index) {
    const Served served{"p", "d", true, index * 1000};
    EXPECT_EQ(answer.on_token(event(tokens[index], static_cast<std::int32_t>(index)), served).sse,
              "");
  }
  EXPECT_TRUE(answer.complete());
  return Json::parse(answer.body());
}

std::vector<Made> hello() {
  return {{vocabulary().byte('h')},
          {vocabulary().byte('i')},
          {vocabulary().end(), FinishReason::kStop}};
}

TEST(Answer, B09UsageInStreams) {
  for (const Endpoint endpoint : {Endpoint::kChat, Endpoint::kCompletions}) {
    for (const bool wanted : {false, true}) {
      AnswerOptions with = options(endpoint, true);
      with.include_usage = wanted;
      Answer answer(with, vocabulary().tokenizer(), stops({}));
      const Heard heard = run_stream(answer, hello());
      EXPECT_TRUE(heard.done);
      std::size_t empty = 0;
      for (std::size_t at = 0; at < heard.chunks.size(); ++at) {
        const Json& chunk = heard.chunks[at];
        if (!chunk["choices"].empty()) {
          EXPECT_FALSE(chunk.contains("usage"));
          continue;
        }
        ++empty;
        EXPECT_EQ(at, heard.chunks.size() - 1);
        const Json whole = run_whole(with, hello(), stops({}));
        EXPECT_EQ(chunk["usage"], whole["usage"]);
        EXPECT_EQ(chunk["usage"]["total_tokens"], 8);
        EXPECT_EQ(chunk["usage"]["completion_tokens"], 3) << "the end token counts";
        EXPECT_EQ(chunk["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
      }
      EXPECT_EQ(empty, wanted ? 1U : 0U);
    }
  }
}

TEST(Answer, ChatStreamShape) {
  Answer answer(options(Endpoint::kChat, true), vocabulary().tokenizer(), stops({}));
  const Heard heard = run_stream(answer, hello());
  ASSERT_EQ(heard.chunks.size(), 4U);
  const Json& first = heard.chunks.front();
  EXPECT_EQ(first["object"], "chat.completion.chunk");
  EXPECT_EQ(first["choices"][0]["delta"]["role"], "assistant");
  EXPECT_EQ(first["choices"][0]["delta"]["content"], "");
  EXPECT_TRUE(first["choices"][0]["finish_reason"].is_null());
  EXPECT_EQ(first["seed"], 42);
  EXPECT_EQ(first["baton"]["prefill_node"], "p");
  EXPECT_EQ(first["baton"]["kv_bytes"], 0);
  EXPECT_FALSE(heard.chunks[1].contains("baton"));
  EXPECT_FALSE(heard.chunks[1]["choices"][0]["delta"].contains("role"));
  const Json& last = heard.chunks.back();
  EXPECT_EQ(last["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(last["choices"][0]["delta"], Json::object());
  EXPECT_EQ(last["baton"]["path"], "split");
  EXPECT_EQ(last["baton"]["kv_bytes"], 2000);
  EXPECT_EQ(last["seed"], 42);
  EXPECT_EQ(heard.text, "hi");
}

// All that the exactness promise covers is the same in both forms.
TEST(Answer, StreamedAndWholeAgree) {
  std::vector<Made> tokens{{vocabulary().word("Wed")},
                           {vocabulary().c3()},
                           {vocabulary().a9()},
                           {vocabulary().byte('"')},
                           {vocabulary().c3()},
                           {vocabulary().space()},
                           {vocabulary().c3(), FinishReason::kLength}};
  for (const Endpoint endpoint : {Endpoint::kChat, Endpoint::kCompletions}) {
    AnswerOptions with = options(endpoint, true);
    with.logprobs = true;
    with.top_logprobs = 1;
    with.return_token_ids = true;
    with.prompt_token_ids = {1, 2, 3, 4, 5};
    Answer answer(with, vocabulary().tokenizer(), stops({}));
    const Heard heard = run_stream(answer, tokens);
    const Json whole = run_whole(with, tokens, stops({}));
    const Json& choice = whole["choices"][0];
    const bool chat = endpoint == Endpoint::kChat;
    const std::string text = chat ? choice["message"]["content"] : choice["text"];
    EXPECT_EQ(text, "Wed\u00e9\"\ufffd \ufffd");
    EXPECT_EQ(heard.text, text);
    EXPECT_EQ(heard.finish, "length");
    EXPECT_EQ(choice["finish_reason"], "length");
    EXPECT_EQ(Json(heard.ids), choice["token_ids"]);
    EXPECT_EQ(heard.ids.size(), tokens.size());
    EXPECT_EQ(chat ? whole["prompt_token_ids"] : choice["prompt_token_ids"], Json({1, 2, 3, 4, 5}));
    EXPECT_EQ(chat ? heard.chunks[0]["prompt_token_ids"]
                   : heard.chunks[0]["choices"][0]["prompt_token_ids"],
              Json({1, 2, 3, 4, 5}));
    const char* list = chat ? "content" : "token_logprobs";
    Json joined = Json::array();
    for (const Json& chunk : heard.chunks) {
      const Json& logprobs = chunk["choices"][0]["logprobs"];
      if (!logprobs.is_null()) {
        joined.insert(joined.end(), logprobs[list].begin(), logprobs[list].end());
      }
    }
    EXPECT_EQ(joined, choice["logprobs"][list]);
    EXPECT_EQ(joined.size(), tokens.size());
  }
}

TEST(Answer, ChatLogprobs) {
  AnswerOptions with = options(Endpoint::kChat, false);
  with.logprobs = true;
  with.top_logprobs = 2;
  const Json whole = run_whole(with, {{vocabulary().c3(), FinishReason::kLength}}, stops({}));
  const Json& entry = whole["choices"][0]["logprobs"]["content"][0];
  EXPECT_EQ(entry["token"], "\ufffd");
  EXPECT_EQ(entry["bytes"], Json({0xc3}));
  EXPECT_EQ(entry["logprob"].get<float>(), -0.1F) << "shortest digits that read back the same bits";
  ASSERT_EQ(entry["top_logprobs"].size(), 2U);
  EXPECT_EQ(entry["top_logprobs"][1]["token"], "z");
  EXPECT_EQ(entry["top_logprobs"][1]["logprob"], -3.25);
}

TEST(Answer, LegacyLogprobs) {
  AnswerOptions with = options(Endpoint::kCompletions, false);
  with.logprobs = true;
  const auto tokens = hello();
  const Json none = run_whole(with, tokens, stops({}))["choices"][0]["logprobs"];
  EXPECT_EQ(none["tokens"], Json({"h", "i", "<|end|>"}));
  EXPECT_EQ(none["text_offset"], Json({0, 1, 2}));
  EXPECT_EQ(none["top_logprobs"][0].size(), 1U);
  with.top_logprobs = 2;
  const Json two = run_whole(with, tokens, stops({}))["choices"][0]["logprobs"];
  EXPECT_EQ(two["top_logprobs"][0]["z"], -3.25);
}

TEST(Answer, ImpossibleLogprobsStayNumbers) {
  for (const float bad : {-std::numeric_limits<float>::infinity(), std::nanf("")}) {
    AnswerOptions with = options(Endpoint::kChat, false);
    with.logprobs = true;
    Answer answer(with, vocabulary().tokenizer(), stops({}));
    message::Token token = event({vocabulary().byte('a'), FinishReason::kLength}, 0);
    token.logprob = bad;
    answer.on_token(token, {});
    EXPECT_EQ(Json::parse(answer.body())["choices"][0]["logprobs"]["content"][0]["logprob"],
              -9999.0);
  }
}

std::vector<Made> weekdays(const std::vector<std::string>& words) {
  std::vector<Made> out;
  for (const std::string& word : words) {
    out.push_back({vocabulary().word(word)});
  }
  return out;
}

TEST(Answer, B10StopStringOverSeveralTokens) {
  auto tokens = weekdays({"\xc4\xa0X", "Wed", "nesday", ",", "\xc4\xa0Thurs", "day", "Wed"});
  tokens.back().finish = FinishReason::kLength;  // overrun: the stop came before
  for (const Endpoint endpoint : {Endpoint::kChat, Endpoint::kCompletions}) {
    AnswerOptions with = options(endpoint, true);
    with.include_usage = true;
    Answer answer(with, vocabulary().tokenizer(), stops({"Wednesday, Thursday"}));
    const Heard heard = run_stream(answer, tokens);
    EXPECT_EQ(heard.text, " X");
    EXPECT_EQ(heard.finish, "stop");
    EXPECT_EQ(heard.stopped_at, 6U);
    EXPECT_EQ(heard.chunks.back()["usage"]["completion_tokens"], 6) << "overrun tokens are nowhere";
    const Json whole = run_whole(with, tokens, stops({"Wednesday, Thursday"}));
    EXPECT_EQ(whole["usage"], heard.chunks.back()["usage"]);
    EXPECT_EQ(whole["choices"][0]["finish_reason"], "stop");
  }
  // No match any more: what was held comes out unchanged, at once.
  Answer answer(options(Endpoint::kChat, true), vocabulary().tokenizer(),
                stops({"Wednesday, Xylo"}));
  const Heard heard = run_stream(answer, weekdays({"Wed", "nesday", ",", "\xc4\xa0Thurs"}));
  EXPECT_EQ(heard.text, "Wednesday, Thurs");
  EXPECT_EQ(heard.pieces.back(), "Wednesday, Thurs");
}

TEST(Answer, StopStringOnTheFirstTokenAndAtTheLimit) {
  const std::vector<Made> first{{vocabulary().word("Wed")}};
  Answer answer(options(Endpoint::kChat, true), vocabulary().tokenizer(), stops({"Wed"}));
  const Heard heard = run_stream(answer, first);
  EXPECT_EQ(heard.text, "");
  EXPECT_EQ(heard.stopped_at, 1U);
  EXPECT_TRUE(heard.done);
  const Json whole = run_whole(options(Endpoint::kChat, false),
                               {{vocabulary().word("Wed"), FinishReason::kLength}}, stops({"Wed"}));
  EXPECT_EQ(whole["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(whole["choices"][0]["message"]["content"], "");
}

TEST(Answer, HeldTextComesOutAtTheEnd) {
  auto tokens = weekdays({"Wed"});
  tokens.push_back({vocabulary().end(), FinishReason::kStop});
  Answer answer(options(Endpoint::kChat, true), vocabulary().tokenizer(), stops({"Wednesday"}));
  EXPECT_EQ(run_stream(answer, tokens).text, "Wed");
}

TEST(Answer, B01EndTokenFirst) {
  const std::vector<Made> tokens{{vocabulary().end(), FinishReason::kStop}};
  AnswerOptions with = options(Endpoint::kChat, true);
  with.include_usage = true;
  Answer answer(with, vocabulary().tokenizer(), stops({}));
  const Heard heard = run_stream(answer, tokens);
  EXPECT_EQ(heard.text, "");
  EXPECT_EQ(heard.finish, "stop");
  EXPECT_TRUE(heard.done);
  const Json whole = run_whole(with, tokens, stops({}));
  EXPECT_EQ(whole["choices"][0]["message"]["content"], "");
  EXPECT_EQ(whole["usage"], heard.chunks.back()["usage"]);
}

TEST(Answer, SeveralChoices) {
  AnswerOptions with = options(Endpoint::kChat, true);
  with.n = 2;
  with.include_usage = true;
  Answer answer(with, vocabulary().tokenizer(), stops({}));
  Heard heard;
  const Made a{vocabulary().byte('a')};
  const Made b{vocabulary().byte('b'), FinishReason::kLength};
  hear(heard, answer.on_token(event(a, 0, 1), {}).sse);
  heard.finish.clear();
  hear(heard, answer.on_token(event(b, 0, 0), {}).sse);
  heard.finish.clear();
  EXPECT_FALSE(heard.done);
  EXPECT_FALSE(answer.complete());
  EXPECT_EQ(answer.on_token(event(b, 0, 7), {}).sse, "") << "no such choice";
  hear(heard, answer.on_token(event(b, 1, 1), {}).sse);
  EXPECT_TRUE(heard.done);
  EXPECT_EQ(heard.chunks.back()["usage"]["completion_tokens"], 3);
  EXPECT_EQ(heard.chunks.back()["usage"]["prompt_tokens"], 5);
}

}  // namespace
}  // namespace baton::api
