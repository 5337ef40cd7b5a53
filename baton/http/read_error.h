// What went wrong when a request was read, and whether anybody is left to be told.
#pragma once

#include "baton/base/result.h"

#include <boost/beast/core/error.hpp>

namespace baton::http {

Error read_error(const boost::beast::error_code& error);
// The client has gone: there is no error to send.
bool is_disconnect(const boost::beast::error_code& error);

}  // namespace baton::http
