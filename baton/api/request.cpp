#include "baton/api/request.h"

#include "baton/api/request_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>

namespace baton::api {

namespace {

// simdjson counts the scalar level too, so that arrays nested max_depth times are the deepest.
Result<Json> parse_json(simdjson::dom::parser& parser, std::string_view body,
                        const ParseLimits& limits) {
  if (body.size() > limits.max_body_bytes) {
    return fail(ErrorCode::kPayloadTooLarge, fmt::format("the body has {} bytes, the limit is {}",
                                                         body.size(), limits.max_body_bytes));
  }
  if (parser.allocate(body.size(), limits.max_depth + 1) != simdjson::SUCCESS) {
    return fail(ErrorCode::kOverloaded, "no memory for the body");
  }
  Json root;
  const simdjson::error_code error = parser.parse(body.data(), body.size(), true).get(root);
  if (error == simdjson::DEPTH_ERROR) {
    return fail(
        wrong({}, fmt::format("the body is nested deeper than {} levels", limits.max_depth)));
  }
  if (error == simdjson::NUMBER_ERROR) {
    const std::string field = field_of_bad_number(body);
    if (!field.empty()) {
      return fail(wrong(field, "holds a number that is malformed or out of range"));
    }
  }
  if (error != simdjson::SUCCESS) {
    return fail(
        wrong({}, std::string("the body is not valid JSON: ") + simdjson::error_message(error)));
  }
  if (!root.is_object()) {
    return fail(
        wrong({}, fmt::format("the body must be a JSON object, not {}", json_type_name(root))));
  }
  return root;
}

// Rules between fields; the fields themselves are in range.
Status complete(Draft& draft) {
  GenerationRequest& out = draft.out;
  const bool chat = out.endpoint == Endpoint::kChat;
  if (!draft.has_prompt) {
    return fail(wrong(chat ? "messages" : "prompt", "is missing"));
  }
  const auto& models = draft.limits.models;
  if (!out.model.empty() && !models.empty() &&
      std::find(models.begin(), models.end(), out.model) == models.end()) {
    return fail(ErrorCode::kModelNotFound,
                fmt::format("the model \"{:.128}\" does not exist here; served: {}", out.model,
                            fmt::join(models, ", ")),
                "model");
  }
  out.max_tokens = draft.max_completion_tokens ? draft.max_completion_tokens : draft.max_tokens;
  if (out.max_tokens && out.min_tokens > *out.max_tokens) {
    return fail(
        wrong("min_tokens", fmt::format("is above the limit of {} tokens", *out.max_tokens)));
  }
  if (chat) {
    if (draft.top_logprobs.value_or(0) > 0 && !out.logprobs) {
      return fail(wrong("top_logprobs", "needs logprobs to be true"));
    }
    out.sampling.top_logprobs = out.logprobs ? draft.top_logprobs.value_or(0) : -1;
  }
  return {};
}

Result<GenerationRequest> parse(Endpoint endpoint, std::string_view body,
                                const ParseLimits& limits) {
  simdjson::dom::parser parser;
  BATON_TRY(const Json root, parse_json(parser, body, limits));
  Draft draft{limits, {}, false, {}, {}, {}};
  draft.out.endpoint = endpoint;
  const std::string_view required = endpoint == Endpoint::kChat ? "messages" : "prompt";
  const simdjson::dom::object fields = root.get_object().value_unsafe();
  for (const auto& [key, value] : fields) {
    if (key == required) {
      BATON_TRY_VOID(endpoint == Endpoint::kChat ? read_messages(draft, value)
                                                 : read_prompt(draft, value));
    } else if (!value.is_null()) {
      if (const ReadField read = find_field(endpoint, key)) {
        BATON_TRY_VOID(read(draft, value, std::string(key)));
      }
    }
  }
  BATON_TRY_VOID(complete(draft));
  return std::move(draft.out);
}

}  // namespace

Result<GenerationRequest> parse_chat(std::string_view body, const ParseLimits& limits) {
  return parse(Endpoint::kChat, body, limits);
}

Result<GenerationRequest> parse_completion(std::string_view body, const ParseLimits& limits) {
  return parse(Endpoint::kCompletions, body, limits);
}

std::int64_t random_seed() {
  std::random_device entropy;
  const std::uint64_t bits = (std::uint64_t{entropy()} << 32) | entropy();
  return static_cast<std::int64_t>(bits >> 11);
}

}  // namespace baton::api
