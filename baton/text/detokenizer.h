// Token bytes to text, token by token, never half a character: an incomplete UTF-8 sequence is held
// until its rest arrives. Invalid bytes become U+FFFD, one per maximal invalid part, exactly as if
// the whole answer had been decoded at once with errors="replace": where tokens are cut does not
// matter. One per choice; thread: one at a time.
#pragma once

#include "baton/base/ids.h"
#include "baton/text/tokenizer.h"
#include "baton/text/utf8.h"

#include <cstdint>
#include <string>
#include <string_view>

namespace baton::text {

class Detokenizer {
 public:
  // The tokenizer must outlive it. with_control: control tokens' names are text too (off for
  // answers).
  explicit Detokenizer(const Tokenizer& tokenizer, bool with_control = false)
      : tokenizer_(&tokenizer), with_control_(with_control) {}

  // The text that is complete now; ids outside of the vocabulary give none.
  std::string feed(TokenId token);
  // The rest: U+FFFD if a character was left incomplete. The detokenizer is as new afterwards.
  std::string flush();
  // Bytes of an unfinished character, [0, 3].
  [[nodiscard]] std::size_t pending_bytes() const { return utf8_.pending_bytes(); }

 private:
  const Tokenizer* tokenizer_;
  bool with_control_;
  Utf8Decoder utf8_;
};

}  // namespace baton::text
