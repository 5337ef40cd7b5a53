// The id of an event, and answers that go on from each of their events: what follows is, byte for
// byte, what would have followed.
#include "baton/api/resume.h"

#include "baton/api/answer.h"
#include "baton/api/test_vocabulary.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>

namespace baton::api {
namespace {

using message::FinishReason;

EventId sample_id() {
  EventId id;
  id.answer = {0x0123456789abcdefULL, 0xfedcba9876543210ULL};
  id.created_s = 1700000000;
  id.seed = -5;
  id.max_tokens = 64;
  id.request_digest = 0xaULL;
  id.nodes_digest = 0xffffffffffffffffULL;
  id.events = {3, 0, 12};
  return id;
}

std::string text_of(const EventId& id) {
  std::string out = event_id_stem(id);
  append_events_out(out, id.events);
  return out;
}

Result<std::optional<EventId>> read(const std::string& value) {
  http::HttpRequest head;
  head.headers = {{"accept", "*/*"}, {"last-event-id", value}};
  return last_event_id(head);
}

// ---- the text ----

TEST(EventId, Text) {
  EXPECT_EQ(text_of(sample_id()),
            "0123456789abcdeffedcba9876543210.1700000000.-5.64.000000000000000a.ffffffffffffffff."
            "3-0-12");
  const auto back = read(text_of(sample_id()));
  ASSERT_TRUE(back.has_value());
  ASSERT_TRUE(back->has_value());
  EXPECT_EQ(**back, sample_id());
}

TEST(EventId, TheLongestFits) {
  EventId id = sample_id();
  id.created_s = std::numeric_limits<std::int64_t>::max();
  id.seed = std::numeric_limits<std::int64_t>::min();
  id.max_tokens = std::numeric_limits<std::int32_t>::max();
  id.events.assign(kMaxChoices, std::numeric_limits<std::uint32_t>::max());
  const std::string text = text_of(id);
  EXPECT_LE(text.size(), kMaxEventIdBytes);
  const auto back = read(text);
  ASSERT_TRUE(back.has_value());
  EXPECT_EQ(**back, id);
}

TEST(EventId, AbsentAndEmptyMeanFromTheStart) {
  const auto absent = last_event_id({});
  ASSERT_TRUE(absent.has_value());
  EXPECT_FALSE(absent->has_value());
  const auto empty = read("");
  ASSERT_TRUE(empty.has_value());
  EXPECT_FALSE(empty->has_value());
}

void expect_refused(const std::string& value) {
  const auto result = read(value);
  ASSERT_FALSE(result.has_value()) << value;
  EXPECT_EQ(result.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(result.error().param, "Last-Event-ID");
  EXPECT_NE(result.error().message.find("Last-Event-ID"), std::string::npos);
}

TEST(EventId, EverythingElseIsRefused) {
  const std::string good = text_of(sample_id());
  const std::string stem = event_id_stem(sample_id());
  for (std::size_t length = 1; length <= stem.size(); ++length) {
    expect_refused(good.substr(0, length));
  }
  // Each byte replaced: refused, or read as what is then written.
  for (std::size_t at = 0; at < good.size(); ++at) {
    for (const char c : {'\0', ' ', '-', '+', '.', '0', '9', 'a', 'A', 'x', '\x7f', '\xff'}) {
      std::string text = good;
      text[at] = c;
      const auto result = read(text);
      if (result.has_value()) {
        EXPECT_EQ(text_of(**result), text);
      }
    }
  }
  EventId many = sample_id();
  many.events.assign(kMaxChoices + 1, 1);
  EventId huge = sample_id();
  huge.events.assign(1000, 1);
  EventId old = sample_id();
  old.created_s = -1;
  EventId none = sample_id();
  none.max_tokens = 0;
  for (const std::string& text : {text_of(many),
                                  text_of(huge),
                                  text_of(old),
                                  text_of(none),
                                  stem,
                                  stem + "01",
                                  stem + "1-",
                                  stem + "-1",
                                  stem + "1--1",
                                  stem + "+1",
                                  stem + "4294967296",
                                  stem + "1.",
                                  stem + " 1",
                                  " " + good,
                                  good + " ",
                                  good + "\n",
                                  std::string("7"),
                                  std::string("chatcmpl-1"),
                                  std::string(8000, '1'),
                                  std::string(8000, '.'),
                                  std::string(299, '-')}) {
    expect_refused(text);
  }
}

TEST(EventId, OnlyOnce) {
  http::HttpRequest head;
  head.headers = {{"last-event-id", text_of(sample_id())}, {"last-event-id", ""}};
  const auto result = last_event_id(head);
  ASSERT_FALSE(result.has_value());
  EXPECT_EQ(result.error().param, "Last-Event-ID");
}

// ---- whose it is ----

TEST(Resume, TakesWhatTheFirstOwnerChose) {
  GenerationRequest request;
  request.stream = true;
  request.n = 3;
  ASSERT_TRUE(resume_from(sample_id(), request).has_value());
  EXPECT_EQ(request.seed, -5);
  EXPECT_EQ(request.max_tokens, 64);
  request.n = 2;
  EXPECT_EQ(resume_from(sample_id(), request).error().param, "Last-Event-ID");
  request.n = 3;
  request.stream = false;
  EXPECT_EQ(resume_from(sample_id(), request).error().param, "Last-Event-ID");
}

TEST(Resume, ASeedIsDrawnOnceAndCarried) {
  GenerationRequest request;
  request.n = 2;
  const EventId drawn = new_event_id(request, {1, 2}, 5);
  EXPECT_NE(drawn.seed, new_event_id(request, {1, 2}, 5).seed);
  EXPECT_EQ(drawn.events, (std::vector<std::uint32_t>{0, 0}));
  request.seed = 7;
  EXPECT_EQ(new_event_id(request, {1, 2}, 5).seed, 7);
}

TEST(Resume, TheDigestCoversTheRequest) {
  message::Submit submit;
  submit.prompt = {1, 2, 3};
  submit.max_tokens = 9;
  const EventId id = sample_id();
  const auto of = [&](Endpoint endpoint, std::string_view body, std::string_view model,
                      const message::Submit& with, const EventId& named) {
    return request_digest(endpoint, body, model, with, named);
  };
  const std::uint64_t one = of(Endpoint::kChat, "{}", "m", submit, id);
  EXPECT_EQ(of(Endpoint::kChat, "{}", "m", submit, id), one);
  EXPECT_NE(of(Endpoint::kCompletions, "{}", "m", submit, id), one);
  EXPECT_NE(of(Endpoint::kChat, "{ }", "m", submit, id), one);
  EXPECT_NE(of(Endpoint::kChat, "{}m", "", submit, id), one);
  message::Submit other = submit;
  other.prompt.push_back(4);  // another template, or another tokenizer
  EXPECT_NE(of(Endpoint::kChat, "{}", "m", other, id), one);
  other = submit;
  other.max_tokens = 10;
  EXPECT_NE(of(Endpoint::kChat, "{}", "m", other, id), one);
  other = submit;
  other.sampling.seed = 1;
  EXPECT_NE(of(Endpoint::kChat, "{}", "m", other, id), one);
  EventId renamed = id;
  renamed.answer.low ^= 1;
  EXPECT_NE(of(Endpoint::kChat, "{}", "m", submit, renamed), one);
  renamed = id;
  ++renamed.created_s;
  EXPECT_NE(of(Endpoint::kChat, "{}", "m", submit, renamed), one);
  renamed = id;
  renamed.events = {100};  // how far it came is not whose it is
  EXPECT_EQ(of(Endpoint::kChat, "{}", "m", submit, renamed), one);
}

TEST(Resume, OnlyAtNodesThatComputeAlike) {
  EventId id = sample_id();
  id.nodes_digest = nodes_digest("numerics=3");
  const std::vector<std::string> tags{"numerics=2", "numerics=3"};
  EXPECT_EQ(resumed_tag(id, id.request_digest, tags).value(), "numerics=3");
  const auto other = resumed_tag(id, id.request_digest + 1, tags);
  EXPECT_EQ(other.error().param, "Last-Event-ID");
  EXPECT_NE(other.error().message.find("same body"), std::string::npos);
  const auto nobody = resumed_tag(id, id.request_digest, std::span(tags).first(1));
  EXPECT_EQ(nobody.error().param, "Last-Event-ID");
  EXPECT_NE(nobody.error().message.find("model"), std::string::npos);
}

// ---- answers that go on ----

struct Event {
  std::string bytes;  // as sent
  std::string id;     // empty: [DONE]
};

std::vector<Event> events_of(const std::string& sse) {
  std::vector<Event> out;
  for (std::size_t at = 0; at < sse.size();) {
    const std::size_t end = sse.find("\n\n", at) + 2;
    Event event{sse.substr(at, end - at), {}};
    if (event.bytes.starts_with("id: ")) {
      event.id = event.bytes.substr(4, event.bytes.find('\n') - 4);
    }
    out.push_back(std::move(event));
    at = end;
  }
  return out;
}

struct Heard {
  std::string sse;
  bool past_end = false;
};

// Feeds the tokens as they come, with their choice in each, to an answer that begins after `from`.
Heard feed(AnswerOptions options, const std::vector<message::Token>& tokens,
           const std::string& from, std::vector<std::string> stops) {
  if (!from.empty()) {
    options.event_id = **read(from);
  }
  Answer answer(options, vocabulary().tokenizer(),
                std::make_shared<text::StopStrings>(*text::StopStrings::create(std::move(stops))));
  Heard heard;
  for (const message::Token& token : tokens) {
    heard.sse += answer.on_token(token, {"p", "d", true, 0, "tag"}).sse;
  }
  EXPECT_TRUE(answer.complete());
  heard.past_end = answer.past_end();
  return heard;
}

// Texts with unfinished characters, pieces of the stop string "Wednesday", and its near misses.
std::vector<message::Token> draw_tokens(std::mt19937& random, std::uint32_t choices) {
  const Vocabulary& words = vocabulary();
  const std::vector<TokenId> pool{words.word("Wed"), words.word("nesday"), words.byte('a'),
                                  words.c3(),        words.a9(),           words.space(),
                                  words.word(","),   words.byte('W')};
  std::vector<message::Token> out;
  std::vector<std::int32_t> next(choices);
  std::vector<std::int32_t> length(choices);
  for (auto& count : length) {
    count = 1 + static_cast<std::int32_t>(random() % 9);
  }
  for (std::uint32_t open = choices; open > 0;) {
    const auto choice = static_cast<std::uint32_t>(random() % choices);
    if (next[choice] == length[choice]) {
      continue;
    }
    message::Token token;
    token.key.choice.value = choice;
    token.index = next[choice]++;
    token.token = pool[random() % pool.size()];
    token.logprob = -0.5F * static_cast<float>(token.index);
    token.cached_tokens = 32;
    if (next[choice] == length[choice]) {
      --open;
      token.finish = random() % 2 == 0 ? FinishReason::kStop : FinishReason::kLength;
      token.token = token.finish == FinishReason::kStop ? words.end() : token.token;
    }
    out.push_back(std::move(token));
  }
  return out;
}

AnswerOptions draw_options(std::mt19937& random, std::uint32_t choices) {
  AnswerOptions options;
  options.endpoint = random() % 2 == 0 ? Endpoint::kChat : Endpoint::kCompletions;
  options.event_id = sample_id();
  options.event_id.nodes_digest = nodes_digest("tag");
  options.event_id.events.assign(choices, 0);
  options.model = "smol";
  options.n = choices;
  options.stream = true;
  options.include_usage = random() % 2 == 0;
  options.logprobs = random() % 2 == 0;
  options.return_token_ids = random() % 3 == 0;
  return options;
}

TEST(Resume, AfterEachEventTheRestFollows) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    const std::uint32_t choices = round % 2 == 0 ? 1 : 3;
    const AnswerOptions options = draw_options(random, choices);
    const auto tokens = draw_tokens(random, choices);
    const Heard whole = feed(options, tokens, "", {"Wednesday"});
    EXPECT_FALSE(whole.past_end);
    std::string rest = whole.sse;
    std::vector<std::string> ids;
    for (const Event& event : events_of(whole.sse)) {
      rest.erase(0, event.bytes.size());
      if (event.id.empty()) {
        EXPECT_EQ(event.bytes, "data: [DONE]\n\n");
        EXPECT_EQ(rest, "");
        continue;
      }
      EXPECT_EQ(std::count(ids.begin(), ids.end(), event.id), 0) << event.id;
      ids.push_back(event.id);
      const Heard resumed = feed(options, tokens, event.id, {"Wednesday"});
      ASSERT_EQ(resumed.sse, rest) << event.id;
      EXPECT_FALSE(resumed.past_end);
    }
  }
}

// Choices come in another order the second time: each goes on where it was.
TEST(Resume, ChoicesMayComeInAnotherOrder) {
  std::mt19937 random(2);
  for (int round = 0; round < 100; ++round) {
    const AnswerOptions options = draw_options(random, 3);
    const auto tokens = draw_tokens(random, 3);
    auto reordered = tokens;
    std::stable_sort(reordered.begin(), reordered.end(), [](const auto& a, const auto& b) {
      return a.key.choice.value > b.key.choice.value;
    });
    // By choice, without ids (they tell of the others too) and the usage.
    const auto by_choice = [](const std::string& sse, std::vector<std::string>& out) {
      out.resize(3);
      for (const Event& event : events_of(sse)) {
        const std::string data = event.bytes.substr(event.bytes.find("data: "));
        for (std::size_t index = 0; index < 3; ++index) {
          if (data.find("\"index\":" + std::to_string(index)) != std::string::npos) {
            out[index] += data;
          }
        }
      }
    };
    std::vector<std::string> expected;
    by_choice(feed(options, tokens, "", {}).sse, expected);
    std::string before;
    for (const Event& event : events_of(feed(options, tokens, "", {}).sse)) {
      before += event.bytes;
      if (event.id.empty()) {
        continue;
      }
      std::vector<std::string> joined;
      by_choice(before + feed(options, reordered, event.id, {}).sse, joined);
      ASSERT_EQ(joined, expected) << event.id;
    }
  }
}

TEST(Resume, EventsThatNeverWere) {
  std::mt19937 random(3);
  AnswerOptions options = draw_options(random, 2);
  const auto tokens = draw_tokens(random, 2);
  const auto events = events_of(feed(options, tokens, "", {}).sse);
  EventId id = **read(events[events.size() - 2].id);
  for (std::size_t choice = 0; choice < 2; ++choice) {
    EventId beyond = id;
    ++beyond.events[choice];
    const Heard heard = feed(options, tokens, text_of(beyond), {});
    EXPECT_TRUE(heard.past_end);
    EXPECT_EQ(heard.sse, "") << "no [DONE]: it would look complete";
  }
  EXPECT_EQ(past_the_end().param, "Last-Event-ID");
}

}  // namespace
}  // namespace baton::api
