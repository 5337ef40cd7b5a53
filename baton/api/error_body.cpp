#include "baton/api/error_body.h"

#include "baton/api/json_writer.h"

#include <algorithm>

namespace baton::api {

namespace {

constexpr std::string_view kInvalid = "invalid_request_error";
constexpr std::string_view kServer = "server_error";

// What goes wrong between nodes is for the log: texts of peers and systems hold addresses and other
// internals that no client needs.
std::string_view public_message(const Error& error) {
  switch (error.code) {
    case ErrorCode::kPeerLost:
    case ErrorCode::kCorruptFrame:
    case ErrorCode::kProtocol:
    case ErrorCode::kHandshakeMismatch:
      return "a node of the cluster failed while it worked on the request";
    case ErrorCode::kIo:
    case ErrorCode::kInternal:
      return "the server failed to answer";
    default:
      return error.message;
  }
}

}  // namespace

ErrorKind error_kind(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return {400, kInvalid, {}};
    case ErrorCode::kContextTooLong:
      return {400, kInvalid, "context_length_exceeded"};
    case ErrorCode::kModelNotFound:
      return {404, kInvalid, "model_not_found"};
    case ErrorCode::kNotFound:
      return {404, kInvalid, "not_found"};
    case ErrorCode::kUnauthorized:
      return {401, kInvalid, "invalid_api_key"};
    case ErrorCode::kPayloadTooLarge:
      return {413, kInvalid, "payload_too_large"};
    case ErrorCode::kMethodNotAllowed:
      return {405, kInvalid, "method_not_allowed"};
    case ErrorCode::kOverloaded:
      return {429, "rate_limit_error", "overloaded"};
    case ErrorCode::kUnavailable:
      return {503, "unavailable_error", "unavailable"};
    case ErrorCode::kUnsupported:
      return {400, kInvalid, "unsupported"};
    case ErrorCode::kCancelled:
      return {503, "unavailable_error", "cancelled"};
    case ErrorCode::kDeadlineExceeded:
      return {504, "timeout_error", "deadline_exceeded"};
    case ErrorCode::kPeerLost:
      return {503, kServer, "peer_lost"};
    case ErrorCode::kCorruptFrame:
      return {502, kServer, "corrupt_frame"};
    case ErrorCode::kProtocol:
      return {502, kServer, "protocol"};
    case ErrorCode::kHandshakeMismatch:
      return {503, kServer, "handshake_mismatch"};
    case ErrorCode::kIo:
      return {500, kServer, "io"};
    case ErrorCode::kInternal:
      return {500, kServer, "internal"};
  }
  return {500, kServer, "internal"};
}

std::string error_body(const Error& error) {
  const ErrorKind kind = error_kind(error.code);
  std::string out;
  JsonWriter json(out);
  json.begin_object().key("error").begin_object();
  json.key("message").string(public_message(error));
  json.key("type").string(kind.type);
  json.key("param");
  error.param.empty() ? json.null() : json.string(error.param);
  json.key("code");
  kind.code.empty() ? json.null() : json.string(kind.code);
  json.end_object().end_object();
  return out;
}

http::HttpResponse error_response(const Error& error) {
  http::HttpResponse response;
  response.status = error_kind(error.code).status;
  response.body = error_body(error);
  if (response.status == 429 || response.status == 503) {
    const std::int64_t seconds = std::max<std::int64_t>(1, (error.retry_after_ms + 999) / 1000);
    response.headers.emplace_back("Retry-After", std::to_string(seconds));
  }
  if (response.status == 401) {
    response.headers.emplace_back("WWW-Authenticate", "Bearer");
  }
  return response;
}

std::string error_event(const Error& error) {
  std::string out;
  http::append_event(out, error_body(error), "error");
  return out;
}

}  // namespace baton::api
