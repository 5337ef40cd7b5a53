#include "baton/text/stream_decoder.h"

#include <utility>

namespace baton::text {

StreamDecoder::StreamDecoder(const Tokenizer& tokenizer, std::shared_ptr<const StopStrings> stops)
    : detokenizer_(tokenizer), matcher_(std::move(stops)) {}

StreamDecoder::Step StreamDecoder::feed(TokenId token) {
  Step step;
  if (!stopped() && !finished_) {
    step.stopped = matcher_.feed(detokenizer_.feed(token), step.text);
  }
  return step;
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
  return step;
}

}  // namespace baton::text
