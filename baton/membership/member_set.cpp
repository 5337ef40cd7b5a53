#include "baton/membership/member_set.h"

#include <algorithm>
#include <utility>

namespace baton::membership {

void MemberSet::set(const std::string& source, std::set<Member> members, TimePoint now,
                    Duration settle) {
  const bool is_first = !sources_.contains(source);
  for (const Member& member : members) {
    const auto [at, is_new] = entries_.try_emplace(member);
    if (is_new) {
      at->second.joins_at = is_first ? now : now + settle;
    }
  }
  sources_[source] = std::move(members);
  for (auto& [member, entry] : entries_) {
    const bool named =
        std::any_of(sources_.begin(), sources_.end(),
                    [&m = member](const auto& each) { return each.second.contains(m); });
    if (named) {
      entry.unnamed_since.reset();
    } else if (!entry.unnamed_since) {
      entry.unnamed_since = now;
    }
  }
}

std::vector<Change> MemberSet::take_changes(TimePoint now) {
  std::vector<Change> changes;
  for (auto at = entries_.begin(); at != entries_.end();) {
    Entry& entry = at->second;
    const bool named = !entry.unnamed_since;
    if (named && !entry.joined && now >= entry.joins_at) {
      entry.joined = true;
      changes.push_back({true, at->first});
    }
    const bool over = !named && (!entry.joined || now - *entry.unnamed_since >= grace_);
    if (over && entry.joined) {
      changes.push_back({false, at->first});
    }
    at = over ? entries_.erase(at) : std::next(at);
  }
  return changes;
}

std::size_t MemberSet::count(message::NodeRole role) const {
  return static_cast<std::size_t>(std::count_if(
      entries_.begin(), entries_.end(),
      [&](const auto& entry) { return entry.second.joined && entry.first.role == role; }));
}

}  // namespace baton::membership
