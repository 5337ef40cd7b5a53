#include "bench/handoff/summary.h"

#include <fmt/format.h>

#include "bench/median.h"
#include <algorithm>
#include <functional>
#include <utility>

namespace baton::bench_handoff {

namespace {

constexpr double kMs = 1e3;  // of a second

// Goals of the project; docs/benchmarks.md has what was reached.
constexpr double kLeastRateToRaw = 0.90;
constexpr double kNotWireMs = 1;
constexpr double kNotWireShare = 0.10;  // of the time of KV sent whole
constexpr double kMostTtft = 1.02;
constexpr double kMostTtst = 1.05;  // and one step
constexpr double kMostStreamedToWhole = 1.0;
constexpr double kMostExposed = 0.05;
constexpr std::int32_t kExposedFromTokens = 1'000;  // shorter prompts have little to hide behind
constexpr double kMostCancelMs = 100;

using Rounds = std::vector<Round>;

double median_of(const Rounds& rounds, const std::function<double(const Round&)>& read) {
  std::vector<double> values;
  values.reserve(rounds.size());
  for (const Round& round : rounds) {
    values.push_back(read(round));
  }
  return bench::median(std::move(values));
}

LengthSummary summary_of(const LengthRounds& length) {
  LengthSummary out;
  const Rounds& rounds = length.rounds;
  out.prompt_tokens = length.prompt_tokens;
  out.kv_bytes = rounds.front().at(Shape::kWhole).kv_bytes;
  for (const RatioField& field : kRatioFields) {
    out.ratios.*field.value =
        median_of(rounds, [&](const Round& round) { return ratios_of(round).*field.value; });
  }
  for (const Shape shape : kShapes) {
    Sample& sample = out.samples[index_of(shape)];
    for (double Sample::*value :
         {&Sample::ttft_ms, &Sample::ttst_ms, &Sample::later_gap_ms, &Sample::exposed_ms}) {
      sample.*value = median_of(rounds, [&](const Round& round) { return round.at(shape).*value; });
    }
    sample.kv_bytes = rounds.front().at(shape).kv_bytes;
  }
  out.raw_ms = median_of(rounds, [](const Round& round) { return round.raw_s * kMs; });
  out.raw_gb_per_s = median_of(rounds, [](const Round& round) {
    return static_cast<double>(round.at(Shape::kWhole).kv_bytes) / round.raw_s * 1e-9;
  });
  out.not_wire_ms = median_of(rounds, [](const Round& round) { return not_wire_ms(round); });
  return out;
}

std::string where(const LengthSummary& length) { return std::to_string(length.prompt_tokens); }

// A goal that is the same for every length.
Verdict at_most(std::string_view key, std::string what, double bound,
                const std::vector<LengthSummary>& lengths, double Ratios::*ratio) {
  Verdict verdict{key, std::move(what), fmt::format("≤ {:.2f}", bound), {}};
  for (const LengthSummary& length : lengths) {
    const double value = length.ratios.*ratio;
    verdict.values.push_back(
        {where(length), fmt::format("{:.3f}", value), value, bound, value <= bound});
  }
  return verdict;
}

Verdict judge_rate(const std::vector<LengthSummary>& lengths) {
  Verdict verdict{"rate_to_raw",
                  "rate of KV sent whole ÷ raw socket",
                  fmt::format("≥ {:.2f}", kLeastRateToRaw),
                  {}};
  for (const LengthSummary& length : lengths) {
    const double value = length.ratios.rate_to_raw;
    verdict.values.push_back({where(length), fmt::format("{:.2f}", value), value, kLeastRateToRaw,
                              value >= kLeastRateToRaw});
  }
  return verdict;
}

Verdict judge_not_wire(const std::vector<LengthSummary>& lengths) {
  Verdict verdict{"not_wire_ms",
                  "time of KV sent whole that is not wire",
                  fmt::format("≤ max({:.0f} ms, {:.0f}% of it)", kNotWireMs, kNotWireShare * 100),
                  {}};
  for (const LengthSummary& length : lengths) {
    const double bound = std::max(kNotWireMs, kNotWireShare * length.at(Shape::kWhole).exposed_ms);
    verdict.values.push_back({where(length),
                              fmt::format("{:.1f} of {:.1f} ms", length.not_wire_ms, bound),
                              length.not_wire_ms, bound, length.not_wire_ms <= bound});
  }
  return verdict;
}

Verdict judge_ttst(const std::vector<LengthSummary>& lengths) {
  Verdict verdict{"ttst", "TTST split ÷ single", fmt::format("≤ {:.2f} + one step", kMostTtst), {}};
  for (const LengthSummary& length : lengths) {
    const Sample& single = length.at(Shape::kSingle);
    const double bound = kMostTtst + single.later_gap_ms / single.ttst_ms;
    const double value = length.ratios.ttst;
    verdict.values.push_back({where(length), fmt::format("{:.3f} of {:.3f}", value, bound), value,
                              bound, value <= bound});
  }
  return verdict;
}

// A link that needs longer than the prompt's computation cannot have sent all but the end by then.
bool link_keeps_up(const LengthSummary& length) {
  return length.raw_ms <= length.at(Shape::kSingle).ttft_ms;
}

Verdict judge_exposed(const std::vector<LengthSummary>& lengths) {
  Verdict verdict{"exposed_to_transfer",
                  "exposed of streamed KV ÷ sent whole",
                  fmt::format("≤ {:.0f}% from {} tokens on, where the link keeps up",
                              kMostExposed * 100, kExposedFromTokens),
                  {}};
  for (const LengthSummary& length : lengths) {
    if (length.prompt_tokens >= kExposedFromTokens && link_keeps_up(length)) {
      const double value = length.ratios.exposed_to_transfer;
      verdict.values.push_back({where(length), fmt::format("{:.1f}%", value * 100), value,
                                kMostExposed, value <= kMostExposed});
    }
  }
  return verdict;
}

// By the longest: a client that leaves does it once.
Verdict judge_cancels(const CancelTimes& cancels) {
  Verdict verdict{"cancel_ms",
                  "client leaves → blocks free on both nodes, longest",
                  fmt::format("≤ {:.0f} ms", kMostCancelMs),
                  {}};
  const auto add = [&](const char* phase, const std::vector<double>& values) {
    if (!values.empty()) {
      const double longest = *std::max_element(values.begin(), values.end());
      verdict.values.push_back({phase, fmt::format("{:.0f} ms", longest), longest, kMostCancelMs,
                                longest <= kMostCancelMs});
    }
  };
  add("prefill", cancels.prefill_ms);
  add("decode", cancels.decode_ms);
  return verdict;
}

}  // namespace

Ratios ratios_of(const Round& round) {
  const Sample& single = round.at(Shape::kSingle);
  const Sample& split = round.at(Shape::kSplit);
  const Sample& whole = round.at(Shape::kWhole);
  Ratios out;
  out.ttft = split.ttft_ms / single.ttft_ms;
  out.ttst = split.ttst_ms / single.ttst_ms;
  out.ttst_steps = (split.ttst_ms - single.ttst_ms) / single.later_gap_ms;
  out.ttst_streamed_to_whole = split.ttst_ms / whole.ttst_ms;
  out.rate_to_raw = round.raw_s * kMs / whole.exposed_ms;
  out.exposed_to_transfer = split.exposed_ms / whole.exposed_ms;
  return out;
}

double not_wire_ms(const Round& round) {
  return round.at(Shape::kWhole).exposed_ms - round.raw_s * kMs;
}

std::vector<LengthSummary> summarize(const Measured& measured) {
  std::vector<LengthSummary> out;
  for (const LengthRounds& length : measured.lengths) {
    if (!length.rounds.empty()) {
      out.push_back(summary_of(length));
    }
  }
  return out;
}

bool Verdict::met() const {
  return !values.empty() &&
         std::all_of(values.begin(), values.end(), [](const Value& value) { return value.met; });
}

std::vector<Verdict> judge(const std::vector<LengthSummary>& lengths, const CancelTimes& cancels) {
  return {judge_rate(lengths),
          judge_not_wire(lengths),
          at_most("ttft", "TTFT split ÷ single", kMostTtft, lengths, &Ratios::ttft),
          judge_ttst(lengths),
          at_most("ttst_streamed_to_whole", "TTST streamed ÷ sent whole", kMostStreamedToWhole,
                  lengths, &Ratios::ttst_streamed_to_whole),
          judge_exposed(lengths),
          judge_cancels(cancels)};
}

}  // namespace baton::bench_handoff
