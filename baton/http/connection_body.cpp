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

// A room for the body, for whose end the client's word is taken, or the worst case.
asio::awaitable<std::shared_ptr<BodyBudget::Room>> Connection::take_room(const Parser& parser) {
  const std::size_t limit = owner_->options().max_body_bytes;
  const auto length = parser.content_length();
  if (length && *length > limit) {
    Error why{ErrorCode::kPayloadTooLarge,
              "the request's body has " + std::to_string(*length) + " bytes, the limit is " +
                  std::to_string(limit),
              {},
              0};
    co_await refuse(owner_->error_page(why));
    co_return nullptr;
  }
  auto room = owner_->bodies().take(length ? static_cast<std::size_t>(*length) : limit);
  if (!room) {
    Error why{ErrorCode::kOverloaded,
              "the bodies of requests under way take the " +
                  std::to_string(owner_->bodies().limit()) + " bytes they may; try again",
              {},
              1'000};
    co_await refuse(owner_->error_page(why));
  }
  co_return room;
}

asio::awaitable<bool> Connection::read_body(Parser& parser, HttpRequest* request) {
  if (!co_await readable_body(parser)) {
    co_return false;
  }
  if (parser.is_done()) {
    co_return true;  // it has none
  }
  const auto room = co_await take_room(parser);
  if (!room) {
    co_return false;
  }
  const ServerOptions& options = owner_->options();
  parser.body_limit(options.max_body_bytes);
  const auto expect = parser.get().find(beast::http::field::expect);
  if (expect != parser.get().end() && chunked_ && input_.size() == 0 &&
      beast::iequals(expect->value(), "100-continue")) {
    const Status told = co_await write_all("HTTP/1.1 100 Continue\r\n\r\n", {});
    if (!told) {
      co_return false;
    }
  }
  stream_.tcp().expires_after(options.body_deadline);
  auto [error, bytes] = co_await beast::http::async_read(stream_, input_, parser, kTuple);
  (void)bytes;
  if (!error) {
    request->body = std::move(parser.get().body());
    request->body_room = room;
    room->shrink_to(request->body.size());
    co_return true;
  }
  if (!is_disconnect(error) && error != beast::error::timeout) {
    co_await refuse(owner_->error_page(read_error(error)));
  }
  co_return false;
}

}  // namespace baton::http
