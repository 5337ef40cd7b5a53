// What became of one request of a load test, as the client saw it. Filled by StreamReader and
// run_request, read by summarize. Values only.
#pragma once

#include "baton/base/clock.h"
#include "baton/base/ids.h"

#include <cstdint>
#include <string>
#include <vector>

namespace baton::serving {

// A chunk of the stream that brought tokens.
struct Arrival {
  TimePoint at{};  // when the read that completed it returned
  std::int32_t tokens = 0;
};

struct RequestRecord {
  TimePoint scheduled{};  // by the workload
  TimePoint released{};   // when --max-concurrency let it go; the same unless it was held
  TimePoint sent{};       // before the connection is made
  TimePoint ended{};      // the answer was whole, or failed

  std::string failure;  // a short kind, for counting: "http_429", "connect"; empty: success
  std::string failure_message;

  std::int32_t planned_prompt_tokens = 0;
  std::int32_t planned_output_tokens = 0;
  std::int64_t prompt_tokens = -1;  // by the server's usage; -1: it did not say
  std::int64_t cached_tokens = -1;
  std::int64_t usage_output_tokens = -1;
  std::int64_t counted_ids = -1;  // token ids in chunks; -1: the server gives none

  std::vector<Arrival> arrivals;
  std::vector<TokenId> token_ids;  // when they are kept
  std::string finish_reason;
  bool whole = false;         // [DONE] came
  std::string path;           // baton: "split" or "local"
  std::int64_t kv_bytes = 0;  // baton: moved by handoff for it

  [[nodiscard]] bool ok() const { return failure.empty(); }
  // By usage, else by ids, else a chunk is a token.
  [[nodiscard]] std::int64_t output_tokens() const {
    return usage_output_tokens >= 0 ? usage_output_tokens
           : counted_ids >= 0       ? counted_ids
                                    : static_cast<std::int64_t>(arrivals.size());
  }
  [[nodiscard]] std::int64_t input_tokens() const {
    return prompt_tokens >= 0 ? prompt_tokens : planned_prompt_tokens;
  }
};

}  // namespace baton::serving
