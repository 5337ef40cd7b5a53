// One Knuth-Morris-Pratt automaton per stop string, all fed the same bytes: amortised constant time
// per byte and string. The text held back is always the longest prefix of a stop string that ends
// the text; as stop strings and text are valid UTF-8, it begins at a character.
#include "baton/text/stop_strings.h"

#include "baton/text/utf8.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace baton::text {
namespace {

std::vector<std::uint16_t> borders_of(std::string_view string) {
  static_assert(kMaxStopStringBytes <= 0xFFFF);
  std::vector<std::uint16_t> borders(string.size() + 1, 0);
  std::size_t k = 0;
  for (std::size_t i = 1; i < string.size(); ++i) {
    while (k > 0 && string[i] != string[k]) {
      k = borders[k];
    }
    k += string[i] == string[k] ? 1 : 0;
    borders[i + 1] = static_cast<std::uint16_t>(k);
  }
  return borders;
}

}  // namespace

Result<StopStrings> StopStrings::create(std::vector<std::string> strings) {
  if (strings.size() > kMaxStopStrings) {
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("{} stop strings, at most {} are allowed", strings.size(), kMaxStopStrings),
        "stop");
  }
  StopStrings result;
  for (const std::string& string : strings) {
    if (string.empty()) {
      return fail(ErrorCode::kInvalidArgument, "a stop string must not be empty", "stop");
    }
    if (string.size() > kMaxStopStringBytes) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("a stop string has {} bytes, at most {} are allowed", string.size(),
                              kMaxStopStringBytes),
                  "stop");
    }
    if (!is_valid_utf8(string)) {
      return fail(ErrorCode::kInvalidArgument, "a stop string is not valid UTF-8", "stop");
    }
    result.borders_.push_back(borders_of(string));
  }
  result.strings_ = std::move(strings);
  return result;
}

StopMatcher::StopMatcher(std::shared_ptr<const StopStrings> stops)
    : stops_(stops ? std::move(stops) : std::make_shared<const StopStrings>()),
      progress_(stops_->strings().size(), 0) {}

bool StopMatcher::feed(std::string_view text, std::string& out) {
  if (stopped()) {
    return true;
  }
  if (stops_->empty()) {
    out += text;
    return false;
  }
  const auto& strings = stops_->strings();
  std::string seen = std::move(held_);
  held_.clear();
  std::size_t longest = 0;
  for (const char byte : text) {
    seen += byte;
    longest = 0;
    std::size_t matched_bytes = 0;
    for (std::size_t s = 0; s < strings.size(); ++s) {
      const std::string& string = strings[s];
      std::size_t k = progress_[s];
      while (k > 0 && string[k] != byte) {
        k = stops_->borders_[s][k];
      }
      k += string[k] == byte ? 1 : 0;
      progress_[s] = k;
      longest = std::max(longest, k);
      if (k == string.size() && k > matched_bytes) {
        matched_bytes = k;
        matched_ = s;
      }
    }
    if (stopped()) {
      out.append(seen, 0, seen.size() - matched_bytes);
      return true;
    }
  }
  if (text.empty()) {
    held_ = std::move(seen);
    return false;
  }
  out.append(seen, 0, seen.size() - longest);
  held_ = seen.substr(seen.size() - longest);
  return false;
}

void StopMatcher::flush(std::string& out) {
  if (!stopped()) {
    out += held_;
  }
  held_.clear();
  std::fill(progress_.begin(), progress_.end(), 0);
}

std::string_view StopMatcher::matched() const {
  return stopped() ? std::string_view(stops_->strings()[matched_]) : std::string_view();
}

}  // namespace baton::text
