// A request and a response as values, without any socket: what handlers, api/ and tests see of
// HTTP. No Asio here, so that pure folders may include it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace baton::http {

using Header = std::pair<std::string, std::string>;

struct HttpRequest {
  std::string method;  // upper case as sent: "GET"
  std::string target;  // as on the request line
  std::string path;    // target up to '?'; not decoded, not normalised: routes match exactly
  std::string query;   // after '?', may be empty
  std::vector<Header> headers;  // names in lower case, in order of arrival
  std::string body;
  std::shared_ptr<const void> body_room;  // the server's account of it, given back with the request
  std::string remote;                     // "127.0.0.1:40312", for logs

  // The first header of that (lower-case) name. The view lives as long as this request.
  [[nodiscard]] std::optional<std::string_view> header(std::string_view name) const;
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::vector<Header> headers = {};  // besides Content-Type, Content-Length, Connection, Server
  std::string body = {};
};

// Splits a request target into path and query, byte for byte.
void split_target(std::string_view target, std::string& path, std::string& query);

// ---- server-sent events ----
// Appends one event; `data` and `id` must hold no line break (JSON never does). `event` empty =
// "message". `id` is what a client may send back as Last-Event-ID; empty: that of the event before.
void append_event(std::string& out, std::string_view data, std::string_view event = {},
                  std::string_view id = {});
// Appends a comment line, which clients ignore: keeps proxies from cutting a silent stream. No
// blank line follows: some clients take one for the end of an event, of which they know the last
// id.
void append_comment(std::string& out, std::string_view text);

}  // namespace baton::http
