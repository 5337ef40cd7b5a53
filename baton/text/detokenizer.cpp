// See detokenizer.h.
#include "baton/text/detokenizer.h"

namespace baton::text {

std::string Detokenizer::feed(TokenId token) {
  std::string out;
  if (with_control_ || !tokenizer_->is_control(token)) {
    utf8_.feed(tokenizer_->token_bytes(token), out);
  }
  return out;
}

std::string Detokenizer::flush() {
  std::string out;
  utf8_.flush(out);
  return out;
}

}  // namespace baton::text
