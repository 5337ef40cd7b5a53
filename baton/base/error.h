// Errors of requests, peers and start-up. One enum for the whole program: api/ maps it to HTTP
// statuses in one table, wire/ to its numbers. Expected failures travel as Result<T> (result.h);
// an operator's mistake at start-up is thrown as StartupError and caught once, in main.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace baton {

enum class ErrorCode : std::uint8_t {
  kInvalidArgument,    // the request is malformed; param names the field
  kContextTooLong,     // prompt + limit exceed the context or what any pool can hold
  kModelNotFound,      // the request names a model that is not served here
  kNotFound,           // no such route or file
  kUnauthorized,       // missing or wrong key
  kPayloadTooLarge,    // body or frame above its bound
  kMethodNotAllowed,   // the route exists, the method does not
  kOverloaded,         // queues or pool full: try later
  kUnavailable,        // not ready, draining, or no node left that could serve
  kUnsupported,        // a known field or model feature that baton does not do
  kCancelled,          // the client left or an Abort arrived
  kDeadlineExceeded,   // a wait ended
  kPeerLost,           // a connection to a node broke
  kCorruptFrame,       // checksum, length or digest of a peer's bytes is wrong
  kProtocol,           // a peer broke the protocol
  kHandshakeMismatch,  // two nodes may not pair; the message names the field and both values
  kIo,                 // a system call failed
  kInternal,           // our bug, survived
};

// Stable lower-case name, for logs, metrics and the wire's text field.
std::string_view error_code_name(ErrorCode code);

struct Error {
  ErrorCode code = ErrorCode::kInternal;
  std::string message;              // one sentence: what is wrong and what to do
  std::string param = {};           // the request field or file it is about; may be empty
  std::int64_t retry_after_ms = 0;  // hint for kOverloaded and kUnavailable; 0 = none
};

// Thrown at start-up only (flags, model file, bind). Caught once in main: one line, exit code 1.
class StartupError : public std::runtime_error {
 public:
  explicit StartupError(const std::string& message) : std::runtime_error(message) {}
  explicit StartupError(const Error& error) : std::runtime_error(error.message) {}
};

}  // namespace baton
