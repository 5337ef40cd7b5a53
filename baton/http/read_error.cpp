#include "baton/http/read_error.h"

#include <boost/asio/error.hpp>
#include <boost/asio/ssl/error.hpp>
#include <boost/beast/http/error.hpp>

namespace baton::http {

namespace asio = boost::asio;
namespace beast = boost::beast;

Error read_error(const beast::error_code& error) {
  namespace http = beast::http;
  if (error == beast::error::timeout) {
    return {ErrorCode::kDeadlineExceeded, "the request did not arrive in time", {}, 0};
  }
  if (error == http::error::header_limit) {
    return {ErrorCode::kPayloadTooLarge, "the request's headers are too large", "headers", 0};
  }
  if (error == http::error::buffer_overflow) {
    return {ErrorCode::kPayloadTooLarge, "a line of the request is too long", {}, 0};
  }
  if (error == http::error::body_limit) {
    return {ErrorCode::kPayloadTooLarge, "the request's body is too large", {}, 0};
  }
  return {ErrorCode::kInvalidArgument, "the request is not valid HTTP: " + error.message(), {}, 0};
}

bool is_disconnect(const beast::error_code& error) {
  return error == asio::error::eof || error == asio::error::connection_reset ||
         error == asio::error::operation_aborted || error == asio::error::broken_pipe ||
         error == beast::http::error::end_of_stream ||
         error == beast::http::error::partial_message ||
         error == asio::ssl::error::stream_truncated ||
         error.category() == asio::error::get_ssl_category();
}

}  // namespace baton::http
