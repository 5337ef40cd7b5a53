// Request bodies: what is taken, what is refused, and that the field is named.
#include "baton/api/request.h"

#include "baton/api/prompt.h"

#include <gtest/gtest.h>

namespace baton::api {
namespace {

constexpr std::int32_t kVocabulary = 1000;

ParseLimits limits() {
  ParseLimits out;
  out.vocabulary_tokens = kVocabulary;
  out.models = {"smol"};
  return out;
}
Result<GenerationRequest> chat(const std::string& fields) {
  return parse_chat(R"({"messages":[{"role":"user","content":"hi"}])" +
                        (fields.empty() ? "" : "," + fields) + "}",
                    limits());
}
Result<GenerationRequest> completion(const std::string& fields) {
  return parse_completion("{\"prompt\":\"hi\"" + (fields.empty() ? "" : "," + fields) + "}",
                          limits());
}
const std::vector<ChatMessage>& messages(const Result<GenerationRequest>& request) {
  return std::get<std::vector<ChatMessage>>(request->prompt);
}

TEST(Request, ReadsEverything) {
  const auto request = chat(
      R"("model":"smol","temperature":0.5,"top_p":0.9,"top_k":40,"min_p":0.05,"typical_p":0.9,
         "presence_penalty":-2,"frequency_penalty":2,"repetition_penalty":1.1,"seed":42,
         "max_tokens":7,"min_tokens":3,"stop":["a","bc"],"stop_token_ids":[5,999],
         "ignore_eos":true,"logit_bias":{"0":-100,"999":100.0},"n":2,"priority":-3,"stream":true,
         "stream_options":{"include_usage":true},"logprobs":true,"top_logprobs":4,
         "return_token_ids":true,"user":"u","cache_salt":"s","unknown":{"a":[1]})");
  ASSERT_TRUE(request.has_value()) << request.error().message;
  EXPECT_EQ(request->model, "smol");
  EXPECT_FLOAT_EQ(request->sampling.temperature, 0.5F);
  EXPECT_FLOAT_EQ(request->sampling.top_p, 0.9F);
  EXPECT_EQ(request->sampling.top_k, 40);
  EXPECT_FLOAT_EQ(request->sampling.repetition_penalty, 1.1F);
  EXPECT_EQ(request->seed, 42);
  EXPECT_EQ(request->max_tokens, 7);
  EXPECT_EQ(request->min_tokens, 3);
  EXPECT_EQ(request->stop->strings(), (std::vector<std::string>{"a", "bc"}));
  EXPECT_EQ(request->stop_token_ids, (std::vector<TokenId>{5, 999}));
  EXPECT_TRUE(request->ignore_eos);
  EXPECT_EQ(request->sampling.logit_bias.size(), 2U);
  EXPECT_EQ(request->n, 2U);
  EXPECT_EQ(request->priority, -3);
  EXPECT_TRUE(request->stream && request->include_usage && request->logprobs);
  EXPECT_EQ(request->sampling.top_logprobs, 4);
  EXPECT_TRUE(request->return_token_ids);
  EXPECT_EQ(request->user, "u");
  EXPECT_EQ(request->cache_salt, "s");
}

TEST(Request, Defaults) {
  const auto request = chat("");
  ASSERT_TRUE(request.has_value());
  EXPECT_EQ(request->sampling.temperature, 1.0F);
  EXPECT_EQ(request->sampling.top_logprobs, -1);
  EXPECT_FALSE(request->seed || request->max_tokens || request->stream || request->logprobs);
  EXPECT_EQ(request->n, 1U);
  EXPECT_TRUE(request->stop->empty());
}

struct Refusal {
  const char* fields;
  const char* param;
};

// Each body is refused with 400 and names its field.
TEST(Request, WrongValuesNameTheField) {
  for (
      const Refusal& row : {
          Refusal{R"("temperature":"1")", "temperature"},
          {R"("temperature":-0.1)", "temperature"},
          {R"("temperature":2.1)", "temperature"},
          {R"("temperature":true)", "temperature"},
          {R"("temperature":1e999)", "temperature"},
          {R"("temperature":[1])", "temperature"},
          {R"("top_p":0)", "top_p"},
          {R"("top_p":1.5)", "top_p"},
          {R"("top_k":1.5)", "top_k"},
          {R"("top_k":-2)", "top_k"},
          {R"("min_p":2)", "min_p"},
          {R"("presence_penalty":3)", "presence_penalty"},
          {R"("frequency_penalty":-3)", "frequency_penalty"},
          {R"("repetition_penalty":0)", "repetition_penalty"},
          {R"("seed":"x")", "seed"},
          {R"("seed":1.5)", "seed"},
          {R"("seed":18446744073709551615)", "seed"},
          {R"("seed":99999999999999999999999)", "seed"},
          {R"("max_tokens":0)", "max_tokens"},
          {R"("max_tokens":-1)", "max_tokens"},
          {R"("max_tokens":2147483648)", "max_tokens"},
          {R"("max_tokens":"64")", "max_tokens"},
          {R"("max_completion_tokens":0)", "max_completion_tokens"},
          {R"("min_tokens":-1)", "min_tokens"},
          {R"("min_tokens":9,"max_tokens":8)", "min_tokens"},
          {R"("stop":5)", "stop"},
          {R"("stop":["a",null])", "stop"},
          {R"("stop":[""])", "stop"},
          {R"("stop":["1","2","3","4","5","6","7","8","9","10","11","12","13","14","15","16","17"])",
           "stop"},
          {R"("stop_token_ids":[1000])", "stop_token_ids"},
          {R"("stop_token_ids":[-1])", "stop_token_ids"},
          {R"("stop_token_ids":7)", "stop_token_ids"},
          {R"("ignore_eos":1)", "ignore_eos"},
          {R"("n":0)", "n"},
          {R"("n":17)", "n"},
          {R"("stream":"true")", "stream"},
          {R"("stream_options":true)", "stream_options"},
          {R"("stream_options":{"include_usage":"yes"})", "stream_options.include_usage"},
          {R"("return_token_ids":0)", "return_token_ids"},
          {R"("model":5)", "model"},
          {R"("user":{})", "user"},
          {R"("cache_salt":"")", "cache_salt"},
          {R"("response_format":"text")", "response_format"},
          {R"("response_format":{"type":"json_object"})", "response_format"},
          {R"("echo":true)", "echo"},
          {R"("best_of":2)", "best_of"},
          {R"("skip_special_tokens":false)", "skip_special_tokens"},
          {R"("grammar":"root ::= x")", "grammar"},
      }) {
    for (const bool is_chat : {true, false}) {
      const auto request = is_chat ? chat(row.fields) : completion(row.fields);
      ASSERT_FALSE(request.has_value()) << row.fields;
      EXPECT_EQ(request.error().param, row.param) << row.fields;
      EXPECT_TRUE(request.error().code == ErrorCode::kInvalidArgument ||
                  request.error().code == ErrorCode::kUnsupported);
      EXPECT_NE(request.error().message.find(row.param), std::string::npos)
          << request.error().message;
    }
  }
}

TEST(Request, FieldsOfOneEndpoint) {
  for (const Refusal& row : {
           Refusal{R"("logprobs":5)", "logprobs"},
           {R"("logprobs":true,"top_logprobs":21)", "top_logprobs"},
           {R"("top_logprobs":2)", "top_logprobs"},
           {R"("tools":[{"type":"function"}])", "tools"},
           {R"("tool_choice":"required")", "tool_choice"},
           {R"("tool_choice":{"type":"function"})", "tool_choice"},
           {R"("functions":[{"name":"x"}])", "functions"},
           {R"("modalities":["text","audio"])", "modalities"},
           {R"("chat_template":"x")", "chat_template"},
       }) {
    const auto request = chat(row.fields);
    ASSERT_FALSE(request.has_value()) << row.fields;
    EXPECT_EQ(request.error().param, row.param) << row.fields;
  }
  EXPECT_TRUE(chat(R"("tools":[],"tool_choice":"auto","modalities":["text"])").has_value());
  EXPECT_TRUE(chat(R"("response_format":{"type":"text"},"top_logprobs":0)").has_value());
  EXPECT_EQ(completion(R"("suffix":"x")").error().param, "suffix");
  EXPECT_EQ(completion(R"("logprobs":21)").error().param, "logprobs");
  EXPECT_EQ(completion(R"("logprobs":true)").error().param, "logprobs");
  const auto legacy = completion(R"("logprobs":0)");
  ASSERT_TRUE(legacy.has_value());
  EXPECT_TRUE(legacy->logprobs);
  EXPECT_EQ(legacy->sampling.top_logprobs, 0);
}

TEST(Request, B02BothLimits) {
  for (const char* fields : {R"("max_tokens":64,"max_completion_tokens":8)",
                             R"("max_completion_tokens":8,"max_tokens":64)",
                             R"("max_completion_tokens":8)", R"("max_tokens":8)"}) {
    EXPECT_EQ(chat(fields)->max_tokens, 8) << fields;
    EXPECT_EQ(completion(fields)->max_tokens, 8) << fields;
  }
}

TEST(Request, B11NullIsAbsent) {
  const std::vector<std::string> optional{"model",
                                          "temperature",
                                          "top_p",
                                          "top_k",
                                          "min_p",
                                          "typical_p",
                                          "presence_penalty",
                                          "frequency_penalty",
                                          "repetition_penalty",
                                          "seed",
                                          "max_tokens",
                                          "max_completion_tokens",
                                          "min_tokens",
                                          "stop",
                                          "stop_token_ids",
                                          "ignore_eos",
                                          "logit_bias",
                                          "n",
                                          "priority",
                                          "stream",
                                          "stream_options",
                                          "return_token_ids",
                                          "user",
                                          "cache_salt",
                                          "response_format",
                                          "best_of",
                                          "echo",
                                          "suffix",
                                          "logprobs",
                                          "top_logprobs",
                                          "tools",
                                          "tool_choice",
                                          "functions",
                                          "function_call",
                                          "modalities",
                                          "audio",
                                          "parallel_tool_calls",
                                          "metadata",
                                          "store"};
  std::string all;
  for (const std::string& name : optional) {
    const std::string field = "\"" + name + "\":null";
    all += (all.empty() ? "" : ",") + field;
    EXPECT_TRUE(chat(field).has_value()) << name;
    EXPECT_TRUE(completion(field).has_value()) << name;
  }
  for (const auto& request : {chat(all), completion(all)}) {
    ASSERT_TRUE(request.has_value()) << request.error().message;
    EXPECT_FALSE(request->seed || request->max_tokens || request->stream || request->logprobs);
    EXPECT_EQ(request->sampling.temperature, 1.0F);
  }
  EXPECT_TRUE(chat(R"("stream_options":{"include_usage":null})").has_value());
  EXPECT_EQ(parse_chat(R"({"messages":null})", limits()).error().param, "messages");
  EXPECT_EQ(parse_chat(R"({})", limits()).error().param, "messages");
  EXPECT_EQ(parse_completion(R"({"prompt":null})", limits()).error().param, "prompt");
  EXPECT_EQ(parse_completion(R"({"messages":[]})", limits()).error().param, "prompt");
}

Result<GenerationRequest> with_content(const std::string& role, const std::string& content) {
  return parse_chat(R"({"messages":[{"role":")" + role + R"(","content":)" + content + "}]}",
                    limits());
}

TEST(Request, B12ContentParts) {
  for (const char* role : {"user", "system", "assistant"}) {
    const auto one = with_content(role, R"([{"type":"text","text":"a\u00e9"}])");
    ASSERT_TRUE(one.has_value()) << one.error().message;
    EXPECT_EQ(messages(one)[0].content, messages(with_content(role, R"("a\u00e9")"))[0].content);
    const auto two =
        with_content(role, R"([{"type":"text","text":"a"},{"type":"text","text":"b"}])");
    EXPECT_EQ(messages(two)[0].content, "a\nb");
    EXPECT_EQ(messages(with_content(role, "[]"))[0].content, "");
    const auto image = with_content(
        role, R"([{"type":"text","text":"a"},{"type":"image_url","image_url":{"url":"x"}}])");
    ASSERT_FALSE(image.has_value());
    EXPECT_EQ(image.error().param, "messages[0].content[1]");
    EXPECT_NE(image.error().message.find("image_url"), std::string::npos);
    EXPECT_EQ(with_content(role, R"({"type":"text"})").error().param, "messages[0].content");
    EXPECT_EQ(with_content(role, R"([5])").error().param, "messages[0].content[0]");
    EXPECT_EQ(with_content(role, R"([{"text":"x"}])").error().param, "messages[0].content[0]");
    EXPECT_EQ(with_content(role, R"([{"type":"text","text":5}])").error().param,
              "messages[0].content[0].text");
    EXPECT_EQ(with_content(role, "5").error().param, "messages[0].content");
  }
  EXPECT_TRUE(with_content("assistant", "null").has_value());
  EXPECT_EQ(with_content("user", "null").error().param, "messages[0].content");
  EXPECT_EQ(with_content("robot", "\"x\"").error().param, "messages[0].role");
}

TEST(Request, MessagesThatAreNone) {
  for (const auto& [body, param] :
       {std::pair{R"({"messages":"hi"})", "messages"}, std::pair{R"({"messages":[]})", "messages"},
        std::pair{R"({"messages":[5]})", "messages[0]"},
        std::pair{R"({"messages":[{"content":"x"}]})", "messages[0].role"},
        std::pair{R"({"messages":[{"role":5,"content":"x"}]})", "messages[0].role"},
        std::pair{R"({"messages":[{"role":"assistant","tool_calls":[{}]}]})",
                  "messages[0].tool_calls"}}) {
    EXPECT_EQ(parse_chat(body, limits()).error().param, param) << body;
  }
}

TEST(Request, PromptForms) {
  const auto parse = [](const std::string& prompt) {
    return parse_completion("{\"prompt\":" + prompt + "}", limits());
  };
  EXPECT_EQ(std::get<std::string>(parse(R"("hi")")->prompt), "hi");
  EXPECT_EQ(std::get<std::string>(parse(R"(["hi"])")->prompt), "hi");
  EXPECT_EQ(std::get<std::vector<TokenId>>(parse("[1,999]")->prompt),
            (std::vector<TokenId>{1, 999}));
  EXPECT_EQ(std::get<std::vector<TokenId>>(parse("[[1,2]]")->prompt), (std::vector<TokenId>{1, 2}));
  for (const char* bad : {R"("")", "[]", "[[]]", R"([""])", R"(["a","b"])", "[[1],[2]]", "{}", "5",
                          "true", R"([1,"a"])", R"(["a",1])", "[1.5]", "[null]", "[[[1]]]"}) {
    const auto request = parse(bad);
    ASSERT_FALSE(request.has_value()) << bad;
    EXPECT_EQ(request.error().param, "prompt") << bad;
  }
}

TEST(Request, B23IdsOutsideOfTheVocabulary) {
  for (const char* key : {"1000", "-1", "2147483648", "x", "1.5", "", " 1", "1 ", "0x1", "+1"}) {
    const auto request = chat("\"logit_bias\":{\"" + std::string(key) + "\":1}");
    ASSERT_FALSE(request.has_value()) << key;
    EXPECT_EQ(request.error().param, "logit_bias");
  }
  for (const char* value : {"null", "\"5\"", "1e999", "-1e999", "100.5", "-101", "[]", "true"}) {
    const auto request = chat("\"logit_bias\":{\"5\":" + std::string(value) + "}");
    ASSERT_FALSE(request.has_value()) << value;
    EXPECT_EQ(request.error().param, "logit_bias") << value;
  }
  EXPECT_EQ(chat(R"("logit_bias":{"999":5})")->sampling.logit_bias[0].first, 999);
  for (const char* ids : {"[1000]", "[-1]", "[4294967295]", "[18446744073709551616]"}) {
    EXPECT_EQ(parse_completion("{\"prompt\":" + std::string(ids) + "}", limits()).error().param,
              "prompt");
    EXPECT_EQ(chat("\"stop_token_ids\":" + std::string(ids)).error().param, "stop_token_ids");
  }
}

TEST(Request, B40DeepNesting) {
  for (const std::size_t depth : {65U, 3000U, 10000U, 100000U}) {
    const std::string open(depth, '[');
    const std::string arrays = open + std::string(depth, ']');
    std::string objects;
    for (std::size_t level = 0; level < depth; ++level) {
      objects += "{\"a\":";
    }
    objects += "1" + std::string(depth, '}');
    for (const std::string& fields :
         {"\"tools\":" + arrays, "\"unknown\":" + objects, "\"unknown\":" + arrays}) {
      const auto request = chat(fields);
      ASSERT_FALSE(request.has_value());
      EXPECT_EQ(request.error().code, ErrorCode::kInvalidArgument);
    }
    EXPECT_FALSE(with_content("user", arrays).has_value());
    EXPECT_FALSE(parse_chat("{\"tools\":" + open, limits()).has_value());
    EXPECT_FALSE(parse_chat(open, limits()).has_value());
  }
  EXPECT_TRUE(chat("\"unknown\":" + std::string(60, '[') + std::string(60, ']')).has_value());
}

TEST(Request, BrokenJson) {
  for (const char* body : {"", " ", "{", "[]", "5", "null", "\"x\"", "{\"messages\":}", "{'a':1}",
                           "{\"a\":1,}", "{\"a\":\"\\ud800\"}", "{\"a\":01}", "{\"a\":NaN}",
                           "{\"a\":1} x", "{\"a\":\"\xff\"}", "\xef\xbb\xbf\x7f"}) {
    const auto request = parse_chat(body, limits());
    ASSERT_FALSE(request.has_value()) << body;
    EXPECT_EQ(request.error().code, ErrorCode::kInvalidArgument) << body;
  }
  ParseLimits small = limits();
  small.max_body_bytes = 10;
  EXPECT_EQ(parse_chat(std::string(11, ' '), small).error().code, ErrorCode::kPayloadTooLarge);
}

// Every truncation of a good body is one clear refusal.
TEST(Request, EveryTruncation) {
  const std::string body =
      R"({"messages":[{"role":"user","content":[{"type":"text","text":"h\u00e9"}]}],"n":1,)"
      R"("logit_bias":{"5":-1.5e1},"stop":["a"],"stream":true})";
  ASSERT_TRUE(parse_chat(body, limits()).has_value());
  for (std::size_t bytes = 0; bytes < body.size(); ++bytes) {
    EXPECT_FALSE(parse_chat(std::string_view(body).substr(0, bytes), limits()).has_value());
  }
}

TEST(Request, ModelNames) {
  const auto unknown = chat(R"("model":"other")");
  EXPECT_EQ(unknown.error().code, ErrorCode::kModelNotFound);
  EXPECT_EQ(unknown.error().param, "model");
  ParseLimits any = limits();
  any.models.clear();
  EXPECT_TRUE(parse_completion(R"({"prompt":"x","model":"other"})", any).has_value());
}

TEST(Request, SplitTakesOneChoice) {
  ParseLimits split = limits();
  split.max_choices = 1;
  const auto two = parse_completion(R"({"prompt":"x","n":2})", split);
  EXPECT_EQ(two.error().code, ErrorCode::kUnsupported);
  EXPECT_EQ(two.error().param, "n");
  EXPECT_TRUE(parse_completion(R"({"prompt":"x","n":1})", split).has_value());
}

TEST(Request, Seeds) {
  EXPECT_FALSE(chat(R"("seed":-1)")->seed.has_value());
  EXPECT_EQ(chat(R"("seed":-2)")->seed, -2);
  EXPECT_EQ(chat(R"("seed":9223372036854775807)")->sampling.seed, 9223372036854775807ULL);
  const std::int64_t drawn = random_seed();
  EXPECT_GE(drawn, 0);
  EXPECT_LT(drawn, std::int64_t{1} << 53);
  EXPECT_NE(drawn, random_seed());
}

TEST(Submits, ResolvesLimits) {
  GenerationRequest request = *completion(R"("n":3,"min_tokens":2,"stop_token_ids":[7])");
  const RequestId id{1, 2};
  const auto submits = make_submits(request, id, {1, 2, 3}, 99, 10, {});
  ASSERT_TRUE(submits.has_value());
  ASSERT_EQ(submits->size(), 3U);
  EXPECT_EQ((*submits)[2].key.choice.value, 2U);
  EXPECT_EQ((*submits)[2].max_tokens, 7) << "what the context has left";
  EXPECT_EQ((*submits)[2].sampling.seed, 99U);
  EXPECT_EQ((*submits)[2].stop_token_ids, (std::vector<TokenId>{7}));

  request.max_tokens = 7;
  EXPECT_TRUE(make_submits(request, id, {1, 2, 3}, 99, 10, {}).has_value());
  request.max_tokens = 8;
  EXPECT_EQ(make_submits(request, id, {1, 2, 3}, 99, 10, {}).error().param, "max_tokens");
  const auto too_long = make_submits(request, id, std::vector<TokenId>(10), 99, 10, {});
  EXPECT_EQ(too_long.error().code, ErrorCode::kContextTooLong);
  EXPECT_EQ(too_long.error().param, "prompt");
  EXPECT_FALSE(make_submits(request, id, {1}, 99, 0, {}).has_value());
}

}  // namespace
}  // namespace baton::api
