// Logits to a token: penalties, bias, filters, one Philox draw. A pure function of its arguments:
// the draw's position is (token index, choice), never a generator's state, so any node can continue
// any sequence. All arithmetic is plain IEEE in a fixed order (math.h): the same bits on every CPU.
// Thread: any, one Scratch each.
#pragma once

#include "baton/base/ids.h"
#include "baton/base/result.h"
#include "baton/sample/constraint.h"
#include "baton/sample/params.h"

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace baton::sample {

// Most alternatives that one token may report; bounds a token event's bytes.
inline constexpr std::int32_t kMaxTopLogprobs = 128;
// Below it a temperature is greedy: dividing by less overflows before it changes the choice.
inline constexpr float kGreedyTemperature = 1e-5F;

// Everything but the logits. Spans are borrowed for the call; ids are inside the vocabulary.
struct SampleInput {
  const SamplingParams* params = nullptr;
  std::span<const TokenId> prompt;
  std::span<const TokenId> emitted;  // the token drawn has index emitted.size()
  std::span<const TokenId> barred;   // never drawn
  Choice choice;
  const TokenConstraint* constraint = nullptr;  // may be null
};

struct SampledToken {
  TokenId token = 0;
  float logprob = 0.0F;  // log-softmax of the raw logits
  std::vector<std::pair<TokenId, float>>
      top;  // top_logprobs entries: logprob descending, id ascending
};

// A candidate that survived the filters so far.
struct Candidate {
  float score = 0.0F;   // adjusted logit (penalties and bias are in it)
  float weight = 0.0F;  // exp((score - max) / temperature)
  TokenId id = 0;
};

// Working memory of a sampler: grows to the vocabulary on first use, then allocates nothing.
struct Scratch {
  std::vector<float> scores;         // [vocabulary] adjusted logits
  std::vector<float> weights;        // [vocabulary]
  std::vector<std::int32_t> counts;  // [vocabulary] uses in emitted; all zero between calls
  std::vector<std::uint8_t> seen;    // [vocabulary] in prompt or emitted; all zero between calls
  std::vector<Candidate> candidates;
  std::vector<double> bucket_mass;
};

// Draws the token with index emitted.size(). logits: [vocabulary], raw, not changed.
// Order: repetition, frequency, presence, logit_bias, barred and constraint; greedy = largest
// score, lowest id on ties; else temperature, top-k, typical, top-p, min-p, one draw. A NaN logit
// counts as minus infinity and is reported as a bug. When nothing may be drawn, the largest raw
// logit is taken.
SampledToken sample(const SampleInput& input, std::span<const float> logits, Scratch& scratch);

// Checks ranges and ids once, at the door. Errors: kInvalidArgument; param names the field.
Status validate(const SamplingParams& params, std::int32_t vocabulary);

}  // namespace baton::sample
