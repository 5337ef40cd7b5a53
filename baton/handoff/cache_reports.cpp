#include "baton/handoff/cache_reports.h"

#include "baton/message/engine.h"
#include "baton/wire/limits.h"

#include <utility>

namespace baton::handoff {
namespace {

constexpr auto kMostInFrame = static_cast<std::size_t>(wire::kMaxPrefixNames);
// On their way to one owner: 32 KiB, beside which Beats and tokens get through in time by the
// slowest way.
constexpr std::size_t kMostUnheard = 2 * kMostInFrame;

}  // namespace

void CacheReports::on_beat(const NodeId& owner, std::uint64_t asks, std::uint64_t heard) {
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
  if (heard > reader.number) {
    return;  // of the numbers before it began anew
  }
  while (!reader.unheard.empty() && reader.number - reader.unheard.size() < heard) {
    reader.unheard_names -= reader.unheard.front();
    reader.unheard.pop_front();
  }
}

void CacheReports::restart(Reader& reader) const {
  reader.number = 0;
  reader.unheard.clear();
  reader.unheard_names = 0;
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
  for (auto& [owner, reader] : readers_) {
    if (reader.changed.size() > held_.size() + kMostInFrame) {
      restart(reader);
    }
    const bool has_news = !reader.changed.empty() || reader.number == 0;
    if (!has_news || reader.unheard_names >= kMostUnheard) {
      continue;
    }
    wire::pb::Cached frame;
    frame.set_number(reader.number++);
    std::size_t names = 0;
    for (; names < kMostInFrame && !reader.changed.empty(); ++names) {
      const auto first = reader.changed.begin();
      if (held_.contains(*first)) {
        frame.add_added(*first);
      } else {
        frame.add_removed(*first);
      }
      reader.changed.erase(first);
    }
    reader.unheard.push_back(names);
    reader.unheard_names += names;
    if (!outbox_.control(owner, SequenceKey{}, std::move(frame))) {
      restart(reader);
    }
  }
}

}  // namespace baton::handoff
