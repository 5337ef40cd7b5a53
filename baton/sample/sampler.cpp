#include "baton/sample/sampler.h"

#include "baton/base/check.h"
#include "baton/sample/filters.h"
#include "baton/sample/math.h"
#include "baton/sample/philox.h"
#include "baton/sample/softmax.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace baton::sample {

namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr float kLargest = std::numeric_limits<float>::max();

bool changes_scores(const SampleInput& input) {
  const SamplingParams& params = *input.params;
  return params.repetition_penalty != 1.0F || params.presence_penalty != 0.0F ||
         params.frequency_penalty != 0.0F || !params.logit_bias.empty() || !input.barred.empty() ||
         input.constraint != nullptr;
}

bool filters(const SamplingParams& params) {
  return params.top_k > 0 || params.top_p < 1.0F || params.min_p > 0.0F || params.typical_p < 1.0F;
}

std::size_t at(TokenId token) { return static_cast<std::size_t>(token); }

// Repetition counts prompt and output, the other two output alone.
void apply_penalties(const SampleInput& input, Scratch& scratch) {
  const SamplingParams& params = *input.params;
  if (params.repetition_penalty != 1.0F) {
    scratch.seen.resize(scratch.scores.size(), 0);
    for (const auto& tokens : {input.prompt, input.emitted}) {
      for (const TokenId token : tokens) {
        if (std::exchange(scratch.seen[at(token)], std::uint8_t{1}) == 0) {
          float& score = scratch.scores[at(token)];
          score =
              score > 0.0F ? score / params.repetition_penalty : score * params.repetition_penalty;
        }
      }
    }
    for (const auto& tokens : {input.prompt, input.emitted}) {
      for (const TokenId token : tokens) {
        scratch.seen[at(token)] = 0;
      }
    }
  }
  if (params.frequency_penalty != 0.0F || params.presence_penalty != 0.0F) {
    scratch.counts.resize(scratch.scores.size(), 0);
    for (const TokenId token : input.emitted) {
      ++scratch.counts[at(token)];
    }
    for (const TokenId token : input.emitted) {
      const std::int32_t count = std::exchange(scratch.counts[at(token)], 0);
      if (count > 0) {
        scratch.scores[at(token)] -=
            static_cast<float>(count) * params.frequency_penalty + params.presence_penalty;
      }
    }
  }
}

void apply_bars(const SampleInput& input, Scratch& scratch) {
  for (const TokenId token : input.barred) {
    scratch.scores[at(token)] = kMinusInfinity;
  }
  if (input.constraint != nullptr) {
    const std::span<const std::uint32_t> allowed = input.constraint->allowed();
    for (std::size_t i = 0; i < scratch.scores.size(); ++i) {
      if (((allowed[i / 32] >> (i % 32)) & 1U) == 0) {
        scratch.scores[i] = kMinusInfinity;
      }
    }
  }
}

// The raw logits where nothing changes them, else scratch.scores.
std::span<const float> adjusted(const SampleInput& input, std::span<const float> logits,
                                bool has_nan, Scratch& scratch) {
  if (!has_nan && !changes_scores(input)) {
    return logits;
  }
  scratch.scores.assign(logits.begin(), logits.end());
  if (has_nan) {
    std::replace_if(
        scratch.scores.begin(), scratch.scores.end(), [](float x) { return x != x; },
        kMinusInfinity);
  }
  apply_penalties(input, scratch);
  for (const auto& [token, bias] : input.params->logit_bias) {
    scratch.scores[at(token)] += bias;
  }
  apply_bars(input, scratch);
  return scratch.scores;
}

// No filter: the walk is in id order; span sums let it skip.
TokenId draw_unfiltered(std::span<const float> scores, float max, float temperature, double u,
                        Scratch& scratch) {
  scratch.weights.resize(scores.size());
  exp_weights(scores, max, temperature, scratch.weights, scratch.bucket_mass);
  double total = 0.0;
  for (const double mass : scratch.bucket_mass) {
    total += mass;
  }
  const double target = u * total;
  double walked = 0.0;
  std::size_t last_possible = 0;
  for (std::size_t span = 0; span < scratch.bucket_mass.size(); ++span) {
    const double mass = scratch.bucket_mass[span];
    if (mass > 0.0 && walked + mass > target) {
      // The span's sum was rounded in another order: should the walk fall short of it, its last
      // possible token is the answer.
      const std::size_t begin = span * kSumSpan;
      const std::size_t end = std::min(scores.size(), begin + kSumSpan);
      for (std::size_t i = begin; i < end; ++i) {
        if (scratch.weights[i] > 0.0F) {
          last_possible = i;
          walked += static_cast<double>(scratch.weights[i]);
          if (walked > target) {
            break;
          }
        }
      }
      return static_cast<TokenId>(last_possible);
    }
    walked += mass;
  }
  return static_cast<TokenId>(first_index_of(scores, max));  // not reached: u < 1
}

TokenId draw_filtered(std::span<const float> scores, float max, const SamplingParams& params,
                      double u, Scratch& scratch) {
  scratch.weights.resize(scores.size());
  exp_weights(scores, max, params.temperature, scratch.weights, scratch.bucket_mass);
  std::vector<Candidate>& candidates = scratch.candidates;
  candidates.clear();
  for (std::size_t i = 0; i < scores.size(); ++i) {
    if (scratch.weights[i] > 0.0F) {
      // + 0 turns -0 into +0, so that equal scores have equal keys.
      candidates.push_back({scores[i] + 0.0F, scratch.weights[i], static_cast<TokenId>(i)});
    }
  }
  if (params.top_k > 0) {
    keep_top_k(candidates, params.top_k, scratch);
  }
  if (params.typical_p < 1.0F) {
    keep_typical(candidates, params.typical_p, max, params.temperature, scratch);
  }
  if (params.top_p < 1.0F) {
    keep_top_p(candidates, params.top_p, scratch);
  }
  if (params.min_p > 0.0F) {
    keep_min_p(candidates, params.min_p);
  }
  sort_best_first(candidates);
  double total = 0.0;
  for (const Candidate& candidate : candidates) {
    total += static_cast<double>(candidate.weight);
  }
  const double target = u * total;
  double walked = 0.0;
  for (const Candidate& candidate : candidates) {
    walked += static_cast<double>(candidate.weight);
    if (walked > target) {
      return candidate.id;
    }
  }
  return candidates.back().id;
}

// The best `count` raw logits; one pass, an insertion only where a logit beats the worst so far.
std::vector<std::pair<TokenId, float>> best_logits(std::span<const float> logits,
                                                   std::size_t count) {
  std::vector<std::pair<TokenId, float>> best;
  best.reserve(count + 1);
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const float logit = logits[i];
    if (logit != logit || (best.size() == count && !(logit > best.back().second))) {
      continue;
    }
    const auto place = std::upper_bound(
        best.begin(), best.end(), logit,
        [](float value, const std::pair<TokenId, float>& held) { return value > held.second; });
    best.insert(place, {static_cast<TokenId>(i), logit});
    if (best.size() > count) {
      best.pop_back();
    }
  }
  return best;
}

}  // namespace

SampledToken sample(const SampleInput& input, std::span<const float> logits, Scratch& scratch) {
  const SamplingParams& params = *input.params;
  const RowMaximum raw = row_maximum(logits);
  if (raw.has_nan) {
    BATON_BUG("NaN among the logits of token {}", input.emitted.size());
  }
  const std::span<const float> scores = adjusted(input, logits, raw.has_nan, scratch);
  const float max = scores.data() == logits.data() ? raw.value : row_maximum(scores).value;

  SampledToken result;
  if (!(max >= -kLargest) || max > kLargest) {
    // Nothing may be drawn (or an infinite score): the largest that there is.
    const std::size_t best =
        first_index_of(max > kLargest ? scores : logits, max > kLargest ? max : raw.value);
    result.token = best < logits.size() ? static_cast<TokenId>(best) : 0;
  } else if (params.temperature < kGreedyTemperature) {
    result.token = static_cast<TokenId>(first_index_of(scores, max));
  } else {
    const double u = uniform(params.seed, static_cast<std::uint32_t>(input.emitted.size()),
                             input.choice.value, 0);
    result.token = filters(params) ? draw_filtered(scores, max, params, u, scratch)
                                   : draw_unfiltered(scores, max, params.temperature, u, scratch);
  }

  const float raw_max = std::clamp(raw.value, -kLargest, kLargest);
  const double log_sum = log_positive(std::max(exp_sum(logits, raw_max), 0x1.0p-126));
  const auto logprob = [&](float logit) {
    return static_cast<float>(static_cast<double>(logit) - static_cast<double>(raw_max) - log_sum);
  };
  result.logprob = logprob(logits[at(result.token)]);
  if (params.top_logprobs > 0) {
    result.top =
        best_logits(logits, std::min(static_cast<std::size_t>(params.top_logprobs), logits.size()));
    for (auto& [token, value] : result.top) {
      value = logprob(value);
    }
  }
  return result;
}

}  // namespace baton::sample
