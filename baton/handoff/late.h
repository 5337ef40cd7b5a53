// Messages that come too late or too early. A tombstone remembers an ended epoch, so that its late
// frames are dropped; kept messages wait for the request that they are about (they came by another
// connection). Both are bounded and expire. Control thread only.
#pragma once

#include "baton/base/clock.h"
#include "baton/base/ids.h"
#include "baton/handoff/options.h"

#include <deque>
#include <map>
#include <utility>
#include <vector>

namespace baton::handoff {

class Tombstones {
 public:
  // Everything of the key's choice (or of all choices) up to its epoch is dead.
  void add(const SequenceKey& key, TimePoint now);
  [[nodiscard]] bool covers(const SequenceKey& key) const;
  void expire(TimePoint now);
  [[nodiscard]] std::size_t count() const { return epochs_.size(); }

 private:
  using Id = std::pair<RequestId, Choice>;
  struct Age {
    Id id;
    Epoch epoch;
    TimePoint expires;
  };
  [[nodiscard]] bool covers(const Id& id, Epoch epoch) const;
  void drop_oldest();

  std::map<Id, Epoch> epochs_;
  std::deque<Age> ages_;
};

template <class Message>
class KeptMessages {
 public:
  // bytes: of the message on the wire. Dropped when too many wait: the sender's lease then ends by
  // itself.
  bool keep(const SequenceKey& key, Message message, std::size_t bytes, TimePoint expires) {
    if (count_ >= kMaxKeptMessages || bytes > kMaxKeptBytes - bytes_) {
      return false;
    }
    kept_[key].push_back({std::move(message), bytes, expires});
    ++count_;
    bytes_ += bytes;
    return true;
  }
  std::vector<Message> take(const SequenceKey& key) {
    std::vector<Message> taken;
    if (const auto found = kept_.find(key); found != kept_.end()) {
      for (Kept& item : found->second) {
        bytes_ -= item.bytes;
        taken.push_back(std::move(item.message));
      }
      count_ -= found->second.size();
      kept_.erase(found);
    }
    return taken;
  }
  void expire(TimePoint now) {
    for (auto each = kept_.begin(); each != kept_.end();) {
      count_ -= std::erase_if(each->second, [&](const Kept& item) {
        const bool over = item.expires <= now;
        bytes_ -= over ? item.bytes : 0;
        return over;
      });
      each = each->second.empty() ? kept_.erase(each) : std::next(each);
    }
  }
  [[nodiscard]] std::size_t count() const { return count_; }

 private:
  struct Kept {
    Message message;
    std::size_t bytes;
    TimePoint expires;
  };
  std::map<SequenceKey, std::vector<Kept>> kept_;
  std::size_t count_ = 0;
  std::size_t bytes_ = 0;
};

// True when an Abort for `abort` means `key`: same request, that choice or all, epochs up to it.
inline bool abort_names(const SequenceKey& abort, const SequenceKey& key) {
  return abort.request == key.request &&
         (abort.choice == kAllChoices || abort.choice == key.choice) && key.epoch <= abort.epoch;
}

// The keys of an ordered table that an Abort names.
template <class Table>
std::vector<SequenceKey> keys_named_by(const Table& table, const SequenceKey& abort) {
  std::vector<SequenceKey> keys;
  for (auto each = table.lower_bound(SequenceKey{abort.request, {}, {}});
       each != table.end() && each->first.request == abort.request; ++each) {
    if (abort_names(abort, each->first)) {
      keys.push_back(each->first);
    }
  }
  return keys;
}

}  // namespace baton::handoff
