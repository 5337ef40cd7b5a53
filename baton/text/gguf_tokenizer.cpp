// See gguf_tokenizer.h.
#include "baton/text/gguf_tokenizer.h"

#include <fmt/format.h>

#include <cstdint>
#include <limits>
#include <optional>

namespace baton::text {
namespace {

Result<std::optional<std::int64_t>> optional_id(const files::GgufFile& file, const char* key) {
  if (!file.has(key)) {
    return std::optional<std::int64_t>();
  }
  BATON_TRY(const std::int64_t id, file.integer(key));
  return std::optional<std::int64_t>(id);
}

Result<std::vector<std::string>> owned_strings(const files::GgufFile& file, const char* key) {
  BATON_TRY(const auto views, file.strings(key));
  return std::vector<std::string>(views.begin(), views.end());
}

Result<std::vector<std::int32_t>> token_types(const files::GgufFile& file) {
  constexpr const char* kKey = "tokenizer.ggml.token_type";
  std::vector<std::int32_t> types;
  if (!file.has(kKey)) {
    return types;
  }
  BATON_TRY(const auto values, file.integers(kKey));
  types.reserve(values.size());
  for (const std::int64_t value : values) {
    // Out of range stays out of range: create() names it.
    const bool fits = value >= 0 && value <= std::numeric_limits<std::int32_t>::max();
    types.push_back(fits ? static_cast<std::int32_t>(value) : -1);
  }
  return types;
}

}  // namespace

Result<TokenizerDescription> describe_tokenizer(const files::GgufFile& file) {
  TokenizerDescription description;
  BATON_TRY(description.model, file.string("tokenizer.ggml.model"));
  BATON_TRY(description.pre, file.string_or("tokenizer.ggml.pre", "default"));
  BATON_TRY(description.tokens, owned_strings(file, "tokenizer.ggml.tokens"));
  BATON_TRY(description.token_types, token_types(file));
  if (description.model == "llama") {
    BATON_TRY(description.scores, file.floats("tokenizer.ggml.scores"));
    BATON_TRY(description.add_space_prefix,
              file.boolean_or("tokenizer.ggml.add_space_prefix", true));
  } else {
    BATON_TRY(description.merges, owned_strings(file, "tokenizer.ggml.merges"));
  }
  BATON_TRY(description.bos, optional_id(file, "tokenizer.ggml.bos_token_id"));
  BATON_TRY(description.eos, optional_id(file, "tokenizer.ggml.eos_token_id"));
  BATON_TRY(description.eot, optional_id(file, "tokenizer.ggml.eot_token_id"));
  BATON_TRY(description.add_bos, file.boolean_or("tokenizer.ggml.add_bos_token", false));
  BATON_TRY(description.add_eos, file.boolean_or("tokenizer.ggml.add_eos_token", false));
  return description;
}

Result<Tokenizer> load_gguf_tokenizer(const files::GgufFile& file) {
  BATON_TRY(const TokenizerDescription description, describe_tokenizer(file));
  auto tokenizer = Tokenizer::create(description);
  if (!tokenizer) {
    Error error = std::move(tokenizer).error();
    error.message = fmt::format("{}: {}", file.path(), error.message);
    return fail(std::move(error));
  }
  return tokenizer;
}

Result<std::string> chat_template_source(const files::GgufFile& file) {
  BATON_TRY(const std::string_view source, file.string_or("tokenizer.chat_template", ""));
  return std::string(source);
}

}  // namespace baton::text
