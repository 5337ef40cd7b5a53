#include "bench/handoff/measure.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "bench/handoff/answer.h"
#include "bench/handoff/stop.h"
#include "bench/handoff/summary.h"
#include "bench/serving/load.h"
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <utility>

namespace baton::bench_handoff {

namespace {

constexpr double kMs = 1e3;  // of a second
constexpr std::int32_t kWarmUpTokens = 256;
constexpr std::uint64_t kWarmUpSeed = 1;
// A prompt's seed: another one for each round and length, so that no cache knows it.
constexpr std::uint64_t kSeedStep = 100'000;
// The prefill node counts a handoff when the last Ack is there, and the client reads on meanwhile.
constexpr Duration kCountedWithin = std::chrono::seconds(5);

Result<serving::RequestRecord> send_request(const http::HttpTarget& target,
                                            const std::string& model, std::int32_t tokens,
                                            std::uint64_t seed) {
  serving::WorkloadOptions workload;
  workload.num_prompts = 1;
  workload.random_input_tokens = tokens;
  workload.random_output_tokens = kOutputTokens;
  workload.seed = seed;
  BATON_TRY(const auto planned, serving::plan_workload(workload));
  serving::LoadOptions load;
  load.target = target;
  load.model = model;
  load.ignore_eos = true;
  load.keep_ids = true;
  load.seed = seed;
  return std::move(serving::run_load(load, planned).records.front());
}

Result<HandoffCounters> counters_of(const Server& server) {
  BATON_TRY(const MetricsText page, scrape(*server.prefill));
  return handoff_counters(page);
}

// What the prefill node has counted since `before`: one handoff.
Status add_handoff(const Setup& setup, const Server& server, const HandoffCounters& before,
                   Sample& sample) {
  Result<HandoffCounters> after = before;
  const bool counted = wait_until(setup.stop, kCountedWithin, [&] {
    after = counters_of(server);
    return !after || after->handoffs > before.handoffs;
  });
  BATON_TRY_VOID(still_wanted(setup.stop));
  if (!after) {
    return fail(std::move(after).error());
  }
  if (!counted || after->handoffs != before.handoffs + 1) {
    return fail(ErrorCode::kProtocol,
                fmt::format("{}: the request did not cross two nodes", server.name));
  }
  sample.exposed_ms = (after->exposed_s - before.exposed_s) * kMs;
  sample.kv_bytes = static_cast<std::int64_t>(after->kv_bytes - before.kv_bytes);
  return {};
}

// One request to a server that has nothing else to do.
Result<Answer> ask(const Setup& setup, const Server& server, std::int32_t tokens,
                   std::uint64_t seed) {
  const bool split = server.prefill.has_value();
  HandoffCounters before;
  if (split) {
    BATON_TRY(before, counters_of(server));
  }
  BATON_TRY(serving::RequestRecord record,
            send_request(server.front, setup.model.name, tokens, seed));
  BATON_TRY(Answer answer, read_answer(server.name, split, std::move(record)));
  if (split) {
    BATON_TRY_VOID(add_handoff(setup, server, before, answer.sample));
  }
  return answer;
}

// `turn` rotates the order in which servers are asked.
Result<Round> measure_round(const Setup& setup, std::int32_t tokens, std::uint64_t seed,
                            std::size_t turn) {
  Round round;
  std::array<std::vector<TokenId>, kShapes.size()> answers;
  for (std::size_t place = 0; place < kShapes.size(); ++place) {
    const Shape shape = kShapes[(turn + place) % kShapes.size()];
    auto answer = ask(setup, setup.servers.at(shape), tokens, seed);
    BATON_TRY_VOID(still_wanted(setup.stop));
    if (!answer) {
      return fail(std::move(answer).error());
    }
    round.samples[index_of(shape)] = answer->sample;
    answers[index_of(shape)] = std::move(answer->tokens);
  }
  BATON_TRY_VOID(check_same(fmt::format("{} tokens (seed {})", tokens, seed), answers));
  BATON_TRY(const Duration raw,
            setup.raw.transfer(static_cast<std::size_t>(round.at(Shape::kWhole).kv_bytes)));
  round.raw_s = std::chrono::duration<double>(raw).count();
  return round;
}

void show_progress(std::int32_t tokens, std::int32_t turn, const Round& round) {
  const Ratios ratios = ratios_of(round);
  std::vector<std::string> shown;
  shown.reserve(kRatioFields.size());
  for (const RatioField& field : kRatioFields) {
    shown.push_back(fmt::format("{} {:.3f}", field.key, ratios.*field.value));
  }
  fmt::print(stderr, "{} tokens, round {}: {}\n", tokens, turn, fmt::join(shown, ", "));
}

}  // namespace

Status measure_rounds(const Setup& setup, std::vector<LengthRounds>& lengths) {
  const std::int32_t most_tokens = setup.model.max_model_len - kOutputTokens;
  BATON_TRY_VOID(measure_round(setup, std::min(kWarmUpTokens, most_tokens), kWarmUpSeed, 0));
  for (const std::int32_t tokens : setup.plan.prompt_tokens) {
    lengths.push_back({tokens, {}});
  }
  for (std::int32_t turn = 0; turn < setup.plan.rounds; ++turn) {
    for (LengthRounds& length : lengths) {
      const std::int32_t tokens = length.prompt_tokens;
      for (std::int32_t repeat = 0; repeat < repeats(tokens); ++repeat) {
        const std::size_t number = length.rounds.size();
        const std::uint64_t seed = kSeedStep * (number + 1) + static_cast<std::uint64_t>(tokens);
        BATON_TRY(const Round round, measure_round(setup, tokens, seed, number));
        length.rounds.push_back(round);
        show_progress(tokens, turn, round);
      }
    }
  }
  return {};
}

}  // namespace baton::bench_handoff
