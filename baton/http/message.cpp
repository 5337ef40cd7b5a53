#include "baton/http/message.h"

#include "baton/base/check.h"

namespace baton::http {

std::optional<std::string_view> HttpRequest::header(std::string_view name) const {
  for (const auto& [key, value] : headers) {
    if (key == name) {
      return std::string_view(value);
    }
  }
  return std::nullopt;
}

void split_target(std::string_view target, std::string& path, std::string& query) {
  const std::size_t mark = target.find('?');
  path.assign(target.substr(0, mark));
  query.assign(mark == std::string_view::npos ? std::string_view() : target.substr(mark + 1));
}

void append_event(std::string& out, std::string_view data, std::string_view event,
                  std::string_view id) {
  BATON_DCHECK(data.find_first_of("\r\n") == std::string_view::npos, "line break in an SSE event");
  BATON_DCHECK(id.find_first_of("\r\n") == std::string_view::npos, "line break in an SSE id");
  if (!id.empty()) {
    out.append("id: ").append(id).append("\n");
  }
  if (!event.empty()) {
    out.append("event: ").append(event).append("\n");
  }
  out.append("data: ").append(data).append("\n\n");
}

void append_comment(std::string& out, std::string_view text) {
  out.append(": ").append(text).append("\n");
}

}  // namespace baton::http
