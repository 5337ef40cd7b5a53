// The load itself, open loop: each request leaves at its time, whether or not others have been
// answered (only --max-concurrency holds it back), on a connection of its own. One thread does all
// sockets; how late it was in sending, and in waking up, is measured and part of the result.
#pragma once

#include "baton/base/clock.h"
#include "baton/base/result.h"
#include "baton/http/client.h"

#include "bench/serving/record.h"
#include "bench/serving/workload.h"
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace baton::serving {

enum class PromptFormat : std::uint8_t {
  kIds,   // "prompt": [ids]; /v1/completions of baton, vLLM and llama-server
  kText,  // words: any server, the only form for chats
};

struct LoadOptions {
  http::HttpTarget target;
  std::string endpoint = "/v1/completions";
  std::string model;
  PromptFormat format = PromptFormat::kIds;
  bool ignore_eos = false;
  bool ask_for_ids = true;  // return_token_ids: tokens are counted in chunks then
  bool keep_ids = false;    // the generated ids stay in the records
  double temperature = 0;
  std::size_t max_concurrency = 0;  // 0: no bound
  std::uint64_t seed = 0;           // of the prompts
  TokenRange ids;
};

struct LoadResult {
  std::vector<RequestRecord> records;  // in the order of the plan
  TimePoint started{};
  TimePoint ended{};               // of the last answer
  double started_unix_s = 0;       // the same moment as `started` on the wall clock
  std::vector<Duration> wake_ups;  // how late a timer of this thread fired, every 10 ms
};

// What --base-url says: a "/v1" at its end is dropped, since endpoints name it. Errors:
// kInvalidArgument naming --base-url.
[[nodiscard]] Result<http::HttpTarget> parse_base_url(std::string_view url);

// The body of a request. `chat`: a message instead of a prompt.
[[nodiscard]] std::string request_body(const LoadOptions& options, const PlannedRequest& request);

// Sends the plan and waits for every answer. Failures of requests are in their records. Thread: not
// an event loop's (it starts one and blocks).
[[nodiscard]] LoadResult run_load(const LoadOptions& options,
                                  const std::vector<PlannedRequest>& plan);

// The first model that /v1/models names. Errors: kInvalidArgument naming --base-url, --api-key or
// --model.
[[nodiscard]] Result<std::string> ask_for_model(const http::HttpTarget& target);

}  // namespace baton::serving
