#include "baton/http/client.h"

#include "baton/net/tcp.h"

#include <boost/beast/http/error.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <fmt/format.h>

#include <array>
#include <memory>
#include <utility>

namespace baton::http {

namespace {

namespace beast_http = boost::beast::http;

constexpr std::size_t kReadBytes = std::size_t{64} << 10U;
constexpr std::size_t kMaxErrorPage = std::size_t{1} << 20U;

using Parser = beast_http::response_parser<beast_http::string_body>;

std::string request_text(const HttpTarget& target, const std::string& method,
                         const std::string& path, const std::string& body) {
  std::string text = fmt::format("{} {}{} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n", method,
                                 target.prefix, path, target.host);
  if (!target.api_key.empty()) {
    text += fmt::format("Authorization: Bearer {}\r\n", target.api_key);
  }
  if (!body.empty()) {
    text += fmt::format("Content-Type: application/json\r\nContent-Length: {}\r\n", body.size());
  }
  return text + "\r\n" + body;
}

// Parses what has come; bytes of an unfinished line stay in `pending`.
Status parse_some(Parser& parser, std::string& pending) {
  while (!pending.empty() && !parser.is_done()) {
    boost::system::error_code error;
    const std::size_t used = parser.put(asio::buffer(pending), error);
    pending.erase(0, used);
    if (error == beast_http::error::need_more) {
      break;
    }
    if (error) {
      return fail(ErrorCode::kProtocol, "the answer is not valid HTTP: " + error.message());
    }
  }
  return {};
}

}  // namespace

Result<HttpTarget> parse_http_url(std::string_view url, std::string_view flag) {
  const auto wrong = [&](std::string_view why) {
    return fail(ErrorCode::kInvalidArgument, fmt::format("{}: '{}' {}", flag, url, why));
  };
  constexpr std::string_view kScheme = "http://";
  if (url.starts_with("https://")) {
    return wrong("is https, and only plain http is spoken here");
  }
  if (!url.starts_with(kScheme)) {
    return wrong("is not http://HOST:PORT");
  }
  const std::string_view rest = url.substr(kScheme.size());
  const std::size_t slash = rest.find('/');
  HttpTarget target;
  target.host = std::string(rest.substr(0, slash));
  target.prefix = slash == std::string_view::npos ? "" : std::string(rest.substr(slash));
  while (target.prefix.ends_with('/')) {
    target.prefix.pop_back();
  }
  if (target.host.empty() || target.host.find('@') != std::string::npos ||
      target.prefix.find_first_of(" \r\n?#") != std::string::npos) {
    return wrong("is not http://HOST:PORT");
  }
  const std::size_t colon = target.host.rfind(':');
  const bool has_port =
      colon != std::string::npos && target.host.find(']', colon) == std::string::npos;
  auto address = net::parse_host_port(has_port ? target.host : target.host + ":80");
  if (!address) {
    return wrong("has no usable HOST:PORT: " + address.error().message);
  }
  target.address = *std::move(address);
  return target;
}

asio::awaitable<Result<HttpAnswer>> fetch(const HttpTarget* target, std::string method,
                                          std::string path, std::string body, OnBytes on_bytes) {
  net::SocketOptions options;
  auto socket = co_await net::connect(target->address, target->connect_timeout, options);
  if (!socket) {
    co_return fail(ErrorCode::kUnavailable, socket.error().message);
  }
  net::TcpStream stream(*std::move(socket));
  std::string request = request_text(*target, method, path, body);
  std::vector<iovec> parts(1, iovec{request.data(), request.size()});
  // A server that refuses early may close before it has read all of it: its answer counts.
  Status written = co_await stream.write_all(std::move(parts), target->stall_timeout);

  Parser parser;
  parser.body_limit(boost::none);
  parser.eager(true);
  HttpAnswer answer;
  std::string pending;
  const auto buffer = std::make_unique<std::array<std::byte, kReadBytes>>();
  while (!parser.is_done()) {
    std::span<std::byte> into(*buffer);
    auto got = co_await stream.read_some(into, target->stall_timeout);
    const TimePoint at = SystemClock().now();
    if (!got) {
      // Without a length and chunks the end of the connection is the end of the answer.
      if (parser.is_header_done() && parser.need_eof() &&
          got.error().code == ErrorCode::kPeerLost) {
        break;
      }
      co_return fail(written ? std::move(got).error() : std::move(written).error());
    }
    pending.append(reinterpret_cast<const char*>(buffer->data()), *got);
    Status parsed = parse_some(parser, pending);
    if (!parsed) {
      co_return fail(std::move(parsed).error());
    }
    if (!parser.is_header_done()) {
      continue;
    }
    answer.status = static_cast<int>(parser.get().result_int());
    std::string& arrived = parser.get().body();
    if (on_bytes && answer.status == 200) {
      if (!arrived.empty() && !on_bytes(arrived, at)) {
        co_return answer;
      }
    } else {
      answer.body += arrived;
      if (answer.body.size() > kMaxErrorPage) {
        co_return answer;
      }
    }
    arrived.clear();
  }
  co_return answer;
}

}  // namespace baton::http
