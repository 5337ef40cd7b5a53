#include "bench/handoff/report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "bench/median.h"
#include <algorithm>

namespace baton::bench_handoff {

namespace {

using Json = nlohmann::ordered_json;

// 12345.67 -> "12,345.7"
std::string grouped(double value, int decimals) {
  const std::string text = fmt::format("{:.{}f}", value, decimals);
  const std::size_t first = text.starts_with('-') ? 1 : 0;
  const std::size_t whole = std::min(text.find('.'), text.size());
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (i > first && i < whole && (whole - i) % 3 == 0) {
      out += ',';
    }
    out += text[i];
  }
  return out;
}

std::string ms(double value) { return grouped(value, 1) + " ms"; }
std::string percent(double share) { return fmt::format("{:.0f}%", share * 100); }

std::string row(const LengthSummary& length) {
  const Ratios& ratios = length.ratios;
  const Sample& single = length.at(Shape::kSingle);
  const double whole_ms = length.at(Shape::kWhole).exposed_ms;
  const auto kv_bytes = static_cast<double>(length.kv_bytes);
  return fmt::format(
      "| {} | {} | {:.3f} | {} | {:.3f} | {:+.2f} | {:.3f} | {} MB | {:.2f} GB/s | {:.2f} GB/s | "
      "{} | {} | {} | {} |\n",
      grouped(length.prompt_tokens, 0), ms(single.ttft_ms), ratios.ttft, ms(single.ttst_ms),
      ratios.ttst, ratios.ttst_steps, ratios.ttst_streamed_to_whole, grouped(kv_bytes * 1e-6, 1),
      kv_bytes / whole_ms * 1e-6, length.raw_gb_per_s, percent(ratios.rate_to_raw),
      ms(length.at(Shape::kSplit).exposed_ms), percent(ratios.exposed_to_transfer),
      ms(length.not_wire_ms));
}

std::string cancel_line(const char* phase, const std::vector<double>& values) {
  if (values.empty()) {
    return "";
  }
  return fmt::format(
      "client leaves during {}: blocks of both nodes free after {:.0f} ms (median of {}, at most "
      "{:.0f} ms)\n",
      phase, bench::median(values), values.size(), *std::max_element(values.begin(), values.end()));
}

std::size_t prompts(const Measured& measured) {
  std::size_t count = 0;
  for (const LengthRounds& length : measured.lengths) {
    count += length.rounds.size();
  }
  return count;
}

Json sample_json(const Sample& sample, Shape shape) {
  Json json = {{"ttft_ms", sample.ttft_ms},
               {"ttst_ms", sample.ttst_ms},
               {"later_gap_ms", sample.later_gap_ms}};
  if (shape != Shape::kSingle) {
    json["exposed_ms"] = sample.exposed_ms;
    json["bytes"] = sample.kv_bytes;
  }
  return json;
}

Json ratios_json(const Ratios& ratios) {
  Json json = Json::object();
  for (const RatioField& field : kRatioFields) {
    json[std::string(field.key)] = ratios.*field.value;
  }
  return json;
}

Json round_json(const Round& round) {
  Json json = Json::object();
  for (const Shape shape : kShapes) {
    json[std::string(kShapeNames[index_of(shape)])] = sample_json(round.at(shape), shape);
  }
  json["raw_s"] = round.raw_s;
  json["not_wire_ms"] = not_wire_ms(round);
  json["ratios"] = ratios_json(ratios_of(round));
  return json;
}

Json length_json(const LengthSummary& length, const std::vector<Round>& rounds) {
  Json json = {{"prompt_tokens", length.prompt_tokens},
               {"kv_bytes", length.kv_bytes},
               {"ratios", ratios_json(length.ratios)}};
  for (const Shape shape : kShapes) {
    const std::string name(kShapeNames[index_of(shape)]);
    const Sample& sample = length.at(shape);
    json[name + "_ttft_ms"] = sample.ttft_ms;
    json[name + "_ttst_ms"] = sample.ttst_ms;
    json[name + "_later_gap_ms"] = sample.later_gap_ms;
  }
  json["split_exposed_ms"] = length.at(Shape::kSplit).exposed_ms;
  json["whole_exposed_ms"] = length.at(Shape::kWhole).exposed_ms;
  json["raw_gb_per_s"] = length.raw_gb_per_s;
  json["not_wire_ms"] = length.not_wire_ms;
  json["rounds"] = Json::array();
  for (const Round& round : rounds) {
    json["rounds"].push_back(round_json(round));
  }
  return json;
}

Json verdict_json(const Verdict& verdict) {
  Json json = {{"name", verdict.key}, {"goal", verdict.goal}, {"met", nullptr}};
  if (!verdict.values.empty()) {
    json["met"] = verdict.met();
  }
  json["values"] = Json::array();
  for (const Verdict::Value& value : verdict.values) {
    json["values"].push_back({{"where", value.where},
                              {"value", value.value},
                              {"bound", value.bound},
                              {"met", value.met}});
  }
  return json;
}

Json machine_json(const Machine& machine) {
  return {{"commit", machine.commit},
          {"date", machine.date},
          {"cpu", machine.cpu},
          {"cores", machine.cores},
          {"model", machine.model},
          {"binary", machine.binary},
          {"load_before", machine.load_before},
          {"busy_before", machine.busy_before},
          {"link", machine.link},
          {"load_after", machine.load_after}};
}

}  // namespace

std::string machine_line(const Machine& machine) {
  return fmt::format(
      "{} on {}, {} cores, commit {}, {}; before the first request others used {} of the cores "
      "(load {:.1f})\n",
      machine.model, machine.cpu, machine.cores, machine.commit, machine.date,
      percent(machine.busy_before), machine.load_before);
}

std::string table(const std::vector<LengthSummary>& lengths, const CancelTimes& cancels) {
  std::string out =
      "| prompt | TTFT single | split ÷ single | TTST single | split ÷ single | split − single, in "
      "steps | streamed ÷ whole (TTST) | KV | sent whole | raw socket | share | exposed, streamed "
      "| ÷ sent whole | not wire |\n"
      "| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: "
      "| ---: |\n";
  for (const LengthSummary& length : lengths) {
    out += row(length);
  }
  const std::string left =
      cancel_line("prefill", cancels.prefill_ms) + cancel_line("decode", cancels.decode_ms);
  return left.empty() ? out : out + "\n" + left;
}

std::string goal_lines(const std::vector<Verdict>& verdicts) {
  std::string out;
  for (const Verdict& verdict : verdicts) {
    std::vector<std::string> values;
    values.reserve(verdict.values.size());
    for (const Verdict::Value& value : verdict.values) {
      values.push_back(fmt::format("{}: {}{}", value.where, value.shown, value.met ? "" : " *"));
    }
    const char* const word = values.empty() ? "-" : verdict.met() ? "met" : "not met";
    out +=
        fmt::format("{:<7}  {} {}: {}\n", word, verdict.what, verdict.goal,
                    values.empty() ? "not measured" : fmt::format("{}", fmt::join(values, ", ")));
  }
  return out;
}

namespace {

// Single requests swing by more than most goals allow.
constexpr std::size_t kRoundsToJudge = 3;

std::size_t fewest_rounds(const Measured& measured) {
  std::size_t fewest = kRoundsToJudge;
  for (const auto& length : measured.lengths) {
    fewest = std::min(fewest, length.rounds.size());
  }
  return fewest;
}

}  // namespace

std::string report_text(const Machine& machine, const Measured& measured) {
  const std::vector<LengthSummary> lengths = summarize(measured);
  return machine_line(machine) + "\n" + table(lengths, measured.cancels) +
         fmt::format("\nGoals, and medians by tokens of the prompt (* misses its goal{}):\n",
                     fewest_rounds(measured) < kRoundsToJudge
                         ? "; of so few rounds it may be chance: --rounds"
                         : "") +
         goal_lines(judge(lengths, measured.cancels)) +
         fmt::format("The three servers gave the same tokens for each of {} prompts.\n",
                     prompts(measured));
}

Json report_json(const Machine& machine, const Measured& measured, bool interrupted) {
  const std::vector<LengthSummary> lengths = summarize(measured);
  Json json = {{"machine", machine_json(machine)}, {"results", Json::array()}};
  for (const LengthSummary& length : lengths) {
    const auto rounds = std::find_if(
        measured.lengths.begin(), measured.lengths.end(),
        [&](const LengthRounds& one) { return one.prompt_tokens == length.prompt_tokens; });
    json["results"].push_back(length_json(length, rounds->rounds));
  }
  json["cancel_ms"] = Json::object();
  if (!measured.cancels.prefill_ms.empty()) {
    json["cancel_ms"]["prefill"] = measured.cancels.prefill_ms;
  }
  if (!measured.cancels.decode_ms.empty()) {
    json["cancel_ms"]["decode"] = measured.cancels.decode_ms;
  }
  json["goals"] = Json::array();
  for (const Verdict& verdict : judge(lengths, measured.cancels)) {
    json["goals"].push_back(verdict_json(verdict));
  }
  json["interrupted"] = interrupted;
  return json;
}

}  // namespace baton::bench_handoff
