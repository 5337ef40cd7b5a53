// Traces in the format of Mooncake's release: one JSON object a line with `timestamp` (ms),
// `input_length`, `output_length` (tokens) and `hash_ids`, one id per 512 tokens of the prompt. Two
// requests that begin with the same ids have the same prefix. Thread: any.
#pragma once

#include "baton/base/result.h"

#include "bench/serving/prompts.h"
#include <cstdint>
#include <istream>
#include <string>
#include <vector>

namespace baton::serving {

inline constexpr std::int32_t kTraceBlockTokens = 512;

struct TraceLine {
  std::int64_t timestamp_ms = 0;
  std::int32_t input_tokens = 0;
  std::int32_t output_tokens = 0;
  std::vector<std::uint64_t> hash_ids;  // ceil(input_tokens / 512) of them
};

// At most `most` lines; empty ones are skipped. Errors: kInvalidArgument "NAME:LINE: what is
// wrong", of the first bad line; kIo when the stream breaks.
Result<std::vector<TraceLine>> parse_trace(std::istream& in, const std::string& name,
                                           std::size_t most);
// Errors: as parse_trace; kIo when the file cannot be read; kInvalidArgument when it is empty.
Result<std::vector<TraceLine>> read_trace(const std::string& path, std::size_t most);

// The prompt of a line with all lengths multiplied by `scale`: block i is tokens [round(512 i s),
// round(512 (i + 1) s)), so prompts that share k ids share exactly that many tokens, at any scale.
// At least one token.
[[nodiscard]] PromptRecipe scaled_prompt(const TraceLine& line, double scale);
[[nodiscard]] std::int32_t scaled_tokens(std::int32_t tokens, double scale);  // at least 1

}  // namespace baton::serving
