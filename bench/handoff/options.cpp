#include "bench/handoff/options.h"

#include "baton/base/cpu_features.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>

namespace baton::bench_handoff {

namespace {

constexpr std::int32_t kMostRepeats = 5;
constexpr std::int32_t kRepeatedTokens = 2048;  // in all, of one round's short prompts

tl::unexpected<Error> wrong(std::string what) {
  return fail(ErrorCode::kInvalidArgument, std::move(what));
}

std::vector<std::string_view> split_at_commas(std::string_view text) {
  std::vector<std::string_view> parts;
  while (true) {
    const std::size_t comma = text.find(',');
    parts.push_back(text.substr(0, comma));
    if (comma == std::string_view::npos) {
      return parts;
    }
    text.remove_prefix(comma + 1);
  }
}

Result<std::vector<int>> cpus_of(std::string_view mask, const std::vector<int>& available) {
  auto cpus = parse_cpu_mask(mask);
  if (!cpus) {
    return wrong(fmt::format("--masks: '{}' is not a hex mask of CPUs such as 4 (CPU 2)", mask));
  }
  for (const int cpu : *cpus) {
    if (!std::binary_search(available.begin(), available.end(), cpu)) {
      return wrong(fmt::format("--masks: {} names CPU {}, this process may use CPU {}", mask, cpu,
                               fmt::join(available, ", ")));
    }
  }
  return cpus;
}

// A mask with that bit only.
std::string mask_of(int cpu) {
  return fmt::format("{:x}", 1 << (cpu % 4)) + std::string(static_cast<std::size_t>(cpu / 4), '0');
}

}  // namespace

Result<std::vector<std::int32_t>> parse_lengths(std::string_view text) {
  std::vector<std::int32_t> lengths;
  for (const std::string_view part : split_at_commas(text)) {
    std::int32_t tokens = 0;
    const char* const end = part.data() + part.size();
    const auto read = std::from_chars(part.data(), end, tokens);
    if (part.empty() || read.ec != std::errc() || read.ptr != end || tokens < 1) {
      return wrong(fmt::format(
          "--lengths: '{}' is not a number of tokens; write some, such as 16,256", part));
    }
    if (std::find(lengths.begin(), lengths.end(), tokens) != lengths.end()) {
      return wrong(fmt::format("--lengths: {} is there twice", tokens));
    }
    lengths.push_back(tokens);
  }
  return lengths;
}

Status check_lengths(const std::vector<std::int32_t>& prompt_tokens, std::int32_t context_tokens,
                     std::string_view whose) {
  for (const std::int32_t tokens : prompt_tokens) {
    if (tokens > context_tokens - kOutputTokens) {
      return wrong(
          fmt::format("--lengths: {} and {} tokens of answer do not fit into {} ({} tokens)",
                      tokens, kOutputTokens, whose, context_tokens));
    }
  }
  return {};
}

Result<Masks> parse_masks(std::string_view text, const std::vector<int>& available) {
  const std::vector<std::string_view> parts = split_at_commas(text);
  if (parts.size() != 2) {
    return wrong(fmt::format(
        "--masks: '{}' is not two hex masks, the prefill node's and the decode node's: 1,2", text));
  }
  Masks masks;
  masks.prefill = std::string(parts[0]);
  masks.decode = std::string(parts[1]);
  BATON_TRY(masks.prefill_cpus, cpus_of(parts[0], available));
  BATON_TRY(masks.decode_cpus, cpus_of(parts[1], available));
  return masks;
}

std::string default_masks(const std::vector<int>& available) {
  return mask_of(available.front()) + "," + mask_of(available[1 % available.size()]);
}

std::vector<int> available_cpu_list() {
  std::vector<int> cpus = allowed_cpus();
  return cpus.empty() ? std::vector<int>{0} : cpus;
}

std::int32_t repeats(std::int32_t prompt_tokens) {
  return std::clamp(kRepeatedTokens / prompt_tokens, 1, kMostRepeats);
}

}  // namespace baton::bench_handoff
