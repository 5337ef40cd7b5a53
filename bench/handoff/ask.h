// Small questions to a node over HTTP, from a thread that may wait for the answer.
#pragma once

#include "baton/base/result.h"
#include "baton/http/client.h"

#include "bench/handoff/metrics_text.h"
#include <cstdint>
#include <string>

namespace baton::bench_handoff {

// "127.0.0.1:8080", as a node announces it. Errors: kProtocol.
[[nodiscard]] Result<http::HttpTarget> target_of(const std::string& address);

// Errors: those of http::fetch.
[[nodiscard]] Result<http::HttpAnswer> get(const http::HttpTarget& target, const std::string& path);
// Errors: the same; kProtocol for another status than 200.
[[nodiscard]] Result<MetricsText> scrape(const http::HttpTarget& target);

struct ServedModel {
  std::string name;
  std::int32_t max_model_len = 0;  // tokens: the smaller of the model's context and the pool
};
// Errors: the same; kProtocol for a page without them.
[[nodiscard]] Result<ServedModel> ask_for_model(const http::HttpTarget& target);

}  // namespace baton::bench_handoff
