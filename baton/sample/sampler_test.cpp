#include "baton/sample/sampler.h"

#include "baton/base/check.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <set>

namespace baton::sample {
namespace {

using Tokens = std::vector<TokenId>;

SamplingParams greedy() {
  SamplingParams params;
  params.temperature = 0.0F;
  return params;
}

SampledToken draw(const SamplingParams& params, const std::vector<float>& logits,
                  const Tokens& prompt = {}, const Tokens& emitted = {}, const Tokens& barred = {},
                  Choice choice = {}) {
  Scratch scratch;
  SampleInput input;
  input.params = &params;
  input.prompt = prompt;
  input.emitted = emitted;
  input.barred = barred;
  input.choice = choice;
  return sample(input, logits, scratch);
}

std::vector<float> random_logits(std::size_t vocabulary, unsigned seed, float deviation = 3.0F) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0F, deviation);
  std::vector<float> logits(vocabulary);
  for (float& logit : logits) {
    logit = normal(random);
  }
  return logits;
}

// What each penalty counts (field report B22). a = 0, b = 1, c = 2.
TEST(Penalties, WhatEachCounts) {
  struct Row {
    Tokens prompt;
    Tokens emitted;
    float repetition, presence, frequency;
    TokenId right;
  };
  const std::vector<float> logits = {2.0F, 1.9F, -1.0F};
  for (const Row& row : {
           Row{{0}, {}, 2.0F, 0.0F, 0.0F, 1},
           Row{{0}, {}, 1.0F, 1.0F, 0.0F, 0},
           Row{{2}, {}, 2.0F, 0.0F, 0.0F, 0},
           Row{{}, {0}, 1.0F, 1.0F, 0.0F, 1},
           Row{{}, {0, 0, 0}, 1.0F, 0.0F, 0.05F, 1},
           Row{{}, {0}, 1.0F, 0.0F, 0.05F, 0},
       }) {
    SamplingParams params = greedy();
    params.repetition_penalty = row.repetition;
    params.presence_penalty = row.presence;
    params.frequency_penalty = row.frequency;
    EXPECT_EQ(draw(params, logits, row.prompt, row.emitted).token, row.right);
  }
}

// The same rows by value: the penalised logit against a neighbour just beside it.
TEST(Penalties, ByHowMuch) {
  const auto beats = [](SamplingParams params, float logit, float neighbour, const Tokens& prompt,
                        const Tokens& emitted) {
    params.temperature = 0.0F;
    return draw(params, {logit, neighbour}, prompt, emitted).token == 0;
  };
  SamplingParams repetition;
  repetition.repetition_penalty = 2.0F;
  EXPECT_TRUE(beats(repetition, 2.0F, 0.999F, {0, 0, 0}, {0}));  // once, however often
  EXPECT_FALSE(beats(repetition, 2.0F, 1.001F, {0}, {}));
  EXPECT_TRUE(beats(repetition, -1.0F, -2.001F, {0}, {}));
  EXPECT_FALSE(beats(repetition, -1.0F, -1.999F, {0}, {}));
  SamplingParams presence;
  presence.presence_penalty = 1.0F;
  EXPECT_TRUE(beats(presence, 2.0F, 0.999F, {}, {0, 0}));
  EXPECT_FALSE(beats(presence, 2.0F, 1.001F, {}, {0, 0}));
  SamplingParams frequency;
  frequency.frequency_penalty = 0.05F;
  EXPECT_TRUE(beats(frequency, 2.0F, 1.849F, {0}, {0, 0, 0}));
  EXPECT_FALSE(beats(frequency, 2.0F, 1.851F, {0}, {0, 0, 0}));
}

TEST(Penalties, LeaveTheScratchClean) {
  Scratch scratch;
  SamplingParams params = greedy();
  params.repetition_penalty = 1.5F;
  params.presence_penalty = 0.5F;
  const Tokens tokens = {3, 1, 3};
  SampleInput input;
  input.params = &params;
  input.prompt = tokens;
  input.emitted = tokens;
  const auto logits = random_logits(100, 5);
  (void)sample(input, logits, scratch);
  EXPECT_EQ(std::count(scratch.seen.begin(), scratch.seen.end(), 0), 100);
  EXPECT_EQ(std::count(scratch.counts.begin(), scratch.counts.end(), 0), 100);
}

TEST(Greedy, LargestLowestIdOnTies) {
  EXPECT_EQ(draw(greedy(), {1.0F, 5.0F, 5.0F, 2.0F}).token, 1);
  EXPECT_EQ(draw(greedy(), {-0.0F, 0.0F}).token, 0);
}

TEST(Greedy, BiasAndBarsMoveTheChoiceButNotTheLogprob) {
  const std::vector<float> logits = {1.0F, 5.0F, 2.0F};
  SamplingParams params = greedy();
  params.logit_bias = {{0, 100.0F}};
  const SampledToken biased = draw(params, logits);
  EXPECT_EQ(biased.token, 0);
  const double sum = std::exp(1.0) + std::exp(5.0) + std::exp(2.0);
  EXPECT_NEAR(biased.logprob, 1.0 - std::log(sum), 1e-6);
  EXPECT_EQ(draw(greedy(), logits, {}, {}, {1}).token, 2);
  EXPECT_EQ(draw(greedy(), logits, {}, {}, {0, 1, 2}).token, 1);  // nothing left: the raw best
}

TEST(Greedy, NanIsNeverDrawnAndIsReported) {
  const std::uint64_t before = bug_count();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(draw(greedy(), {nan, 1.0F, 2.0F}).token, 2);
  EXPECT_GT(bug_count(), before);
}

TEST(Logprobs, OfTheRawLogitsWhateverTheSampling) {
  const auto logits = random_logits(49152, 11);
  SamplingParams params;
  params.top_logprobs = 5;
  params.temperature = 0.7F;
  params.top_p = 0.9F;
  params.seed = 99;
  const SampledToken token = draw(params, logits);
  double sum = 0.0;
  for (const float logit : logits) {
    sum += std::exp(static_cast<double>(logit));
  }
  EXPECT_NEAR(token.logprob, logits[static_cast<std::size_t>(token.token)] - std::log(sum), 2e-6);
  std::vector<TokenId> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](TokenId a, TokenId b) {
    return logits[static_cast<std::size_t>(a)] > logits[static_cast<std::size_t>(b)];
  });
  ASSERT_EQ(token.top.size(), 5U);
  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(token.top[i].first, order[i]);
    EXPECT_NEAR(token.top[i].second, logits[static_cast<std::size_t>(order[i])] - std::log(sum),
                2e-6);
  }
}

TEST(Logprobs, TopTiesAreInOrderOfId) {
  SamplingParams params = greedy();
  params.top_logprobs = 3;
  const SampledToken token = draw(params, {1.0F, 3.0F, 1.0F, 3.0F, 1.0F});
  ASSERT_EQ(token.top.size(), 3U);
  EXPECT_EQ(token.top[0].first, 1);
  EXPECT_EQ(token.top[1].first, 3);
  EXPECT_EQ(token.top[2].first, 0);
}

// Frequencies over many positions against the softmax, by chi squared.
TEST(Draw, FollowsTheDistribution) {
  const std::vector<float> logits = {2.0F, 1.0F, 0.0F, -1.0F, 0.5F};
  SamplingParams params;
  params.temperature = 0.8F;
  constexpr int kDraws = 20'000;
  for (const bool filtered : {false, true}) {
    params.top_k = filtered ? 3 : 0;  // keeps ids 0, 1, 4
    std::map<TokenId, int> counts;
    Tokens emitted;
    for (int i = 0; i < kDraws; ++i) {
      params.seed = static_cast<std::uint64_t>(i);
      ++counts[draw(params, logits).token];
    }
    double total = 0.0;
    for (const TokenId id : {0, 1, 2, 3, 4}) {
      if (!filtered || (id != 2 && id != 3)) {
        total += std::exp(static_cast<double>(logits[static_cast<std::size_t>(id)]) / 0.8);
      }
    }
    double chi_squared = 0.0;
    for (const auto& [id, count] : counts) {
      const double expected =
          kDraws * std::exp(static_cast<double>(logits[static_cast<std::size_t>(id)]) / 0.8) /
          total;
      chi_squared += (count - expected) * (count - expected) / expected;
    }
    EXPECT_EQ(counts.size(), filtered ? 3U : 5U);
    EXPECT_LT(chi_squared, filtered ? 13.8 : 18.5);  // p = 0.001
  }
}

TEST(Draw, DependsOnSeedIndexAndChoiceAlone) {
  const auto logits = random_logits(1000, 2, 0.1F);
  SamplingParams params;
  params.seed = 42;
  const TokenId token = draw(params, logits, {1, 2}, {3}).token;
  EXPECT_EQ(draw(params, logits, {5}, {6}).token, token);  // only the index counts
  EXPECT_NE(draw(params, logits, {}, {3, 4}).token, token);
  EXPECT_NE(draw(params, logits, {}, {3}, {}, Choice{1}).token, token);
  params.seed = 43;
  EXPECT_NE(draw(params, logits, {}, {3}).token, token);
}

// Survivors of the filters against a full sort, written the plain way.
std::set<TokenId> survivors(const std::vector<float>& logits, const SamplingParams& params) {
  std::vector<TokenId> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](TokenId a, TokenId b) {
    return logits[static_cast<std::size_t>(a)] > logits[static_cast<std::size_t>(b)];
  });
  const auto weight = [&](TokenId id) {
    return std::exp((static_cast<double>(logits[static_cast<std::size_t>(id)]) -
                     static_cast<double>(logits[static_cast<std::size_t>(order[0])])) /
                    static_cast<double>(params.temperature));
  };
  if (params.top_k > 0) {
    order.resize(std::min(order.size(), static_cast<std::size_t>(params.top_k)));
  }
  double total = 0.0;
  for (const TokenId id : order) {
    total += weight(id);
  }
  std::set<TokenId> kept;
  double mass = 0.0;
  for (const TokenId id : order) {
    if (!kept.empty() && mass >= static_cast<double>(params.top_p) * total) {
      break;
    }
    mass += weight(id);
    if (weight(id) >= static_cast<double>(params.min_p)) {
      kept.insert(id);
    }
  }
  return kept;
}

TEST(Filters, KeepWhatAFullSortWouldKeep) {
  const auto logits = random_logits(300, 21, 1.5F);
  struct Case {
    std::int32_t top_k;
    float top_p, min_p;
  };
  for (const Case& c :
       {Case{1, 1.0F, 0.0F}, Case{7, 1.0F, 0.0F}, Case{0, 0.5F, 0.0F}, Case{0, 0.0F, 0.0F},
        Case{0, 1.0F, 0.3F}, Case{12, 0.6F, 0.0F}, Case{20, 0.9F, 0.2F}}) {
    SamplingParams params;
    params.temperature = 1.2F;
    params.top_k = c.top_k;
    params.top_p = c.top_p;
    params.min_p = c.min_p;
    const std::set<TokenId> expected = survivors(logits, params);
    std::set<TokenId> drawn;
    for (std::uint64_t seed = 0; seed < 3000; ++seed) {
      params.seed = seed;
      drawn.insert(draw(params, logits).token);
    }
    for (const TokenId id : drawn) {
      EXPECT_TRUE(expected.contains(id)) << id;
    }
    EXPECT_GE(drawn.size() * 10, expected.size() * 8)
        << c.top_k << ' ' << c.top_p << ' ' << c.min_p;
  }
}

TEST(Filters, TiesAtTheCutGoToTheLowestIds) {
  SamplingParams params;
  params.top_k = 2;
  std::set<TokenId> drawn;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    params.seed = seed;
    drawn.insert(draw(params, {1.0F, 1.0F, 1.0F, 1.0F}).token);
  }
  EXPECT_EQ(drawn, (std::set<TokenId>{0, 1}));
}

// Probabilities 0.5, 0.2 x 2, 0.1: entropy 1.221 nats; surprises 0.693, 1.609 (nearest), 2.303.
TEST(Filters, TypicalPrefersTheExpectedSurprise) {
  const std::vector<float> logits = {std::log(0.5F), std::log(0.2F), std::log(0.2F),
                                     std::log(0.1F)};
  SamplingParams params;
  params.typical_p = 0.3F;
  std::set<TokenId> drawn;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    params.seed = seed;
    drawn.insert(draw(params, logits).token);
  }
  EXPECT_EQ(drawn, (std::set<TokenId>{1, 2}));
}

TEST(Filters, TemperatureZeroIsGreedyWhateverTheFilters) {
  SamplingParams params = greedy();
  params.top_k = 3;
  params.top_p = 0.5F;
  EXPECT_EQ(draw(params, {0.0F, 1.0F, 3.0F, 2.0F}).token, 2);
}

class OddOnly final : public TokenConstraint {
 public:
  [[nodiscard]] std::span<const std::uint32_t> allowed() const override { return mask_; }
  void accept(TokenId /*token*/) override {}

 private:
  std::vector<std::uint32_t> mask_ = {0xAAAAAAAA, 0xAAAAAAAA};
};

TEST(Constraint, MasksTheRest) {
  const OddOnly constraint;
  Scratch scratch;
  SamplingParams params;
  SampleInput input;
  input.params = &params;
  input.constraint = &constraint;
  const auto logits = random_logits(40, 8);
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    params.seed = seed;
    EXPECT_EQ(sample(input, logits, scratch).token % 2, 1);
  }
}

// Ids outside the vocabulary and numbers outside their range (field report B23).
TEST(Validate, NamesTheField) {
  const auto field = [](auto change) {
    SamplingParams params;
    change(params);
    const Status status = validate(params, 100);
    return status ? std::string("ok") : status.error().param;
  };
  EXPECT_EQ(field([](SamplingParams&) {}), "ok");
  EXPECT_EQ(field([](SamplingParams& p) { p.logit_bias = {{99, -100.0F}}; }), "ok");
  EXPECT_EQ(field([](SamplingParams& p) { p.logit_bias = {{100, 1.0F}}; }), "logit_bias");
  EXPECT_EQ(field([](SamplingParams& p) { p.logit_bias = {{-1, 1.0F}}; }), "logit_bias");
  EXPECT_EQ(field([](SamplingParams& p) {
              p.logit_bias = {{1, std::numeric_limits<float>::infinity()}};
            }),
            "logit_bias");
  EXPECT_EQ(field([](SamplingParams& p) { p.temperature = -0.1F; }), "temperature");
  EXPECT_EQ(
      field([](SamplingParams& p) { p.temperature = std::numeric_limits<float>::quiet_NaN(); }),
      "temperature");
  EXPECT_EQ(field([](SamplingParams& p) { p.top_p = 1.5F; }), "top_p");
  EXPECT_EQ(field([](SamplingParams& p) { p.top_k = -1; }), "top_k");
  EXPECT_EQ(field([](SamplingParams& p) { p.min_p = -0.5F; }), "min_p");
  EXPECT_EQ(field([](SamplingParams& p) { p.repetition_penalty = 0.0F; }), "repetition_penalty");
  EXPECT_EQ(field([](SamplingParams& p) { p.top_logprobs = 1000; }), "top_logprobs");
}

}  // namespace
}  // namespace baton::sample
