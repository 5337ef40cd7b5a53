// What Answer writes: the pieces of bodies and chunks, and a whole body. When which of them goes
// out is in answer.cpp.
#include "baton/api/answer.h"
#include "baton/api/json_writer.h"
#include "baton/text/utf8.h"

#include <algorithm>
#include <string>

namespace baton::api {

namespace {

// JSON has no infinity, and clients want a number: what vLLM shows for "impossible".
constexpr float kLeastLogprob = -9999.0F;

void write_logprob(JsonWriter& json, float logprob) {
  json.real(logprob > kLeastLogprob ? logprob : kLeastLogprob);  // NaN too
}

void write_baton(JsonWriter& json, const Served& served, std::uint64_t kv_bytes) {
  json.key("baton").begin_object();
  json.key("prefill_node").string(served.prefill_node);
  json.key("decode_node").string(served.decode_node);
  json.key("path").string(served.split ? "split" : "local");
  json.key("kv_bytes").unsigned_integer(kv_bytes);
  json.end_object();
}

// {"token", "logprob", "bytes"} without the closing brace.
void write_token(JsonWriter& json, const text::Tokenizer& tokenizer, TokenId token, float logprob) {
  const std::string_view bytes = tokenizer.token_bytes(token);
  json.begin_object();
  json.key("token").string(bytes);
  json.key("logprob");
  write_logprob(json, logprob);
  json.key("bytes").begin_array();
  for (const char byte : bytes) {
    json.integer(static_cast<unsigned char>(byte));
  }
  json.end_array();
}

}  // namespace

void Answer::write_head(JsonWriter& json) const {
  const bool chat = options_.endpoint == Endpoint::kChat;
  json.key("id").string(id_);
  json.key("object").string(!chat             ? "text_completion"
                            : options_.stream ? "chat.completion.chunk"
                                              : "chat.completion");
  json.key("created").integer(options_.event_id.created_s);
  json.key("model").string(options_.model);
}

void Answer::write_usage(JsonWriter& json) const {
  const std::int64_t completion = completion_tokens();
  json.key("usage").begin_object();
  json.key("prompt_tokens").integer(options_.prompt_tokens);
  json.key("completion_tokens").integer(completion);
  json.key("total_tokens").integer(options_.prompt_tokens + completion);
  json.key("prompt_tokens_details").begin_object();
  json.key("cached_tokens").integer(cached_tokens_);
  json.end_object().end_object();
}

// `seed` and `baton`: of the first and the last chunk, and of a whole body.
void Answer::write_origin(JsonWriter& json) const {
  json.key("seed").integer(options_.event_id.seed);
  write_baton(json, served_, kv_bytes());
}

void Answer::write_chat_logprobs(JsonWriter& json, const std::vector<Emitted>& tokens) const {
  json.begin_object().key("content").begin_array();
  for (const Emitted& emitted : tokens) {
    write_token(json, *tokenizer_, emitted.token, emitted.logprob);
    json.key("top_logprobs").begin_array();
    const auto wanted = static_cast<std::size_t>(options_.top_logprobs);
    for (std::size_t rank = 0; rank < std::min(wanted, emitted.top.size()); ++rank) {
      write_token(json, *tokenizer_, emitted.top[rank].token, emitted.top[rank].logprob);
      json.end_object();
    }
    json.end_array().end_object();
  }
  json.end_array().end_object();
}

void Answer::write_legacy_top(JsonWriter& json, const Emitted& emitted) const {
  // An object keyed by text: where two ids have one text, the likelier stays. The token itself is
  // always in it.
  std::vector<std::string> seen;
  json.begin_object();
  const auto write = [&](TokenId token, float logprob) {
    std::string name = text::sanitized_utf8(tokenizer_->token_bytes(token));
    if (std::find(seen.begin(), seen.end(), name) != seen.end()) {
      return;
    }
    json.key(name);
    write_logprob(json, logprob);
    seen.push_back(std::move(name));
  };
  const auto wanted = static_cast<std::size_t>(options_.top_logprobs);
  for (std::size_t rank = 0; rank < std::min(wanted, emitted.top.size()); ++rank) {
    write(emitted.top[rank].token, emitted.top[rank].logprob);
  }
  write(emitted.token, emitted.logprob);
  json.end_object();
}

void Answer::write_legacy_logprobs(JsonWriter& json, const std::vector<Emitted>& tokens) const {
  json.begin_object().key("tokens").begin_array();
  for (const Emitted& emitted : tokens) {
    json.string(tokenizer_->token_bytes(emitted.token));
  }
  json.end_array().key("token_logprobs").begin_array();
  for (const Emitted& emitted : tokens) {
    write_logprob(json, emitted.logprob);
  }
  json.end_array().key("top_logprobs").begin_array();
  for (const Emitted& emitted : tokens) {
    write_legacy_top(json, emitted);
  }
  json.end_array().key("text_offset").begin_array();
  for (const Emitted& emitted : tokens) {
    json.integer(static_cast<std::int64_t>(emitted.text_offset));
  }
  json.end_array().end_object();
}

// The fields of a choice that follow its text.
void Answer::write_choice_tail(JsonWriter& json, const std::vector<Emitted>& tokens,
                               const char* finish) const {
  json.key("logprobs");
  if (!options_.logprobs || (options_.stream && tokens.empty())) {
    json.null();
  } else if (options_.endpoint == Endpoint::kChat) {
    write_chat_logprobs(json, tokens);
  } else {
    write_legacy_logprobs(json, tokens);
  }
  json.key("finish_reason");
  finish == nullptr ? json.null() : json.string(finish);
  if (options_.return_token_ids) {
    json.key("token_ids").begin_array();
    for (const Emitted& emitted : tokens) {
      json.integer(emitted.token);
    }
    json.end_array();
  }
}

void Answer::write_prompt_ids(JsonWriter& json) const {
  json.key("prompt_token_ids").begin_array();
  for (const TokenId id : options_.prompt_token_ids) {
    json.integer(id);
  }
  json.end_array();
}

// ---- a whole body ----

std::string Answer::body() const {
  const bool chat = options_.endpoint == Endpoint::kChat;
  std::string out;
  JsonWriter json(out);
  json.begin_object();
  write_head(json);
  json.key("choices").begin_array();
  for (std::size_t index = 0; index < choices_.size(); ++index) {
    const ChoiceState& choice = choices_[index];
    json.begin_object().key("index").integer(static_cast<std::int64_t>(index));
    if (chat) {
      json.key("message").begin_object();
      json.key("role").string("assistant");
      json.key("content").string(choice.text);
      json.end_object();
    } else {
      json.key("text").string(choice.text);
      if (options_.return_token_ids) {
        write_prompt_ids(json);
      }
    }
    write_choice_tail(json, choice.tokens, choice.finish);
    json.end_object();
  }
  json.end_array();
  if (chat && options_.return_token_ids) {
    write_prompt_ids(json);
  }
  write_usage(json);
  write_origin(json);
  json.end_object();
  return out;
}

}  // namespace baton::api
