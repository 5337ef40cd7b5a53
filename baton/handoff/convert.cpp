#include "baton/handoff/convert.h"

#include "baton/wire/limits.h"
#include "baton/wire/validate.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>

namespace baton::handoff {
namespace {

namespace pb = wire::pb;

std::uint32_t bits(float value) { return std::bit_cast<std::uint32_t>(value); }
float from_bits(std::uint32_t value) { return std::bit_cast<float>(value); }

std::string bounded(const std::string& text) { return text.substr(0, kMaxReasonBytes); }

ErrorCode code_from_wire(std::uint32_t code) {
  return code <= static_cast<std::uint32_t>(ErrorCode::kInternal) ? static_cast<ErrorCode>(code)
                                                                  : ErrorCode::kProtocol;
}

tl::unexpected<Error> bad(const char* field, const char* why) {
  return fail(ErrorCode::kInvalidArgument, fmt::format("{} {}", field, why), field);
}

bool all_token_ids(const google::protobuf::RepeatedField<std::int32_t>& ids) {
  return std::all_of(ids.begin(), ids.end(), [](std::int32_t id) { return id >= 0; });
}

void sampling_to_wire(const sample::SamplingParams& from, pb::Sampling& to) {
  to.set_temperature_bits(bits(from.temperature));
  to.set_top_k(from.top_k);
  to.set_top_p_bits(bits(from.top_p));
  to.set_min_p_bits(bits(from.min_p));
  to.set_typical_p_bits(bits(from.typical_p));
  to.set_repetition_penalty_bits(bits(from.repetition_penalty));
  to.set_presence_penalty_bits(bits(from.presence_penalty));
  to.set_frequency_penalty_bits(bits(from.frequency_penalty));
  for (const auto& [token, bias] : from.logit_bias) {
    pb::Bias* item = to.add_logit_bias();
    item->set_token(token);
    item->set_bias_bits(bits(bias));
  }
  to.set_seed(from.seed);
  to.set_top_logprobs(from.top_logprobs);
}

// Only what would break arithmetic: the api has the narrower ranges of the OpenAI fields.
Result<sample::SamplingParams> sampling_from_wire(const pb::Sampling& from) {
  sample::SamplingParams to;
  to.temperature = from_bits(from.temperature_bits());
  to.top_k = from.top_k();
  to.top_p = from_bits(from.top_p_bits());
  to.min_p = from_bits(from.min_p_bits());
  to.typical_p = from_bits(from.typical_p_bits());
  to.repetition_penalty = from_bits(from.repetition_penalty_bits());
  to.presence_penalty = from_bits(from.presence_penalty_bits());
  to.frequency_penalty = from_bits(from.frequency_penalty_bits());
  const auto probability = [](float p) { return std::isfinite(p) && p >= 0.0F && p <= 1.0F; };
  if (!std::isfinite(to.temperature) || to.temperature < 0.0F) {
    return bad("temperature", "must be a number >= 0");
  }
  if (to.top_k < 0) {
    return bad("top_k", "must be >= 0");
  }
  if (!probability(to.top_p) || !probability(to.min_p) || !probability(to.typical_p)) {
    return bad("top_p", "top_p, min_p and typical_p must be in [0, 1]");
  }
  if (!std::isfinite(to.repetition_penalty) || to.repetition_penalty <= 0.0F) {
    return bad("repetition_penalty", "must be a number > 0");
  }
  if (!std::isfinite(to.presence_penalty) || !std::isfinite(to.frequency_penalty)) {
    return bad("presence_penalty", "penalties must be numbers");
  }
  if (from.logit_bias_size() > wire::kMaxLogitBias) {
    return bad("logit_bias", "has too many entries");
  }
  for (const pb::Bias& item : from.logit_bias()) {
    const float bias = from_bits(item.bias_bits());
    if (item.token() < 0 || std::isnan(bias)) {
      return bad("logit_bias", "has a bad entry");
    }
    to.logit_bias.emplace_back(item.token(), bias);
  }
  to.seed = from.seed();
  to.top_logprobs = from.top_logprobs();
  if (to.top_logprobs < -1 || to.top_logprobs > wire::kMaxTopLogprobs) {
    return bad("top_logprobs", "is out of range");
  }
  return to;
}

}  // namespace

Result<pb::Request> request_to_wire(const message::Submit& submit) {
  pb::Request request;
  request.mutable_prompt()->Assign(submit.prompt.begin(), submit.prompt.end());
  request.mutable_emitted()->Assign(submit.emitted.begin(), submit.emitted.end());
  sampling_to_wire(submit.sampling, *request.mutable_sampling());
  request.set_max_tokens(submit.max_tokens);
  request.set_min_tokens(submit.min_tokens);
  request.mutable_stop_token_ids()->Assign(submit.stop_token_ids.begin(),
                                           submit.stop_token_ids.end());
  request.set_ignore_eos(submit.ignore_eos);
  request.set_cache_namespace(submit.cache_namespace.data(), submit.cache_namespace.size());
  request.set_priority(submit.priority);
  if (request.ByteSizeLong() > kMaxRequestBytes) {
    return fail(ErrorCode::kContextTooLong,
                fmt::format("the request takes {} bytes between nodes, more than the limit of {}",
                            request.ByteSizeLong(), kMaxRequestBytes),
                "prompt");
  }
  if (Status valid = wire::validate(request); !valid) {
    return fail(ErrorCode::kInvalidArgument, std::move(valid).error().message);
  }
  return request;
}

Result<message::Submit> request_from_wire(const SequenceKey& key, const pb::Request& request) {
  if (key.choice == kAllChoices) {
    return fail(ErrorCode::kUnsupported, "n > 1 is not offered across the split yet", "n");
  }
  if (request.prompt().empty()) {
    return bad("prompt", "must have at least one token");
  }
  if (!all_token_ids(request.prompt()) || !all_token_ids(request.emitted()) ||
      !all_token_ids(request.stop_token_ids())) {
    return bad("prompt", "has a negative token id");
  }
  if (request.max_tokens() < 1 || request.emitted_size() >= request.max_tokens()) {
    return bad("max_tokens", "must be above the number of emitted tokens");
  }
  if (request.min_tokens() < 0) {
    return bad("min_tokens", "must be >= 0");
  }
  if (request.stop_token_ids_size() > wire::kMaxStopTokenIds) {
    return bad("stop_token_ids", "has too many entries");
  }
  message::Submit submit;
  if (request.cache_namespace().size() != submit.cache_namespace.size()) {
    return bad("cache_namespace", "must have 16 bytes");
  }
  if (!request.has_sampling()) {
    return bad("sampling", "is missing");
  }
  BATON_TRY(submit.sampling, sampling_from_wire(request.sampling()));
  submit.key = key;
  submit.prompt.assign(request.prompt().begin(), request.prompt().end());
  submit.emitted.assign(request.emitted().begin(), request.emitted().end());
  submit.max_tokens = request.max_tokens();
  submit.min_tokens = request.min_tokens();
  submit.stop_token_ids.assign(request.stop_token_ids().begin(), request.stop_token_ids().end());
  submit.ignore_eos = request.ignore_eos();
  std::copy_n(request.cache_namespace().begin(), submit.cache_namespace.size(),
              submit.cache_namespace.begin());
  submit.priority = request.priority();
  return submit;
}

pb::Token token_to_wire(const message::Token& token) {
  pb::Token to;
  to.set_request_high(token.key.request.high);
  to.set_request_low(token.key.request.low);
  to.set_choice(token.key.choice.value);
  to.set_epoch(token.key.epoch.value);
  to.set_index(token.index);
  to.set_token(token.token);
  to.set_logprob_bits(bits(token.logprob));
  for (const message::TokenLogprob& item : token.top) {
    pb::TokenLogprob* top = to.add_top();
    top->set_token(item.token);
    top->set_logprob_bits(bits(item.logprob));
  }
  to.set_finish(static_cast<pb::Finish>(token.finish));
  to.set_cached_tokens(token.cached_tokens);
  to.set_kv_bytes(token.kv_bytes);
  return to;
}

Result<message::Token> token_from_wire(const pb::Token& token) {
  if (token.index() < 0 || token.token() < 0 || token.cached_tokens() < 0 ||
      token.top_size() > wire::kMaxTopLogprobs || !pb::Finish_IsValid(token.finish())) {
    return fail(ErrorCode::kProtocol, "a token event is out of range");
  }
  message::Token to;
  to.key = {{token.request_high(), token.request_low()}, {token.choice()}, {token.epoch()}};
  to.index = token.index();
  to.token = token.token();
  to.logprob = from_bits(token.logprob_bits());
  to.top.reserve(static_cast<std::size_t>(token.top_size()));
  for (const pb::TokenLogprob& item : token.top()) {
    to.top.push_back({item.token(), from_bits(item.logprob_bits())});
  }
  to.finish = static_cast<message::FinishReason>(token.finish());
  to.cached_tokens = token.cached_tokens();
  to.kv_bytes = token.kv_bytes();
  return to;
}

pb::Tokens tokens_to_wire(std::uint64_t step, const std::vector<message::Token>& tokens) {
  pb::Tokens to;
  to.set_step(step);
  for (const message::Token& token : tokens) {
    *to.add_tokens() = token_to_wire(token);
  }
  return to;
}

pb::Refused refused_to_wire(bool later, const Error& error) {
  pb::Refused to;
  to.set_later(later);
  to.set_code(static_cast<std::uint32_t>(error.code));
  to.set_message(bounded(error.message));
  to.set_param(bounded(error.param));
  to.set_retry_after_ms(error.retry_after_ms);
  return to;
}

message::Refused refused_from_wire(const SequenceKey& key, const pb::Refused& refused) {
  return {key, refused.later(),
          Error{code_from_wire(refused.code()), bounded(refused.message()),
                bounded(refused.param()), std::max<std::int64_t>(refused.retry_after_ms(), 0)}};
}

pb::Finished finished_to_wire(message::FinishReason reason, const Error& error) {
  pb::Finished to;
  to.set_reason(static_cast<pb::Finish>(reason));
  to.set_code(static_cast<std::uint32_t>(error.code));
  to.set_message(bounded(error.message));
  return to;
}

message::Finished finished_from_wire(const SequenceKey& key, const pb::Finished& finished) {
  message::Finished to;
  to.key = key;
  const bool valid = pb::Finish_IsValid(finished.reason()) && finished.reason() != pb::FINISH_NONE;
  to.reason =
      valid ? static_cast<message::FinishReason>(finished.reason()) : message::FinishReason::kError;
  to.error = Error{code_from_wire(finished.code()), bounded(finished.message())};
  return to;
}

pb::Abort abort_to_wire(const Error& reason) {
  pb::Abort to;
  to.set_code(static_cast<std::uint32_t>(reason.code));
  to.set_message(bounded(reason.message));
  return to;
}

Error abort_from_wire(const pb::Abort& abort) {
  return Error{code_from_wire(abort.code()), bounded(abort.message())};
}

}  // namespace baton::handoff
