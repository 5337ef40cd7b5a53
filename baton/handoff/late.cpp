#include "baton/handoff/late.h"

namespace baton::handoff {

void Tombstones::add(const SequenceKey& key, TimePoint now) {
  const Id id{key.request, key.choice};
  const auto [place, added] = epochs_.try_emplace(id, key.epoch);
  if (!added) {
    if (place->second >= key.epoch) {
      return;
    }
    place->second = key.epoch;
  }
  ages_.push_back({id, key.epoch, now + milliseconds(kTombstoneMs)});
  while (ages_.size() > kMaxTombstones) {
    drop_oldest();
  }
}

void Tombstones::drop_oldest() {
  const Age& oldest = ages_.front();
  // A younger age of the same id keeps the entry.
  if (const auto found = epochs_.find(oldest.id);
      found != epochs_.end() && found->second == oldest.epoch) {
    epochs_.erase(found);
  }
  ages_.pop_front();
}

bool Tombstones::covers(const Id& id, Epoch epoch) const {
  const auto found = epochs_.find(id);
  return found != epochs_.end() && epoch <= found->second;
}

bool Tombstones::covers(const SequenceKey& key) const {
  return covers({key.request, key.choice}, key.epoch) ||
         covers({key.request, kAllChoices}, key.epoch);
}

void Tombstones::expire(TimePoint now) {
  while (!ages_.empty() && ages_.front().expires <= now) {
    drop_oldest();
  }
}

}  // namespace baton::handoff
