// Text is counted in bytes at two points: out of the detokenizer, and past the stop matcher. A
// token is out when the text that it took part in has passed the second point; a token whose last
// character is unfinished waits for the token that finishes it.
#include "baton/text/stream_decoder.h"

#include <limits>
#include <utility>

namespace baton::text {
namespace {
constexpr std::int64_t kOpen = std::numeric_limits<std::int64_t>::max();
}  // namespace

StreamDecoder::StreamDecoder(const Tokenizer& tokenizer, std::shared_ptr<const StopStrings> stops)
    : detokenizer_(tokenizer), matcher_(std::move(stops)) {}

StreamDecoder::Step StreamDecoder::feed(TokenId token) {
  if (stopped() || finished_) {
    return {};
  }
  const std::string text = detokenizer_.feed(token);
  const std::size_t pending = detokenizer_.pending_bytes();
  if (!text.empty()) {  // what was unfinished before this token is finished by it
    const std::int64_t end = text_bytes_ + static_cast<std::int64_t>(text.size());
    for (auto held = held_.rbegin(); held != held_.rend() && held->text_end == kOpen; ++held) {
      held->text_end = end;
    }
  }
  text_bytes_ += static_cast<std::int64_t>(text.size());
  held_.push_back({tokens_fed_++, pending > 0 ? kOpen : text_bytes_});

  Step step;
  step.stopped = matcher_.feed(text, step.text);
  out_bytes_ += static_cast<std::int64_t>(step.text.size());
  while (!held_.empty() && (step.stopped || held_.front().text_end <= out_bytes_)) {
    held_.pop_front();
  }
  return step;
}

void StreamDecoder::skip() {
  if (stopped() || finished_) {
    return;
  }
  const bool open = !held_.empty() && held_.back().text_end == kOpen;
  held_.push_back({tokens_fed_++, open ? kOpen : text_bytes_});
  while (!held_.empty() && held_.front().text_end <= out_bytes_) {
    held_.pop_front();
  }
}

StreamDecoder::Step StreamDecoder::finish() {
  Step step;
  if (stopped() || finished_) {
    step.stopped = stopped();
    return step;
  }
  finished_ = true;
  step.stopped = matcher_.feed(detokenizer_.flush(), step.text);
  matcher_.flush(step.text);
  held_.clear();
  return step;
}

std::int64_t StreamDecoder::tokens_out() const {
  return held_.empty() ? tokens_fed_ : held_.front().index;
}

}  // namespace baton::text
