#include "baton/http/routes.h"

#include "baton/base/check.h"

namespace baton::http {

namespace {

// Free function: a coroutine lambda with captures would outlive them.
asio::awaitable<void> refuse(ResponseWriter* writer, HttpResponse response) {
  (void)co_await writer->send(std::move(response));
}

}  // namespace

void Routes::add(std::string_view method, std::string_view path, Handler handler) {
  const bool added =
      paths_[std::string(path)].emplace(std::string(method), std::move(handler)).second;
  BATON_CHECK(added, "route {} {} added twice", method, path);
}

bool Routes::has_path(std::string_view path) const { return paths_.find(path) != paths_.end(); }

Handler Routes::handler(ErrorPage error_page) const {
  return [paths = paths_, page = std::move(error_page)](
             HttpRequest request, ResponseWriter& writer) -> asio::awaitable<void> {
    const auto methods = paths.find(request.path);
    if (methods == paths.end()) {
      Error error{ErrorCode::kNotFound, "there is no route " + request.path, {}, 0};
      return refuse(&writer, page(error));
    }
    const std::string_view method = request.method;
    const std::string_view wanted = method == "HEAD" ? "GET" : method;
    const auto route = methods->second.find(wanted);
    if (route == methods->second.end()) {
      std::string allowed;
      for (const auto& [name, handler] : methods->second) {
        allowed += allowed.empty() ? name : ", " + name;
        allowed += name == "GET" ? ", HEAD" : "";
      }
      Error error{ErrorCode::kMethodNotAllowed,
                  request.path + " takes " + allowed + ", not " + request.method,
                  {},
                  0};
      HttpResponse response = page(error);
      response.headers.emplace_back("Allow", allowed);
      return refuse(&writer, std::move(response));
    }
    return route->second(std::move(request), writer);
  };
}

}  // namespace baton::http
