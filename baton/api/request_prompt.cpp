// The two required fields: "messages" of a chat, "prompt" of a completion.
#include "baton/api/request_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace baton::api {

namespace {

constexpr std::size_t kMaxNameBytes = 256;
constexpr std::array<std::string_view, 5> kRoles{"system", "developer", "user", "assistant",
                                                 "tool"};

Status read_part(Json part, const std::string& field, std::string& out) {
  std::string_view type;
  if (part.get_object().error() != simdjson::SUCCESS ||
      part["type"].get_string().get(type) != simdjson::SUCCESS) {
    return fail(wrong(field, "must be an object with a string \"type\""));
  }
  if (type != "text") {
    return fail(unsupported(
        field, fmt::format("is of type \"{:.32}\", and this model reads only text", type)));
  }
  std::string_view text;
  if (part["text"].get_string().get(text) != simdjson::SUCCESS) {
    return fail(wrong(field + ".text", "must be a string"));
  }
  out.append(text);
  return {};
}

// A text, or a list of text parts, which is joined by line breaks.
Status read_content(Json content, const std::string& field, std::string& out) {
  if (content.is_string()) {
    BATON_TRY(out, read_string(content, field));
    return {};
  }
  simdjson::dom::array parts;
  if (content.get_array().get(parts) != simdjson::SUCCESS) {
    return fail(wrong(field, fmt::format("must be a string or a list of parts, not {}",
                                         json_type_name(content))));
  }
  std::size_t index = 0;
  for (const Json part : parts) {
    if (index > 0) {
      out += '\n';
    }
    BATON_TRY_VOID(read_part(part, fmt::format("{}[{}]", field, index), out));
    ++index;
  }
  return {};
}

Status read_short(Json message, const char* key, const std::string& field, std::string& out) {
  const auto value = message[key];
  if (value.error() != simdjson::SUCCESS || value.is_null()) {
    return {};
  }
  const std::string name = field + "." + key;
  BATON_TRY(out, read_string(value.value_unsafe(), name));
  return out.size() <= kMaxNameBytes ? Status{} : fail(wrong(name, "is too long"));
}

Result<ChatMessage> read_message(Json value, const std::string& field) {
  if (value.get_object().error() != simdjson::SUCCESS) {
    return fail(wrong(field, fmt::format("must be an object, not {}", json_type_name(value))));
  }
  ChatMessage message;
  BATON_TRY_VOID(read_short(value, "role", field, message.role));
  if (std::find(kRoles.begin(), kRoles.end(), message.role) == kRoles.end()) {
    return fail(wrong(field + ".role", "must be system, developer, user, assistant or tool"));
  }
  BATON_TRY_VOID(read_short(value, "name", field, message.name));
  BATON_TRY_VOID(read_short(value, "tool_call_id", field, message.tool_call_id));
  const auto calls = value["tool_calls"];
  if (calls.error() == simdjson::SUCCESS && asks_for_something(calls.value_unsafe())) {
    return fail(unsupported(field + ".tool_calls", "is not supported"));
  }
  const auto content = value["content"];
  const bool absent = content.error() != simdjson::SUCCESS || content.is_null();
  if (absent && message.role != "assistant") {
    return fail(wrong(field + ".content", "is missing"));
  }
  if (!absent) {
    BATON_TRY_VOID(read_content(content.value_unsafe(), field + ".content", message.content));
  }
  return message;
}

}  // namespace

Status read_messages(Draft& draft, Json value) {
  simdjson::dom::array list;
  if (value.get_array().get(list) != simdjson::SUCCESS) {
    return fail(wrong("messages",
                      fmt::format("must be a list of messages, not {}", json_type_name(value))));
  }
  std::vector<ChatMessage> messages;
  for (const Json entry : list) {
    if (messages.size() == draft.limits.max_messages) {
      return fail(
          wrong("messages", fmt::format("holds more than {} messages", draft.limits.max_messages)));
    }
    BATON_TRY(messages.emplace_back(),
              read_message(entry, fmt::format("messages[{}]", messages.size())));
  }
  if (messages.empty()) {
    return fail(wrong("messages", "must hold at least one message"));
  }
  draft.out.prompt = std::move(messages);
  draft.has_prompt = true;
  return {};
}

Status read_prompt(Draft& draft, Json value) {
  draft.has_prompt = true;
  if (value.is_string()) {
    BATON_TRY(std::string text, read_string(value, "prompt"));
    if (text.empty()) {
      return fail(wrong("prompt", "is empty"));
    }
    draft.out.prompt = std::move(text);
    return {};
  }
  simdjson::dom::array list;
  if (value.get_array().get(list) != simdjson::SUCCESS) {
    return fail(wrong("prompt", fmt::format("must be a string or a list of token ids, not {}",
                                            json_type_name(value))));
  }
  if (list.size() == 0) {
    return fail(wrong("prompt", "is empty"));
  }
  Json ids = value;
  const Json first = *list.begin();
  if (first.is_string() || first.is_array()) {
    if (list.size() != 1) {
      return fail(unsupported("prompt", "may hold one prompt, not a batch of them"));
    }
    if (first.is_string()) {
      return read_prompt(draft, first);
    }
    ids = first;
  }
  BATON_TRY(auto checked, read_token_ids(ids, "prompt", draft.limits.vocabulary_tokens,
                                         draft.limits.max_prompt_ids));
  if (checked.empty()) {
    return fail(wrong("prompt", "is empty"));
  }
  draft.out.prompt = std::move(checked);
  return {};
}

}  // namespace baton::api
