#include "bench/serving/trace.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>

namespace baton::serving {

namespace {

using Json = simdjson::dom::element;

Result<std::int64_t> read_count(Json line, const char* key, std::int64_t least, std::int64_t most) {
  Json field;
  if (line[key].get(field) != simdjson::SUCCESS) {
    return fail(ErrorCode::kInvalidArgument, fmt::format("\"{}\" is missing", key));
  }
  std::int64_t value = 0;
  double real = 0;
  if (field.get_int64().get(value) != simdjson::SUCCESS) {
    // Some releases write timestamps as 27000.0.
    if (field.get_double().get(real) != simdjson::SUCCESS || !(std::fabs(real) < 9e15)) {
      return fail(ErrorCode::kInvalidArgument, fmt::format("\"{}\" is not a number", key));
    }
    value = std::llround(real);
  }
  if (value < least || value > most) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("\"{}\" is {}, not from {} to {}", key, value, least, most));
  }
  return value;
}

Result<TraceLine> read_line(Json line) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  if (!line.is_object()) {
    return fail(ErrorCode::kInvalidArgument, "not a JSON object");
  }
  TraceLine out;
  BATON_TRY(out.timestamp_ms,
            read_count(line, "timestamp", 0, std::numeric_limits<std::int64_t>::max()));
  BATON_TRY(const std::int64_t input, read_count(line, "input_length", 1, kMost));
  BATON_TRY(const std::int64_t output, read_count(line, "output_length", 1, kMost));
  out.input_tokens = static_cast<std::int32_t>(input);
  out.output_tokens = static_cast<std::int32_t>(output);
  simdjson::dom::array ids;
  if (line["hash_ids"].get_array().get(ids) != simdjson::SUCCESS) {
    return fail(ErrorCode::kInvalidArgument, "\"hash_ids\" is missing or not a list");
  }
  for (const Json entry : ids) {
    std::uint64_t id = 0;
    if (entry.get_uint64().get(id) != simdjson::SUCCESS) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("\"hash_ids\" entry {} is not a whole number from 0 on",
                              out.hash_ids.size()));
    }
    out.hash_ids.push_back(id);
  }
  const auto blocks = static_cast<std::size_t>((input + kTraceBlockTokens - 1) / kTraceBlockTokens);
  if (out.hash_ids.size() != blocks) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{} hash_ids for {} tokens: {} are needed, one per {}",
                            out.hash_ids.size(), input, blocks, kTraceBlockTokens));
  }
  return out;
}

}  // namespace

Result<std::vector<TraceLine>> parse_trace(std::istream& in, const std::string& name,
                                           std::size_t most) {
  std::vector<TraceLine> lines;
  simdjson::dom::parser parser;
  std::string text;
  for (std::size_t number = 1; lines.size() < most && std::getline(in, text); ++number) {
    if (text.find_first_not_of(" \t\r") == std::string::npos) {
      continue;
    }
    const auto bad = [&](const std::string& what) {
      return fail(ErrorCode::kInvalidArgument, fmt::format("{}:{}: {}", name, number, what));
    };
    Json element;
    if (const auto error = parser.parse(text).get(element)) {
      return bad(fmt::format("not JSON: {}", simdjson::error_message(error)));
    }
    auto line = read_line(element);
    if (!line) {
      return bad(line.error().message);
    }
    if (!lines.empty() && line->timestamp_ms < lines.back().timestamp_ms) {
      return bad(fmt::format("\"timestamp\" {} is earlier than {} before it", line->timestamp_ms,
                             lines.back().timestamp_ms));
    }
    lines.push_back(*std::move(line));
  }
  if (in.bad()) {
    return fail(ErrorCode::kIo, fmt::format("{}: reading failed", name));
  }
  return lines;
}

Result<std::vector<TraceLine>> read_trace(const std::string& path, std::size_t most) {
  std::ifstream in(path);
  if (!in) {
    return fail(ErrorCode::kIo, fmt::format("cannot read {}: {}", path, std::strerror(errno)));
  }
  BATON_TRY(std::vector<TraceLine> lines, parse_trace(in, path, most));
  if (lines.empty()) {
    return fail(ErrorCode::kInvalidArgument, fmt::format("{} holds no request", path));
  }
  return lines;
}

std::int32_t scaled_tokens(std::int32_t tokens, double scale) {
  constexpr double kMost = std::numeric_limits<std::int32_t>::max();
  return static_cast<std::int32_t>(std::clamp(std::round(tokens * scale), 1.0, kMost));
}

PromptRecipe scaled_prompt(const TraceLine& line, double scale) {
  const std::int64_t total = scaled_tokens(line.input_tokens, scale);
  PromptRecipe recipe;
  std::int64_t begin = 0;
  for (std::size_t block = 0; block < line.hash_ids.size(); ++block) {
    const bool last = block + 1 == line.hash_ids.size();
    const double boundary = static_cast<double>(block + 1) * kTraceBlockTokens * scale;
    const std::int64_t end =
        last ? total : std::min(total, static_cast<std::int64_t>(std::llround(boundary)));
    if (end > begin) {
      recipe.push_back({line.hash_ids[block], static_cast<std::int32_t>(end - begin)});
      begin = end;
    }
  }
  return recipe;
}

}  // namespace baton::serving
