// The fields of a request, one small reader each, in two tables (both endpoints; one of them).
// Inside of api/ only. Thread: one Draft per body.
#pragma once

#include "baton/api/json_fields.h"
#include "baton/api/request.h"

#include <optional>
#include <string>
#include <string_view>

namespace baton::api {

// A request while its fields come in, in any order.
struct Draft {
  const ParseLimits& limits;
  GenerationRequest out;
  bool has_prompt = false;
  std::optional<std::int32_t> max_tokens;
  std::optional<std::int32_t> max_completion_tokens;
  std::optional<std::int32_t> top_logprobs;  // chat
};

using ReadField = Status (*)(Draft& draft, Json value, const std::string& field);

// The reader of a known field; null: unknown. Fields that are known and not done have one that
// refuses. Values are never null: absent.
ReadField find_field(Endpoint endpoint, std::string_view name);

// "messages" and "prompt", which may not be null.
Status read_messages(Draft& draft, Json value);
Status read_prompt(Draft& draft, Json value);

// A list of ids of the vocabulary. `field` names the list, the error the entry.
Result<std::vector<TokenId>> read_token_ids(Json value, const std::string& field,
                                            std::int32_t vocabulary_tokens, std::size_t most);

}  // namespace baton::api
