#include "baton/engine/guards.h"

#include "baton/sample/sampler.h"

#include <fmt/format.h>

namespace baton::engine {

namespace {

Status check_ids(const std::vector<TokenId>& ids, std::int32_t vocabulary, const char* field) {
  for (const TokenId id : ids) {
    if (id < 0 || id >= vocabulary) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("{} holds token id {}, the vocabulary has ids 0 to {}", field, id,
                              vocabulary - 1),
                  field);
    }
  }
  return {};
}

Status check_limits(const message::Submit& submit, std::int32_t max_context_tokens) {
  if (submit.max_tokens < 1) {
    return fail(ErrorCode::kInvalidArgument, "max_tokens must be at least 1", "max_tokens");
  }
  if (submit.min_tokens < 0 || submit.min_tokens > submit.max_tokens) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("min_tokens must be in [0, max_tokens = {}]", submit.max_tokens),
                "min_tokens");
  }
  if (submit.emitted.size() >= static_cast<std::size_t>(submit.max_tokens)) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{} tokens are emitted already, the limit is {}", submit.emitted.size(),
                            submit.max_tokens),
                "emitted");
  }
  const std::uint64_t wanted = submit.prompt.size() + static_cast<std::uint64_t>(submit.max_tokens);
  if (wanted > static_cast<std::uint64_t>(max_context_tokens)) {
    return fail(ErrorCode::kContextTooLong,
                fmt::format("the prompt has {} tokens and the limit is {}: together {}, the "
                            "context holds {}",
                            submit.prompt.size(), submit.max_tokens, wanted, max_context_tokens),
                submit.prompt.size() >= static_cast<std::size_t>(max_context_tokens)
                    ? "prompt"
                    : "max_tokens");
  }
  return {};
}

}  // namespace

Status check_request(const message::Submit& submit, const backend::BackendInfo& info,
                     std::int32_t max_context_tokens) {
  if (submit.prompt.empty()) {
    return fail(ErrorCode::kInvalidArgument, "the prompt must have at least one token", "prompt");
  }
  if (submit.key.choice == kAllChoices) {
    return fail(ErrorCode::kUnsupported, "one sequence cannot be all choices: send each as its own",
                "n");
  }
  BATON_TRY_VOID(check_limits(submit, max_context_tokens));
  BATON_TRY_VOID(check_ids(submit.prompt, info.vocabulary, "prompt"));
  BATON_TRY_VOID(check_ids(submit.emitted, info.vocabulary, "emitted"));
  if (submit.stop_token_ids.size() > kMaxStopTokenIds) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("stop_token_ids holds {} ids, at most {} are allowed",
                            submit.stop_token_ids.size(), kMaxStopTokenIds),
                "stop_token_ids");
  }
  BATON_TRY_VOID(check_ids(submit.stop_token_ids, info.vocabulary, "stop_token_ids"));
  return sample::validate(submit.sampling, info.vocabulary);
}

}  // namespace baton::engine
