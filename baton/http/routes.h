// Exact routes: a path is a known one byte for byte or it is 404. No normalising, so that doubled
// slashes, dot segments, trailing slashes or another case can never slip past a check made on
// paths. HEAD is answered by GET's route. Built at start, read-only afterwards; any thread.
#pragma once

#include "baton/http/server.h"

#include <map>
#include <memory>
#include <string>
#include <string_view>

namespace baton::http {

class Routes {
 public:
  // Twice the same (method, path) is our bug.
  void add(std::string_view method, std::string_view path, Handler handler);
  [[nodiscard]] bool has_path(std::string_view path) const;
  // The server's handler: dispatches, answers 404 and 405 (with Allow) through `error_page`.
  [[nodiscard]] Handler handler(ErrorPage error_page) const;

 private:
  using Methods = std::map<std::string, Handler, std::less<>>;
  std::map<std::string, Methods, std::less<>> paths_;
};

}  // namespace baton::http
