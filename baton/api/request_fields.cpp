#include "baton/api/request_fields.h"

#include "baton/base/check.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <limits>
#include <span>

namespace baton::api {

namespace {

constexpr std::int64_t kMaxInt32 = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kMaxInt64 = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kMinInt64 = std::numeric_limits<std::int64_t>::min();
constexpr std::int64_t kMaxTopLogprobs = 20;  // OpenAI's bound
constexpr std::size_t kMaxStopIds = 64;       // checked at every token
constexpr std::size_t kMaxBiases = 4096;      // OpenAI allows 300; applied at every token
constexpr std::size_t kMaxSaltBytes = 1024;   // vLLM's bound

// BATON_TRY for a field's value: reads it or returns the error.
template <auto Member>
Status set_sampling(Draft& draft, Json value, const std::string& field, double least, double most) {
  BATON_TRY(const double number, read_number(value, field, least, most));
  draft.out.sampling.*Member = static_cast<float>(number);
  return {};
}

using sample::SamplingParams;

Status temperature(Draft& draft, Json value, const std::string& field) {
  return set_sampling<&SamplingParams::temperature>(draft, value, field, 0, 2);
}
Status presence_penalty(Draft& draft, Json value, const std::string& field) {
  return set_sampling<&SamplingParams::presence_penalty>(draft, value, field, -2, 2);
}
Status frequency_penalty(Draft& draft, Json value, const std::string& field) {
  return set_sampling<&SamplingParams::frequency_penalty>(draft, value, field, -2, 2);
}
Status min_p(Draft& draft, Json value, const std::string& field) {
  return set_sampling<&SamplingParams::min_p>(draft, value, field, 0, 1);
}

// (0, most]: zero would divide or leave no token.
template <auto Member>
Status set_positive(Draft& draft, Json value, const std::string& field, double most) {
  BATON_TRY_VOID(set_sampling<Member>(draft, value, field, 0, most));
  if (!(draft.out.sampling.*Member > 0)) {
    return fail(wrong(field, "must be above 0"));
  }
  return {};
}
Status top_p(Draft& draft, Json value, const std::string& field) {
  return set_positive<&SamplingParams::top_p>(draft, value, field, 1);
}
Status typical_p(Draft& draft, Json value, const std::string& field) {
  return set_positive<&SamplingParams::typical_p>(draft, value, field, 1);
}
Status repetition_penalty(Draft& draft, Json value, const std::string& field) {
  return set_positive<&SamplingParams::repetition_penalty>(draft, value, field, 100);
}
Status top_k(Draft& draft, Json value, const std::string& field) {
  BATON_TRY(const std::int64_t k, read_integer(value, field, -1, kMaxInt32));
  draft.out.sampling.top_k = k < 0 ? 0 : static_cast<std::int32_t>(k);  // -1 and 0: off
  return {};
}
Status seed(Draft& draft, Json value, const std::string& field) {
  BATON_TRY(const std::int64_t number, read_integer(value, field, kMinInt64, kMaxInt64));
  if (number != -1) {
    draft.out.seed = number;
    draft.out.sampling.seed = static_cast<std::uint64_t>(number);
  }
  return {};
}

Status max_tokens(Draft& draft, Json value, const std::string& field) {
  BATON_TRY(const std::int64_t number, read_integer(value, field, 1, kMaxInt32));
  draft.max_tokens = static_cast<std::int32_t>(number);
  return {};
}
Status max_completion_tokens(Draft& draft, Json value, const std::string& field) {
  BATON_TRY(const std::int64_t number, read_integer(value, field, 1, kMaxInt32));
  draft.max_completion_tokens = static_cast<std::int32_t>(number);
  return {};
}
Status min_tokens(Draft& draft, Json value, const std::string& field) {
  BATON_TRY(const std::int64_t number, read_integer(value, field, 0, kMaxInt32));
  draft.out.min_tokens = static_cast<std::int32_t>(number);
  return {};
}

Status stop(Draft& draft, Json value, const std::string& field) {
  std::vector<std::string> strings;
  if (value.is_string()) {
    BATON_TRY(strings.emplace_back(), read_string(value, field));
  } else {
    simdjson::dom::array list;
    if (value.get_array().get(list) != simdjson::SUCCESS) {
      return fail(wrong(field, fmt::format("must be a string or a list of strings, not {}",
                                           json_type_name(value))));
    }
    for (const Json entry : list) {
      if (strings.size() == text::kMaxStopStrings) {
        return fail(wrong(field, fmt::format("holds more than {} strings", text::kMaxStopStrings)));
      }
      BATON_TRY(strings.emplace_back(), read_string(entry, field));
    }
  }
  BATON_TRY(text::StopStrings checked, text::StopStrings::create(std::move(strings)));
  draft.out.stop = std::make_shared<text::StopStrings>(std::move(checked));
  return {};
}
Status stop_token_ids(Draft& draft, Json value, const std::string& field) {
  BATON_TRY(draft.out.stop_token_ids,
            read_token_ids(value, field, draft.limits.vocabulary_tokens, kMaxStopIds));
  return {};
}
Status ignore_eos(Draft& draft, Json value, const std::string& field) {
  BATON_TRY(draft.out.ignore_eos, read_bool(value, field));
  return {};
}

Status logit_bias(Draft& draft, Json value, const std::string& field) {
  simdjson::dom::object biases;
  if (value.get_object().get(biases) != simdjson::SUCCESS) {
    return fail(wrong(field, fmt::format("must be an object, not {}", json_type_name(value))));
  }
  auto& out = draft.out.sampling.logit_bias;
  out.clear();
  for (const auto& [key, bias] : biases) {
    TokenId id = 0;
    const char* const end = key.data() + key.size();
    const auto parsed = std::from_chars(key.data(), end, id);
    if (parsed.ec != std::errc() || parsed.ptr != end || id < 0 ||
        id >= draft.limits.vocabulary_tokens) {
      return fail(
          wrong(field, fmt::format("has the key \"{:.32}\", which is no token id from 0 to {}", key,
                                   draft.limits.vocabulary_tokens - 1)));
    }
    double amount = 0;
    if (bias.get_double().get(amount) != simdjson::SUCCESS || !(amount >= -100 && amount <= 100)) {
      return fail(wrong(field, fmt::format("[\"{:.32}\"] must be a number from -100 to 100", key)));
    }
    if (out.size() == kMaxBiases) {
      return fail(wrong(field, fmt::format("holds more than {} ids", kMaxBiases)));
    }
    out.emplace_back(id, static_cast<float>(amount));
  }
  return {};
}

Status n(Draft& draft, Json value, const std::string& field) {
  BATON_TRY(const std::int64_t number, read_integer(value, field, 1, kMaxChoices));
  if (number > static_cast<std::int64_t>(draft.limits.max_choices)) {
    return fail(unsupported(
        field, fmt::format("may be at most {} on this server", draft.limits.max_choices)));
  }
  draft.out.n = static_cast<std::uint32_t>(number);
  return {};
}
Status best_of(Draft&, Json value, const std::string& field) {
  BATON_TRY(const std::int64_t number, read_integer(value, field, 1, kMaxChoices));
  return number == 1 ? Status{} : fail(unsupported(field, "above 1 is not supported"));
}
Status priority(Draft& draft, Json value, const std::string& field) {
  BATON_TRY(const std::int64_t number, read_integer(value, field, -kMaxInt32, kMaxInt32));
  draft.out.priority = static_cast<std::int32_t>(number);
  return {};
}

Status stream(Draft& draft, Json value, const std::string& field) {
  BATON_TRY(draft.out.stream, read_bool(value, field));
  return {};
}
Status stream_options(Draft& draft, Json value, const std::string& field) {
  simdjson::dom::object options;
  if (value.get_object().get(options) != simdjson::SUCCESS) {
    return fail(wrong(field, fmt::format("must be an object, not {}", json_type_name(value))));
  }
  for (const auto& [key, option] : options) {
    if (key == "include_usage" && !option.is_null()) {
      BATON_TRY(draft.out.include_usage, read_bool(option, field + ".include_usage"));
    }
  }
  return {};
}

Status chat_logprobs(Draft& draft, Json value, const std::string& field) {
  BATON_TRY(draft.out.logprobs, read_bool(value, field));
  return {};
}
Status top_logprobs(Draft& draft, Json value, const std::string& field) {
  BATON_TRY(const std::int64_t number, read_integer(value, field, 0, kMaxTopLogprobs));
  draft.top_logprobs = static_cast<std::int32_t>(number);
  return {};
}
Status legacy_logprobs(Draft& draft, Json value, const std::string& field) {
  BATON_TRY(const std::int64_t number, read_integer(value, field, 0, kMaxTopLogprobs));
  draft.out.logprobs = true;
  draft.out.sampling.top_logprobs = static_cast<std::int32_t>(number);
  return {};
}
Status return_token_ids(Draft& draft, Json value, const std::string& field) {
  BATON_TRY(draft.out.return_token_ids, read_bool(value, field));
  return {};
}

Status model(Draft& draft, Json value, const std::string& field) {
  BATON_TRY(draft.out.model, read_string(value, field));
  return {};
}
Status user(Draft& draft, Json value, const std::string& field) {
  BATON_TRY(draft.out.user, read_string(value, field));
  return {};
}
Status cache_salt(Draft& draft, Json value, const std::string& field) {
  BATON_TRY(draft.out.cache_salt, read_string(value, field));
  const std::size_t bytes = draft.out.cache_salt.size();
  if (bytes == 0 || bytes > kMaxSaltBytes) {
    return fail(wrong(field, fmt::format("must have 1 to {} bytes", kMaxSaltBytes)));
  }
  return {};
}

// ---- known, and not done here ----

Status refuse(Draft&, Json value, const std::string& field) {
  return asks_for_something(value) ? fail(unsupported(field, "is not supported")) : Status{};
}
// A switch whose other position is the only one that baton has.
Status refuse_false(Draft&, Json value, const std::string& field) {
  BATON_TRY(const bool on, read_bool(value, field));
  return on ? Status{} : fail(unsupported(field, "false is not supported"));
}
Status response_format(Draft&, Json value, const std::string& field) {
  std::string_view type;
  if (value.get_object().error() != simdjson::SUCCESS ||
      value["type"].get_string().get(type) != simdjson::SUCCESS) {
    return fail(wrong(field, "must be an object with a string \"type\""));
  }
  return type == "text"
             ? Status{}
             : fail(unsupported(field, fmt::format("of type \"{:.32}\" is not supported", type)));
}
Status tool_choice(Draft&, Json value, const std::string& field) {
  std::string_view choice;
  if (value.get_string().get(choice) == simdjson::SUCCESS &&
      (choice == "none" || choice == "auto")) {
    return {};  // without tools both mean text
  }
  return fail(unsupported(field, "asks for a tool, and tools are not supported"));
}
Status modalities(Draft&, Json value, const std::string& field) {
  simdjson::dom::array list;
  if (value.get_array().get(list) != simdjson::SUCCESS) {
    return fail(wrong(field, "must be a list"));
  }
  for (const Json entry : list) {
    std::string_view name;
    if (entry.get_string().get(name) != simdjson::SUCCESS || name != "text") {
      return fail(unsupported(field, "other than text are not supported"));
    }
  }
  return {};
}

struct Field {
  std::string_view name;
  ReadField read;
};

constexpr std::array kCommon{
    Field{"model", model},
    Field{"temperature", temperature},
    Field{"top_p", top_p},
    Field{"top_k", top_k},
    Field{"min_p", min_p},
    Field{"typical_p", typical_p},
    Field{"presence_penalty", presence_penalty},
    Field{"frequency_penalty", frequency_penalty},
    Field{"repetition_penalty", repetition_penalty},
    Field{"repeat_penalty", repetition_penalty},  // llama-server's name
    Field{"seed", seed},
    Field{"max_tokens", max_tokens},
    Field{"max_completion_tokens", max_completion_tokens},
    Field{"min_tokens", min_tokens},
    Field{"stop", stop},
    Field{"stop_token_ids", stop_token_ids},
    Field{"ignore_eos", ignore_eos},
    Field{"logit_bias", logit_bias},
    Field{"n", n},
    Field{"priority", priority},
    Field{"stream", stream},
    Field{"stream_options", stream_options},
    Field{"return_token_ids", return_token_ids},
    Field{"user", user},
    Field{"cache_salt", cache_salt},
    Field{"response_format", response_format},
    Field{"best_of", best_of},
    Field{"skip_special_tokens", refuse_false},
    Field{"add_special_tokens", refuse_false},
    Field{"echo", refuse},
    Field{"use_beam_search", refuse},
    Field{"prompt_logprobs", refuse},
    Field{"include_stop_str_in_output", refuse},
    Field{"bad_words", refuse},
    Field{"allowed_token_ids", refuse},
    Field{"truncate_prompt_tokens", refuse},
    Field{"grammar", refuse},
    Field{"json_schema", refuse},
    Field{"structured_outputs", refuse},
    Field{"guided_json", refuse},
    Field{"guided_regex", refuse},
    Field{"guided_choice", refuse},
    Field{"guided_grammar", refuse},
    Field{"mirostat", refuse},
    Field{"dry_multiplier", refuse},
    Field{"xtc_probability", refuse},
    Field{"dynatemp_range", refuse},
};

constexpr std::array kChat{
    Field{"logprobs", chat_logprobs},
    Field{"top_logprobs", top_logprobs},
    Field{"tool_choice", tool_choice},
    Field{"modalities", modalities},
    Field{"tools", refuse},
    Field{"functions", refuse},
    Field{"function_call", tool_choice},
    Field{"audio", refuse},
    Field{"chat_template", refuse},
    Field{"chat_template_kwargs", refuse},
    Field{"documents", refuse},
    Field{"continue_final_message", refuse},
    Field{"add_generation_prompt", refuse_false},
};

constexpr std::array kCompletions{
    Field{"logprobs", legacy_logprobs},
    Field{"suffix", refuse},
    Field{"prompt_embeds", refuse},
};

ReadField find_in(std::span<const Field> fields, std::string_view name) {
  for (const Field& field : fields) {
    if (field.name == name) {
      return field.read;
    }
  }
  return nullptr;
}

}  // namespace

ReadField find_field(Endpoint endpoint, std::string_view name) {
  if (const ReadField common = find_in(kCommon, name)) {
    return common;
  }
  return endpoint == Endpoint::kChat ? find_in(kChat, name) : find_in(kCompletions, name);
}

Result<std::vector<TokenId>> read_token_ids(Json value, const std::string& field,
                                            std::int32_t vocabulary_tokens, std::size_t most) {
  simdjson::dom::array list;
  if (value.get_array().get(list) != simdjson::SUCCESS) {
    return fail(
        wrong(field, fmt::format("must be a list of token ids, not {}", json_type_name(value))));
  }
  std::vector<TokenId> ids;
  for (const Json entry : list) {
    if (ids.size() == most) {
      return fail(wrong(field, fmt::format("holds more than {} ids", most)));
    }
    std::int64_t id = 0;
    if (entry.get_int64().get(id) != simdjson::SUCCESS || id < 0 || id >= vocabulary_tokens) {
      return fail(wrong(field, fmt::format("entry {} is no token id from 0 to {}", ids.size(),
                                           vocabulary_tokens - 1)));
    }
    ids.push_back(static_cast<TokenId>(id));
  }
  return ids;
}

}  // namespace baton::api
