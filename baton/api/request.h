// OpenAI request bodies, checked once at the border: whatever leaves here is in range. simdjson
// with a depth cap; unknown fields are ignored, null means absent, known fields that baton does not
// do are refused by name when they ask for something. Pure; any thread (meant for the text pool).
//
// Rules chosen here (docs/decisions):
//  - max_completion_tokens wins over max_tokens when both are given, in every mode.
//  - text parts of one message are joined by a line break; an empty list is an empty text.
//  - seed -1 means absent, as in llama-server and vLLM.
#pragma once

#include "baton/base/ids.h"
#include "baton/base/result.h"
#include "baton/sample/params.h"
#include "baton/text/stop_strings.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace baton::api {

inline constexpr std::uint32_t kMaxChoices = 16;  // each is a sequence of its own

enum class Endpoint : std::uint8_t { kChat, kCompletions };

struct ChatMessage {
  std::string role;     // system, developer, user, assistant, tool
  std::string content;  // UTF-8
  std::string name;     // may be empty
  std::string tool_call_id;
};

struct GenerationRequest {
  Endpoint endpoint = Endpoint::kChat;
  std::string model;  // empty = absent
  // chat: messages (>= 1). completions: a text, or token ids (>= 1, each in the vocabulary).
  std::variant<std::vector<ChatMessage>, std::string, std::vector<TokenId>> prompt;

  sample::SamplingParams sampling;         // seed is 0 here unless given: see `seed`
  std::optional<std::int64_t> seed;        // absent: the owner draws one (random_seed)
  std::optional<std::int32_t> max_tokens;  // >= 1
  std::int32_t min_tokens = 0;
  std::shared_ptr<const text::StopStrings> stop = std::make_shared<text::StopStrings>();
  std::vector<TokenId> stop_token_ids;
  bool ignore_eos = false;
  std::uint32_t n = 1;
  std::int32_t priority = 0;

  bool stream = false;
  bool include_usage = false;
  bool logprobs = false;  // in the answer; sampling.top_logprobs says how many alternatives
  bool return_token_ids = false;
  std::string user;
  std::string cache_salt;
};

struct ParseLimits {
  std::int32_t vocabulary_tokens = 0;  // ids are in [0, this)
  std::size_t max_depth = 64;          // nesting: recursion elsewhere stays shallow
  std::size_t max_body_bytes = 8 * 1024 * 1024;
  std::size_t max_messages = 4096;
  std::size_t max_prompt_ids = 1 << 20;
  std::uint32_t max_choices = kMaxChoices;
  std::vector<std::string> models;  // names served here; empty = any name is right
};

// Errors: kInvalidArgument (param names the field), kUnsupported (same), kModelNotFound,
// kPayloadTooLarge.
Result<GenerationRequest> parse_chat(std::string_view body, const ParseLimits& limits);
Result<GenerationRequest> parse_completion(std::string_view body, const ParseLimits& limits);

// 53 random bits: exact in every client's JSON numbers.
std::int64_t random_seed();

}  // namespace baton::api
