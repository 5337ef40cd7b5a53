#include "tests/support/draw.h"

namespace baton::testing {

std::vector<TokenId> draw_tokens(Draw& draw, std::int32_t count, std::int32_t vocabulary) {
  std::vector<TokenId> tokens;
  for (std::int32_t i = 0; i < count; ++i) {
    tokens.push_back(draw.in(0, vocabulary - 1));
  }
  return tokens;
}

sample::SamplingParams draw_sampling(Draw& draw, std::int32_t vocabulary) {
  sample::SamplingParams params;
  params.temperature = draw.chance(40) ? 0.0F : draw.one_of<float>({0.7F, 1.0F, 1.3F});
  params.seed = draw.bits();
  params.top_k = draw.chance(25) ? draw.in(1, 50) : 0;
  params.top_p = draw.chance(25) ? 0.9F : 1.0F;
  params.min_p = draw.chance(15) ? 0.05F : 0.0F;
  params.typical_p = draw.chance(10) ? 0.9F : 1.0F;
  params.repetition_penalty = draw.chance(25) ? 1.2F : 1.0F;
  params.presence_penalty = draw.chance(20) ? 0.5F : 0.0F;
  params.frequency_penalty = draw.chance(20) ? 0.3F : 0.0F;
  if (draw.chance(15)) {
    params.logit_bias = {{draw.in(0, vocabulary - 1), 2.5F}};
  }
  params.top_logprobs = draw.chance(30) ? draw.in(0, 5) : -1;
  return params;
}

}  // namespace baton::testing
