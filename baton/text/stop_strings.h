// Stop strings over streamed text: nothing of a stop string is ever let out, and text that might
// begin one is held back until that is impossible, then let out unchanged. The match that is
// complete first wins; of those complete at the same byte, the longest. So the result depends on
// the text alone, not on where tokens cut it. One StopMatcher per choice; thread: one at a time.
#pragma once

#include "baton/base/result.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace baton::text {

// OpenAI allows 4; 16 leaves room and bounds the work per byte.
inline constexpr std::size_t kMaxStopStrings = 16;
// As much as is ever held back from a client.
inline constexpr std::size_t kMaxStopStringBytes = 1024;

// Checked once per request, shared by its choices.
class StopStrings {
 public:
  StopStrings() = default;  // none
  // Errors: kInvalidArgument, param "stop": too many, too long, empty, or not UTF-8.
  static Result<StopStrings> create(std::vector<std::string> strings);

  [[nodiscard]] const std::vector<std::string>& strings() const { return strings_; }
  [[nodiscard]] bool empty() const { return strings_.empty(); }

 private:
  friend class StopMatcher;
  std::vector<std::string> strings_;
  // Per string and matched length k >= 1, at [k]: length of the longest proper border.
  std::vector<std::vector<std::uint16_t>> borders_;
};

class StopMatcher {
 public:
  explicit StopMatcher(std::shared_ptr<const StopStrings> stops);

  // Appends the text that may go out to `out`. True when a stop string is complete: all before it
  // is out, the rest of the text is dropped, as is whatever is fed later.
  bool feed(std::string_view text, std::string& out);
  // The answer ends without a match: what was held back goes out.
  void flush(std::string& out);

  [[nodiscard]] bool stopped() const { return matched_ != kNone; }
  // The string that matched; empty before.
  [[nodiscard]] std::string_view matched() const;
  [[nodiscard]] std::size_t held_bytes() const { return held_.size(); }

 private:
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);
  std::shared_ptr<const StopStrings> stops_;
  std::vector<std::size_t> progress_;  // per string: bytes of it that end the text so far
  std::string held_;                   // the longest of those prefixes
  std::size_t matched_ = kNone;
};

}  // namespace baton::text
