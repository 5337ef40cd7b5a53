// See text.h.
#include "baton/text/text.h"

#include "baton/base/check.h"

#include <algorithm>
#include <utility>

namespace baton::text {

Text::Text(std::string bytes, bool from_template) : bytes_(std::move(bytes)) {
  if (!bytes_.empty()) {
    runs_.push_back({bytes_.size(), from_template});
  }
}

void Text::append(std::string_view bytes, bool from_template) {
  if (bytes.empty()) {
    return;
  }
  bytes_ += bytes;
  if (!runs_.empty() && runs_.back().from_template == from_template) {
    runs_.back().end = bytes_.size();
  } else {
    runs_.push_back({bytes_.size(), from_template});
  }
}

void Text::append(const Text& other) { append_slice(other, 0, other.bytes_.size()); }

void Text::append_slice(const Text& other, std::size_t begin, std::size_t end) {
  BATON_CHECK(begin <= end && end <= other.bytes_.size(), "[{}, {}) of {}", begin, end,
              other.bytes_.size());
  const std::string_view bytes = other.bytes_;
  auto run = std::upper_bound(other.runs_.begin(), other.runs_.end(), begin,
                              [](std::size_t at, const Run& r) { return at < r.end; });
  for (; begin < end; ++run) {
    const std::size_t stop = std::min(end, run->end);
    append(bytes.substr(begin, stop - begin), run->from_template);
    begin = stop;
  }
}

Text Text::slice(std::size_t begin, std::size_t end) const {
  Text result;
  result.append_slice(*this, begin, end);
  return result;
}

bool Text::from_template_at(std::size_t position) const {
  const auto run = std::upper_bound(runs_.begin(), runs_.end(), position,
                                    [](std::size_t at, const Run& r) { return at < r.end; });
  return run != runs_.end() && run->from_template;
}

std::vector<Piece> Text::pieces() const {
  std::vector<Piece> result;
  result.reserve(runs_.size());
  std::size_t begin = 0;
  for (const Run& run : runs_) {
    result.push_back({bytes_.substr(begin, run.end - begin), run.from_template});
    begin = run.end;
  }
  return result;
}

}  // namespace baton::text
