// What a request must have been for its times to count. Pure. Thread: any.
#pragma once

#include "baton/base/ids.h"
#include "baton/base/result.h"

#include "bench/handoff/samples.h"
#include "bench/serving/record.h"
#include <array>
#include <string>
#include <vector>

namespace baton::bench_handoff {

struct Answer {
  Sample sample;  // what the client saw of it: no exposed_ms, no kv_bytes
  std::vector<TokenId> tokens;
};

// `split`: it should have crossed two nodes. `server`: for messages. Errors: kUnavailable when the
// request failed; kProtocol when its prompt was not cold, its answer has not kOutputTokens one by
// one, or it went another way.
[[nodiscard]] Result<Answer> read_answer(const std::string& server, bool split,
                                         serving::RequestRecord record);

// The promise, as a client sees it. `answers` to one prompt, by Shape. Errors: kInternal with both
// answers when two differ; `what` says which prompt.
Status check_same(const std::string& what,
                  const std::array<std::vector<TokenId>, kShapes.size()>& answers);

}  // namespace baton::bench_handoff
