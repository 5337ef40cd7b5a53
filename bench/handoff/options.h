// What `baton bench handoff` is asked to measure: flags as they are given, and the checked plan.
// Pure. Thread: any.
#pragma once

#include "baton/base/result.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace baton::bench_handoff {

inline constexpr std::int32_t kOutputTokens = 16;  // of each answer

// One core for each engine node. The single node runs where the prefill node does.
struct Masks {
  std::string prefill;  // hex, as --cpu-mask takes it
  std::string decode;
  std::vector<int> prefill_cpus;  // ascending
  std::vector<int> decode_cpus;
};

struct Plan {
  std::string model_path;
  std::vector<std::int32_t> prompt_tokens;  // in the order given
  std::int32_t rounds = 0;
  Masks masks;
  std::string kv_memory;  // of each engine node, as --kv-memory takes it
  bool cancels = true;
};

// "16,256": token counts, each at least 1 and named once. Errors: kInvalidArgument naming
// --lengths.
[[nodiscard]] Result<std::vector<std::int32_t>> parse_lengths(std::string_view text);
// Whether these prompts and their answers fit. `whose` says whose context it is, for the message.
// Errors: kInvalidArgument naming --lengths.
Status check_lengths(const std::vector<std::int32_t>& prompt_tokens, std::int32_t context_tokens,
                     std::string_view whose);

// "1,2": the prefill node's mask and the decode node's. `available`: the CPUs that this process may
// use, ascending. Errors: kInvalidArgument naming --masks.
[[nodiscard]] Result<Masks> parse_masks(std::string_view text, const std::vector<int>& available);
// The first two of them, one for each node; of a single one, that for both.
[[nodiscard]] std::string default_masks(const std::vector<int>& available);
// CPUs that this thread may use, ascending.
[[nodiscard]] std::vector<int> available_cpu_list();

// How often a prompt is measured in one round: short ones are soon over, and noisy.
[[nodiscard]] std::int32_t repeats(std::int32_t prompt_tokens);

}  // namespace baton::bench_handoff
