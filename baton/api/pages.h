// Small bodies: model list, health, readiness, version. Pure.
#pragma once

#include "baton/http/message.h"

#include <cstdint>
#include <string>
#include <vector>

namespace baton::api {

struct ModelCard {
  std::string id;
  std::int64_t created_s = 0;
  std::int32_t max_model_len = 0;  // tokens; as vLLM shows it
};
std::string models_body(const std::vector<ModelCard>& models);

// 200 {"status":"ok"}: the process lives.
http::HttpResponse health_response();
// 200 {"status":"ready"}, or 503 with the reasons; `missing` may be non-empty when ready, too.
http::HttpResponse ready_response(bool ready, const std::vector<std::string>& missing);

}  // namespace baton::api
