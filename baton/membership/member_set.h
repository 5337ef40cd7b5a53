// Who belongs to the cluster, from what each source (the flags' addresses, a name, etcd) says now.
// A plain table: answers and the time go in, changes come out. No I/O. Thread: the control thread.
#pragma once

#include "baton/base/clock.h"
#include "baton/message/node.h"
#include "baton/net/address.h"

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace baton::membership {

// A node as others dial it. What it is called it says itself, at the handshake.
struct Member {
  message::NodeRole role = message::NodeRole::kPrefill;
  net::HostPort address;
  auto operator<=>(const Member&) const = default;
};

struct Change {
  bool joined = false;  // else it left
  Member member;
};

class MemberSet {
 public:
  // A member leaves once no source has named it for `grace`: an answer may be cut short, and a
  // registry may lose its data and get them back.
  explicit MemberSet(Duration grace) : grace_(grace) {}

  // The source's whole answer, in place of its last one. New members join once they have been named
  // for `settle`, so that other nodes get to know them first; those of a first answer join at once.
  void set(const std::string& source, std::set<Member> members, TimePoint now, Duration settle);

  // What has come to be since the last call. Call it every 100 ms or so.
  std::vector<Change> take_changes(TimePoint now);

  // Who has joined and not left.
  [[nodiscard]] std::size_t count(message::NodeRole role) const;

 private:
  struct Entry {
    bool joined = false;
    TimePoint joins_at{};
    std::optional<TimePoint> unnamed_since;
  };

  const Duration grace_;
  std::map<std::string, std::set<Member>> sources_;
  std::map<Member, Entry> entries_;
};

}  // namespace baton::membership
