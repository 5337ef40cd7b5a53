#include "baton/api/prompt.h"

#include "baton/text/value.h"

#include <fmt/format.h>

#include <string>

namespace baton::api {

namespace {

text::Value message_value(const ChatMessage& message) {
  text::Dict dict;
  // Templates know "system"; "developer" is OpenAI's newer name for it.
  dict.set("role", text::Value::string(message.role == "developer" ? "system" : message.role));
  dict.set("content", text::Value::string(message.content));
  if (!message.name.empty()) {
    dict.set("name", text::Value::string(message.name));
  }
  if (!message.tool_call_id.empty()) {
    dict.set("tool_call_id", text::Value::string(message.tool_call_id));
  }
  return text::Value::dict(std::move(dict));
}

std::string token_name(const text::Tokenizer& tokenizer, std::optional<TokenId> id) {
  return id ? std::string(tokenizer.token_bytes(*id)) : std::string();
}

// Text that is too long however its tokens fall is refused before the time is spent on it.
Status check_bytes(const std::vector<text::Piece>& pieces, const text::Tokenizer& tokenizer,
                   std::int32_t context_tokens, const char* field) {
  std::size_t bytes = 0;
  for (const text::Piece& piece : pieces) {
    bytes += piece.text.size();
  }
  const std::size_t fewest_tokens = bytes / tokenizer.most_bytes_per_token();
  if (fewest_tokens > static_cast<std::size_t>(context_tokens)) {
    return fail(ErrorCode::kContextTooLong,
                fmt::format("the prompt has {} bytes, so at least {} tokens; the context holds {} "
                            "with the answer",
                            bytes, fewest_tokens, context_tokens),
                field);
  }
  return {};
}

Result<std::vector<TokenId>> chat_tokens(const std::vector<ChatMessage>& messages,
                                         const text::Tokenizer& tokenizer,
                                         const text::ChatTemplate* chat_template,
                                         std::int32_t context_tokens) {
  if (chat_template == nullptr) {
    return fail(ErrorCode::kUnsupported, "the model has no chat template; use /v1/completions",
                "messages");
  }
  text::TemplateInput input;
  text::List list;
  for (const ChatMessage& message : messages) {
    list.push_back(message_value(message));
  }
  input.messages = text::Value::list(std::move(list));
  input.bos_token = token_name(tokenizer, tokenizer.bos());
  input.eos_token = token_name(tokenizer, tokenizer.eos());
  auto pieces = chat_template->render(input);
  if (!pieces) {
    // Whatever the template objects to, it is these messages that it cannot write.
    Error error = std::move(pieces).error();
    if (error.code == ErrorCode::kPayloadTooLarge) {
      error.code = ErrorCode::kInvalidArgument;
    }
    error.param = "messages";
    return fail(std::move(error));
  }
  BATON_TRY_VOID(check_bytes(*pieces, tokenizer, context_tokens, "messages"));
  return text::prompt_ids(tokenizer, *pieces, text::PromptKind::kChat);
}

}  // namespace

Result<std::vector<TokenId>> prompt_tokens(const GenerationRequest& request,
                                           const text::Tokenizer& tokenizer,
                                           const text::ChatTemplate* chat_template,
                                           std::int32_t context_tokens) {
  std::vector<TokenId> ids;
  if (const auto* messages = std::get_if<std::vector<ChatMessage>>(&request.prompt)) {
    BATON_TRY(ids, chat_tokens(*messages, tokenizer, chat_template, context_tokens));
  } else if (const auto* plain = std::get_if<std::string>(&request.prompt)) {
    const std::vector<text::Piece> pieces{{*plain, false}};
    BATON_TRY_VOID(check_bytes(pieces, tokenizer, context_tokens, "prompt"));
    ids = text::prompt_ids(tokenizer, pieces, text::PromptKind::kRaw);
  } else {
    ids = std::get<std::vector<TokenId>>(request.prompt);
  }
  if (ids.empty()) {
    const char* field = request.endpoint == Endpoint::kChat ? "messages" : "prompt";
    return fail(ErrorCode::kInvalidArgument, "the prompt has no tokens", field);
  }
  return ids;
}

Result<std::vector<message::Submit>> make_submits(const GenerationRequest& request, RequestId id,
                                                  std::vector<TokenId> prompt, std::int64_t seed,
                                                  std::int32_t context_tokens,
                                                  const message::Namespace& cache_namespace) {
  const auto prompt_count = static_cast<std::int64_t>(prompt.size());
  const std::int64_t room = context_tokens - prompt_count;
  if (room < 1) {
    return fail(ErrorCode::kContextTooLong,
                fmt::format("the prompt has {} tokens, the context holds {} with the answer",
                            prompt_count, context_tokens),
                request.endpoint == Endpoint::kChat ? "messages" : "prompt");
  }
  if (request.max_tokens && *request.max_tokens > room) {
    return fail(ErrorCode::kContextTooLong,
                fmt::format("the prompt has {} tokens and the limit is {}, the context holds {}",
                            prompt_count, *request.max_tokens, context_tokens),
                "max_tokens");
  }
  message::Submit submit;
  submit.key.request = id;
  submit.prompt = std::move(prompt);
  submit.sampling = request.sampling;
  submit.sampling.seed = static_cast<std::uint64_t>(seed);
  submit.max_tokens = request.max_tokens.value_or(static_cast<std::int32_t>(room));
  submit.min_tokens = request.min_tokens;
  submit.stop_token_ids = request.stop_token_ids;
  submit.ignore_eos = request.ignore_eos;
  submit.cache_namespace = cache_namespace;
  submit.priority = request.priority;
  std::vector<message::Submit> choices(request.n, submit);
  for (std::uint32_t choice = 0; choice < request.n; ++choice) {
    choices[choice].key.choice.value = choice;
  }
  return choices;
}

}  // namespace baton::api
