// How a request wants its tokens drawn. Data only; sampler.h does the work. Travels whole in every
// message, so that any node can recompute the sampler's state from (request, emitted).
#pragma once

#include "baton/base/ids.h"

#include <cstdint>
#include <utility>
#include <vector>

namespace baton::sample {

struct SamplingParams {
  float temperature = 1.0F;                           // 0 = greedy
  std::int32_t top_k = 0;                             // 0 = off
  float top_p = 1.0F;                                 // 1 = off
  float min_p = 0.0F;                                 // 0 = off
  float typical_p = 1.0F;                             // 1 = off
  float repetition_penalty = 1.0F;                    // 1 = off; over prompt + emitted
  float presence_penalty = 0.0F;                      // over emitted
  float frequency_penalty = 0.0F;                     // over emitted
  std::vector<std::pair<TokenId, float>> logit_bias;  // ids validated against the vocabulary
  std::uint64_t seed = 0;          // always set: the owner draws one when the request has none
  std::int32_t top_logprobs = -1;  // -1 = none wanted, 0 = the token's own, n = and n alternatives
};

}  // namespace baton::sample
