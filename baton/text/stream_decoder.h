// From the token events of one choice to text for its client: detokenizer and stop strings
// together. Token events must come in index order. One per choice; thread: one at a time.
#pragma once

#include "baton/text/detokenizer.h"
#include "baton/text/stop_strings.h"
#include "baton/text/tokenizer.h"

#include <memory>
#include <string>
#include <string_view>

namespace baton::text {

class StreamDecoder {
 public:
  struct Step {
    std::string text;      // may go to the client now; whole characters; may be empty
    bool stopped = false;  // a stop string is complete: finish_reason "stop", send Abort
  };

  // The tokenizer must outlive it. `stops` may be null: none.
  StreamDecoder(const Tokenizer& tokenizer, std::shared_ptr<const StopStrings> stops);

  // The next token. After a stop nothing comes out any more (overrun tokens are dropped).
  Step feed(TokenId token);
  // The answer ended (EOS, limit): what was held back. Not after a stop.
  Step finish();

  [[nodiscard]] bool stopped() const { return matcher_.stopped(); }
  [[nodiscard]] std::string_view matched_stop() const { return matcher_.matched(); }

 private:
  Detokenizer detokenizer_;
  StopMatcher matcher_;
  bool finished_ = false;
};

}  // namespace baton::text
