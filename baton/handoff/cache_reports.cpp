#include "baton/handoff/cache_reports.h"

#include "baton/message/engine.h"
#include "baton/wire/limits.h"

#include <utility>

namespace baton::handoff {

void CacheReports::on_beat(const NodeId& owner, std::uint64_t asks) {
  if (asks == 0) {
    readers_.erase(owner);
    return;
  }
  if (!watching_) {
    watching_ = outbox_.engine(message::WatchPrefixes{});
  }
  Reader& reader = readers_[owner];
  if (std::exchange(reader.asks, asks) != asks) {
    restart(reader);
  }
}

void CacheReports::restart(Reader& reader) const {
  reader.number = 0;
  reader.changed.clear();
  for (const auto& [name, count] : held_) {
    reader.changed.insert(name);
  }
}

void CacheReports::note(PrefixName name) {
  for (auto& [owner, reader] : readers_) {
    reader.changed.insert(name);
  }
}

void CacheReports::on_changes(const message::PrefixChanges& changes) {
  known_ = true;
  if (changes.restart) {
    held_.clear();
  }
  // What came first: a tile that moved from one block to another is in both lists.
  for (const PrefixName name : changes.added) {
    if (++held_[name] == 1) {
      note(name);
    }
  }
  for (const PrefixName name : changes.removed) {
    const auto found = held_.find(name);
    if (found != held_.end() && --found->second == 0) {
      held_.erase(found);
      note(name);
    }
  }
  if (changes.restart) {
    for (auto& [owner, reader] : readers_) {
      restart(reader);
    }
  }
}

void CacheReports::send() {
  if (!known_) {
    return;
  }
  constexpr auto kMost = static_cast<std::size_t>(wire::kMaxPrefixNames);
  for (auto& [owner, reader] : readers_) {
    if (reader.changed.size() > held_.size() + kMost) {
      restart(reader);
    }
    if (reader.changed.empty() && reader.number > 0) {
      continue;
    }
    wire::pb::Cached frame;
    frame.set_number(reader.number++);
    for (std::size_t i = 0; i < kMost && !reader.changed.empty(); ++i) {
      const auto first = reader.changed.begin();
      if (held_.contains(*first)) {
        frame.add_added(*first);
      } else {
        frame.add_removed(*first);
      }
      reader.changed.erase(first);
    }
    if (!outbox_.control(owner, SequenceKey{}, std::move(frame))) {
      restart(reader);
    }
  }
}

}  // namespace baton::handoff
