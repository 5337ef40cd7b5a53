#include "baton/base/error.h"

namespace baton {

std::string_view error_code_name(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return "invalid_argument";
    case ErrorCode::kContextTooLong:
      return "context_too_long";
    case ErrorCode::kModelNotFound:
      return "model_not_found";
    case ErrorCode::kNotFound:
      return "not_found";
    case ErrorCode::kUnauthorized:
      return "unauthorized";
    case ErrorCode::kPayloadTooLarge:
      return "payload_too_large";
    case ErrorCode::kMethodNotAllowed:
      return "method_not_allowed";
    case ErrorCode::kOverloaded:
      return "overloaded";
    case ErrorCode::kUnavailable:
      return "unavailable";
    case ErrorCode::kUnsupported:
      return "unsupported";
    case ErrorCode::kCancelled:
      return "cancelled";
    case ErrorCode::kDeadlineExceeded:
      return "deadline_exceeded";
    case ErrorCode::kPeerLost:
      return "peer_lost";
    case ErrorCode::kCorruptFrame:
      return "corrupt_frame";
    case ErrorCode::kProtocol:
      return "protocol";
    case ErrorCode::kHandshakeMismatch:
      return "handshake_mismatch";
    case ErrorCode::kIo:
      return "io";
    case ErrorCode::kInternal:
      return "internal";
  }
  return "internal";
}

}  // namespace baton
