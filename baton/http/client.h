// Plain HTTP/1.1 from the client's side: one request on a connection of its own, the body's bytes
// handed on as they arrive. For load tests (bench/serving) and for etcd (membership). Everything on
// the executor of the awaiting coroutine, which must be serial.
#pragma once

#include "baton/base/clock.h"
#include "baton/base/result.h"
#include "baton/net/address.h"
#include "baton/net/asio.h"

#include <functional>
#include <string>
#include <string_view>

namespace baton::http {

// Where and how to ask. Copied by nobody: it outlives all requests.
struct HttpTarget {
  net::HostPort address;
  std::string host;     // for the Host header
  std::string prefix;   // of every path; empty, or "/something" without a slash at its end
  std::string api_key;  // empty: no Authorization
  Duration connect_timeout = std::chrono::seconds(10);
  Duration stall_timeout = std::chrono::seconds(600);  // silence in mid-answer
};

// "http://host:port", "http://host" (port 80), with a path or without. Errors: kInvalidArgument
// naming the flag.
Result<HttpTarget> parse_http_url(std::string_view url, std::string_view flag);

struct HttpAnswer {
  int status = 0;
  std::string body;  // whole, unless its bytes went to on_bytes
};

// With each piece of the body of a 200 and the time at which it was read; false: the rest is not
// wanted, the connection is closed.
using OnBytes = std::function<bool(std::string_view bytes, TimePoint at)>;

// Asks and reads until the answer ends. Errors: kUnavailable (no connection), kPeerLost (cut in
// mid-answer), kDeadlineExceeded, kProtocol (not HTTP).
asio::awaitable<Result<HttpAnswer>> fetch(const HttpTarget* target, std::string method,
                                          std::string path, std::string body, OnBytes on_bytes);

}  // namespace baton::http
