// From the token events of one choice to text for its client: detokenizer and stop strings
// together. Token events must come in index order. One per choice; thread: one at a time.
#pragma once

#include "baton/text/detokenizer.h"
#include "baton/text/stop_strings.h"
#include "baton/text/tokenizer.h"

#include <cstdint>
#include <deque>
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
  // An end token (EOS): counts as fed, has no text.
  void skip();
  // The answer ended (EOS, limit): what was held back. Not after a stop.
  Step finish();

  // Tokens fed, the one that completed a stop string included, overrun ones not.
  [[nodiscard]] std::int64_t tokens_fed() const { return tokens_fed_; }
  // Tokens [0, tokens_out) are those whose text is wholly out: the SSE id may name the last of
  // them. After a stop or finish(): all that were fed.
  [[nodiscard]] std::int64_t tokens_out() const;
  [[nodiscard]] bool all_out() const { return tokens_out() == tokens_fed_; }
  [[nodiscard]] bool stopped() const { return matcher_.stopped(); }
  [[nodiscard]] std::string_view matched_stop() const { return matcher_.matched(); }

 private:
  Detokenizer detokenizer_;
  StopMatcher matcher_;
  std::int64_t tokens_fed_ = 0;
  std::int64_t text_bytes_ = 0;  // out of the detokenizer
  std::int64_t out_bytes_ = 0;   // let out by the matcher
  // Tokens not known to be out: index, and where their text ends (in bytes of text, or open while
  // their last character is unfinished).
  struct Held {
    std::int64_t index = 0;
    std::int64_t text_end = 0;
  };
  std::deque<Held> held_;
  bool finished_ = false;
};

}  // namespace baton::text
