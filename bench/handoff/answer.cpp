#include "bench/handoff/answer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "bench/handoff/options.h"
#include "bench/median.h"
#include "bench/serving/summary.h"
#include <algorithm>
#include <cstdint>
#include <utility>

namespace baton::bench_handoff {

Result<Answer> read_answer(const std::string& server, bool split, serving::RequestRecord record) {
  const auto wrong = [&](ErrorCode code, const std::string& what) {
    return fail(code, server + ": " + what);
  };
  if (!record.ok()) {
    return wrong(ErrorCode::kUnavailable,
                 fmt::format("a request failed: {}: {}", record.failure, record.failure_message));
  }
  const std::vector<double> first = serving::values_ms(record, serving::Metric::kTtft);
  const std::vector<double> second = serving::values_ms(record, serving::Metric::kTtst);
  std::vector<double> gaps = serving::values_ms(record, serving::Metric::kItl);
  if (record.token_ids.size() != kOutputTokens || record.cached_tokens > 0 || first.empty() ||
      second.empty() || gaps.size() < 2) {
    return wrong(ErrorCode::kProtocol,
                 fmt::format("not a cold request with {} tokens one by one: {} tokens in {} "
                             "chunks, {} of the prompt cached",
                             kOutputTokens, record.token_ids.size(), record.arrivals.size(),
                             std::max<std::int64_t>(record.cached_tokens, 0)));
  }
  if (split != (record.path == "split")) {
    return wrong(ErrorCode::kProtocol,
                 fmt::format("the request {} two nodes", split ? "did not cross" : "crossed"));
  }
  gaps.erase(gaps.begin());  // up to the second token
  Answer answer;
  answer.sample.ttft_ms = first.front();
  answer.sample.ttst_ms = second.front();
  answer.sample.later_gap_ms = bench::median(std::move(gaps));
  answer.tokens = std::move(record.token_ids);
  return answer;
}

Status check_same(const std::string& what,
                  const std::array<std::vector<TokenId>, kShapes.size()>& answers) {
  for (std::size_t index = 1; index < answers.size(); ++index) {
    if (answers[index] != answers.front()) {
      return fail(ErrorCode::kInternal,
                  fmt::format("the answers to {} differ: {}: {}; {}: {}", what, kShapeNames.front(),
                              fmt::join(answers.front(), " "), kShapeNames[index],
                              fmt::join(answers[index], " ")));
    }
  }
  return {};
}

}  // namespace baton::bench_handoff
