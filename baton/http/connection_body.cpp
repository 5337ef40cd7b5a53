#include "baton/http/body_budget.h"
#include "baton/http/connection.h"
#include "baton/http/read_error.h"

#include <boost/beast/http/read.hpp>

#include <algorithm>

namespace baton::http {

namespace beast = boost::beast;

asio::awaitable<bool> Connection::readable_body(const Parser& parser) {
  const auto& fields = parser.get();
  const auto transfer = fields.find(beast::http::field::transfer_encoding);
  if (transfer != fields.end() && !beast::iequals(transfer->value(), "chunked")) {
    // Where the body ends would be a matter of opinion: the way requests are smuggled.
    Error why{ErrorCode::kInvalidArgument, "only chunked is known of Transfer-Encoding", {}, 0};
    co_await refuse(owner_->error_page(why));
    co_return false;
  }
  const auto [first, last] = fields.equal_range(beast::http::field::content_encoding);
  const bool plain = std::all_of(
      first, last, [](const auto& line) { return beast::iequals(line.value(), "identity"); });
  if (!plain) {
    HttpResponse response = owner_->error_page(
        {ErrorCode::kInvalidArgument, "send the body as it is: no Content-Encoding is known",
         "Content-Encoding", 0});
    response.status = 415;
    co_await refuse(std::move(response));
    co_return false;
  }
  co_return true;
}

// Bodies are what POST has. Elsewhere they are only read past.
std::size_t Connection::largest_body(const Parser& parser) const {
  constexpr std::size_t kUnwanted = 64 * 1024;
  const std::size_t most = owner_->options().max_body_bytes;
  return parser.get().method() == beast::http::verb::post ? most : std::min(most, kUnwanted);
}

asio::awaitable<bool> Connection::read_body(Parser& parser, HttpRequest* request) {
  if (!co_await readable_body(parser)) {
    co_return false;
  }
  if (parser.is_done()) {
    co_return true;  // it has none
  }
  const std::size_t limit = largest_body(parser);
  const auto length = parser.content_length();
  if (length && *length > limit) {
    Error why{ErrorCode::kPayloadTooLarge,
              "the request's body has " + std::to_string(*length) + " bytes, the limit is " +
                  std::to_string(limit),
              {},
              0};
    co_await refuse(owner_->error_page(why));
    co_return false;
  }
  parser.body_limit(limit);
  const auto expect = parser.get().find(beast::http::field::expect);
  if (expect != parser.get().end() && chunked_ && input_.size() == 0 &&
      beast::iequals(expect->value(), "100-continue")) {
    const Status told = co_await write_all("HTTP/1.1 100 Continue\r\n\r\n", {});
    if (!told) {
      co_return false;
    }
  }
  co_return co_await receive_body(parser, request);
}

// Room is taken for what has come, not for what was announced: words cost nothing.
asio::awaitable<bool> Connection::receive_body(Parser& parser, HttpRequest* request) {
  const auto room = owner_->bodies().room();
  const bool announced =
      parser.content_length().has_value();  // then its memory is touched as it comes
  parser.eager(true);
  stream_.tcp().expires_after(owner_->options().body_deadline);
  while (!parser.is_done()) {
    auto [error, bytes] = co_await beast::http::async_read_some(stream_, input_, parser, kTuple);
    (void)bytes;
    if (error) {
      if (!is_disconnect(error) && error != beast::error::timeout) {
        co_await refuse(owner_->error_page(read_error(error)));
      }
      co_return false;
    }
    const std::string& body = parser.get().body();
    if (!room->hold(announced ? body.size() : body.capacity())) {
      Error why{ErrorCode::kOverloaded,
                "the bodies of requests that are being read or wait to be take too much of the " +
                    std::to_string(owner_->bodies().limit()) + " bytes for all; try again",
                {},
                1'000};
      co_await refuse(owner_->error_page(why));
      co_return false;
    }
  }
  request->body = std::move(parser.get().body());
  request->body.shrink_to_fit();
  request->body_room = room;
  room->hold(request->body.size());
  co_return true;
}

}  // namespace baton::http
