#include "baton/engine/sequence.h"

#include <algorithm>

namespace baton::engine {

bool Sequence::is_end_token(TokenId token) const {
  return std::find(end_tokens.begin(), end_tokens.end(), token) != end_tokens.end();
}

message::FinishReason Sequence::finish_after_last() const {
  if (is_end_token(request.emitted.back())) {
    return message::FinishReason::kStop;
  }
  return request.emitted.size() >= static_cast<std::size_t>(request.max_tokens)
             ? message::FinishReason::kLength
             : message::FinishReason::kNone;
}

bool names(const message::Abort& abort, const SequenceKey& key) {
  return abort.key.request == key.request &&
         (abort.key.choice == kAllChoices || abort.key.choice == key.choice) &&
         key.epoch <= abort.key.epoch;
}

void StepAborts::begin(std::vector<SequenceKey> keys) {
  std::lock_guard lock(mutex_);
  alive_ = std::move(keys);
  all_aborted_.store(false);
}

void StepAborts::end() {
  std::lock_guard lock(mutex_);
  alive_.clear();
}

void StepAborts::abort(const message::Abort& abort) {
  std::lock_guard lock(mutex_);
  const std::size_t removed =
      std::erase_if(alive_, [&](const SequenceKey& key) { return names(abort, key); });
  if (removed > 0 && alive_.empty()) {
    all_aborted_.store(true);
  }
}

}  // namespace baton::engine
