// The door for sampling parameters: after it, ids are indices and values are finite.
#include "baton/sample/sampler.h"

#include <string>

namespace baton::sample {

namespace {

// No logit comes near it; keeps score + bias finite.
constexpr float kLargestBias = 1e30F;

Status bad(const char* field, const std::string& wanted) {
  return fail(ErrorCode::kInvalidArgument, std::string(field) + " must be " + wanted, field);
}

}  // namespace

Status validate(const SamplingParams& params, std::int32_t vocabulary) {
  const auto inside = [](float value, float low, float high) {
    return value >= low && value <= high;  // false for NaN
  };
  if (!inside(params.temperature, 0.0F, 1e6F)) {
    return bad("temperature", "a number >= 0");
  }
  if (params.top_k < 0) {
    return bad("top_k", "an integer >= 0 (0 = off)");
  }
  if (!inside(params.top_p, 0.0F, 1.0F)) {
    return bad("top_p", "in [0, 1]");
  }
  if (!inside(params.min_p, 0.0F, 1.0F)) {
    return bad("min_p", "in [0, 1]");
  }
  if (!inside(params.typical_p, 0.0F, 1.0F)) {
    return bad("typical_p", "in [0, 1]");
  }
  if (!inside(params.repetition_penalty, 1e-3F, 1e3F)) {
    return bad("repetition_penalty", "in [0.001, 1000]");
  }
  if (!inside(params.presence_penalty, -1e3F, 1e3F)) {
    return bad("presence_penalty", "in [-1000, 1000]");
  }
  if (!inside(params.frequency_penalty, -1e3F, 1e3F)) {
    return bad("frequency_penalty", "in [-1000, 1000]");
  }
  if (params.top_logprobs < -1 || params.top_logprobs > kMaxTopLogprobs) {
    return bad("top_logprobs", "at most " + std::to_string(kMaxTopLogprobs));
  }
  for (const auto& [token, bias] : params.logit_bias) {
    if (token < 0 || token >= vocabulary) {
      return fail(ErrorCode::kInvalidArgument,
                  "logit_bias names token " + std::to_string(token) +
                      ", the vocabulary has ids 0 to " + std::to_string(vocabulary - 1),
                  "logit_bias");
    }
    if (!inside(bias, -kLargestBias, kLargestBias)) {
      return bad("logit_bias", "a map of finite numbers");
    }
  }
  return {};
}

}  // namespace baton::sample
