// The one table from ErrorCode to what an HTTP client sees: status, OpenAI's type and code. Pure.
#pragma once

#include "baton/base/error.h"
#include "baton/http/message.h"

#include <string>
#include <string_view>

namespace baton::api {

struct ErrorKind {
  int status;
  std::string_view type;  // "invalid_request_error", ...
  std::string_view code;  // "model_not_found", ...; empty = null
};
ErrorKind error_kind(ErrorCode code);

// {"error":{"message","type","param","code"}}
std::string error_body(const Error& error);
// The body with its status; Retry-After (whole seconds, at least 1) with 429 and 503.
http::HttpResponse error_response(const Error& error);
// In a stream that has begun: `event: error` with the same body. No [DONE] follows: a broken stream
// must not look complete.
std::string error_event(const Error& error);

}  // namespace baton::api
