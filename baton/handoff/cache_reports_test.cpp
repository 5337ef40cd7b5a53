// Block events between a node and its owners: what is said to whom, in which frames, and what the
// owner's end makes of numbers that do not follow.
#include "baton/handoff/cache_reports.h"

#include "baton/handoff/owner.h"
#include "baton/wire/limits.h"

#include <boost/asio/io_context.hpp>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <numeric>
#include <set>
#include <utility>
#include <variant>
#include <vector>

namespace baton::handoff {
namespace {

using message::PrefixChanges;
using wire::pb::Cached;

const NodeId kRouter{"r"};
const NodeId kOther{"s"};
const NodeId kNode{"d"};

struct World final : Outbox {
  Status control(const NodeId& to, const SequenceKey&, wire::Control message) override {
    if (full) {
      return fail(ErrorCode::kOverloaded, "full");
    }
    frames[to].push_back(std::get<Cached>(std::move(message)));
    return {};
  }
  Status tokens(const NodeId&, std::uint64_t, std::vector<message::Token>) override { return {}; }
  bool engine(message::EngineCommand command) override {
    watches += std::holds_alternative<message::WatchPrefixes>(command) ? 1 : 0;
    return true;
  }
  void send_frame(FrameJob) override {}
  void send_commit(const NodeId&, const SequenceKey&, wire::pb::Commit) override {}

  std::map<NodeId, std::vector<Cached>> frames;
  int watches = 0;
  bool full = false;
};

std::vector<PrefixName> names(std::size_t count, PrefixName first = 1) {
  std::vector<PrefixName> result(count);
  std::iota(result.begin(), result.end(), first);
  return result;
}

class Reports : public ::testing::Test {
 protected:
  // What the frames to `owner` since the last call say, each following the one before.
  std::set<PrefixName> heard(const NodeId& owner = kRouter) {
    for (const Cached& frame : std::exchange(world.frames[owner], {})) {
      EXPECT_LE(frame.added_size() + frame.removed_size(), wire::kMaxPrefixNames);
      if (frame.number() == 0) {
        ++restarts[owner];
        known[owner].clear();
      } else {
        EXPECT_EQ(frame.number(), next[owner]);
      }
      next[owner] = frame.number() + 1;
      known[owner].insert(frame.added().begin(), frame.added().end());
      for (const PrefixName name : frame.removed()) {
        known[owner].erase(name);
      }
    }
    return known[owner];
  }
  // A Beat of the owner's, who has heard all that it was sent.
  void beat(const NodeId& owner, std::uint64_t asks) {
    const auto sent = world.frames.find(owner);
    const bool unread = sent != world.frames.end() && !sent->second.empty();
    reports.on_beat(owner, asks, unread ? sent->second.back().number() + 1 : next[owner]);
  }
  static std::set<PrefixName> set_of(const std::vector<PrefixName>& list) {
    return {list.begin(), list.end()};
  }

  World world;
  CacheReports reports{world};
  std::map<NodeId, std::set<PrefixName>> known;
  std::map<NodeId, std::uint64_t> next;
  std::map<NodeId, int> restarts;
};

TEST_F(Reports, NothingIsSaidOrAskedBeforeSomebodyWantsToHear) {
  beat(kRouter, 0);
  reports.send();
  EXPECT_EQ(world.watches, 0);
  beat(kRouter, 1);
  beat(kOther, 1);
  beat(kRouter, 1);
  EXPECT_EQ(world.watches, 1);
  reports.send();
  EXPECT_TRUE(world.frames.empty()) << "the engine has not answered";
  reports.on_changes({true, {}, {}});
  reports.send();
  ASSERT_EQ(world.frames[kRouter].size(), 1U) << "that there is nothing is worth knowing";
  EXPECT_EQ(world.frames[kRouter][0].number(), 0U);
  reports.send();
  EXPECT_EQ(world.frames[kRouter].size(), 1U);
  beat(kRouter, 0);
  reports.on_changes({false, {5}, {}});
  reports.send();
  EXPECT_EQ(world.frames[kRouter].size(), 1U) << "it wants no more";
  EXPECT_EQ(heard(kOther), (std::set<PrefixName>{5}));
}

TEST_F(Reports, AllAtFirstThenWhatChanges) {
  beat(kRouter, 1);
  const auto all = names(static_cast<std::size_t>(2 * wire::kMaxPrefixNames) + 10);
  reports.on_changes({true, all, {}});
  for (int part = 1; part <= 3; ++part) {
    reports.send();
    EXPECT_EQ(world.frames[kRouter].size(), static_cast<std::size_t>(part)) << "one a tick";
    beat(kRouter, 1);
  }
  EXPECT_EQ(heard(), set_of(all));
  reports.on_changes({false, {9'999'999}, {1, 2}});
  reports.send();
  std::set<PrefixName> expected = set_of(all);
  expected.erase(1);
  expected.erase(2);
  expected.insert(9'999'999);
  EXPECT_EQ(heard(), expected);
  EXPECT_EQ(restarts[kRouter], 1);
  beat(kOther, 1);  // who comes later is told the same
  for (int part = 0; part < 3; ++part) {
    reports.send();
    beat(kOther, 1);
  }
  EXPECT_EQ(heard(kOther), expected);
  EXPECT_TRUE(world.frames[kRouter].empty()) << "nothing new";
}

// Two blocks have the tile; and what came and went between two ticks is said as it is.
TEST_F(Reports, CountsAndMerges) {
  beat(kRouter, 1);
  reports.on_changes({true, {1, 2, 2}, {}});
  reports.send();
  reports.on_changes({false, {}, {2}});
  reports.send();
  EXPECT_EQ(world.frames[kRouter].size(), 1U) << "one of two went";
  reports.on_changes({false, {3, 4}, {2}});
  reports.on_changes({false, {2}, {3}});
  reports.on_changes({false, {7}, {7}});  // within one turn of the engine
  reports.send();
  EXPECT_EQ(heard(), (std::set<PrefixName>{1, 2, 4}));
  EXPECT_EQ(restarts[kRouter], 1);
}

TEST_F(Reports, BeginsAnewWhenItIsAskedToOrLostSomething) {
  beat(kRouter, 1);
  reports.on_changes({true, names(10), {}});
  reports.send();
  beat(kRouter, 2);
  reports.send();
  EXPECT_EQ(heard(), set_of(names(10)));
  EXPECT_EQ(restarts[kRouter], 2);

  world.full = true;
  reports.on_changes({false, {50}, {}});
  reports.send();
  world.full = false;
  reports.send();
  EXPECT_EQ(heard().size(), 11U);
  EXPECT_EQ(restarts[kRouter], 3);

  reports.forget(kRouter);  // the connection broke; it asks as at first
  beat(kRouter, 1);
  reports.send();
  EXPECT_EQ(heard().size(), 11U);
  EXPECT_EQ(restarts[kRouter], 4);
}

// More has changed than there is: the whole is less to say. So what is kept for a reader is
// bounded.
TEST_F(Reports, MoreChangesThanNamesMakeAnotherSnapshot) {
  beat(kRouter, 1);
  reports.on_changes({true, names(100), {}});
  reports.send();
  const auto count = static_cast<std::size_t>(wire::kMaxPrefixNames) + 200;
  const auto passing = names(count, 1'000);
  reports.on_changes({false, passing, {}});
  reports.on_changes({false, {}, passing});
  reports.send();
  EXPECT_EQ(heard(), set_of(names(100)));
  EXPECT_EQ(restarts[kRouter], 2);
  EXPECT_EQ(world.watches, 1);
}

// All of a large cache over a way of 20 kB/s that Beats share: they keep coming in time, and what
// is said meanwhile waits no longer.
TEST_F(Reports, ASlowWayIsNotFilled) {
  constexpr std::size_t kBytesPerTick = 1'000;
  constexpr int kTicksPerBeat = 5;
  constexpr int kTicksPerLease = 60;
  const auto first = names(40'000);
  const auto all = names(40'000, 1'000'000);
  reports.on_changes({true, first, {}});
  reports.on_beat(kRouter, 1, 0);
  std::deque<std::size_t> way;  // bytes of frames, as they were sent; Beats have none to speak of
  std::size_t passed = 0;       // of the first of them
  std::size_t sent = 0;
  std::size_t arrived = 0;
  int last_beat = 0;
  int longest = 0;
  std::size_t most = 0;
  for (int tick = 0; tick < 2'000; ++tick) {
    if (tick == 200) {  // others have taken their place: all is told anew in the midst of it
      reports.on_changes({false, all, first});
    }
    reports.send();
    for (; sent < world.frames[kRouter].size(); ++sent) {
      way.push_back(world.frames[kRouter][sent].ByteSizeLong() + wire::kHeaderBytes);
    }
    most = std::max(most, std::accumulate(way.begin(), way.end(), std::size_t{0}));
    if (tick % kTicksPerBeat == 0) {
      way.push_back(0);
      const std::size_t last = arrived == 0 ? 0 : arrived - 1;
      reports.on_beat(kRouter, 1, arrived == 0 ? 0 : world.frames[kRouter][last].number() + 1);
    }
    passed += kBytesPerTick;
    for (; !way.empty() && way.front() <= passed; way.pop_front()) {
      passed -= way.front();
      arrived += way.front() > 0 ? 1 : 0;
      last_beat = way.front() > 0 ? last_beat : tick;
    }
    passed = way.empty() ? 0 : passed;
    longest = std::max(longest, tick - last_beat);
  }
  EXPECT_LT(longest, kTicksPerLease * 2 / 3) << "ticks without a Beat";
  EXPECT_LT(most, sizeof(PrefixName) * 5 * wire::kMaxPrefixNames)
      << "two of the old, two of the new";
  EXPECT_EQ(heard(), set_of(all));
  EXPECT_EQ(arrived, sent);
}

struct Hearing : public ::testing::Test {
  Hearing() {
    options.hear_cached = true;
    message::NodeInfo info;
    info.id = kNode;
    owner.on_peer_up(info);
    owner.drain();
  }
  // What the router is told of a frame with that number: "restart", "more", or nothing.
  std::string hear(std::uint64_t number) {
    Cached frame;
    frame.set_number(number);
    frame.add_added(number + 1);
    owner.on_cached(kNode, frame);
    std::string told;
    for (const OwnerEvent& event : owner.drain()) {
      const auto& changes = std::get<NodePrefixes>(event).changes;
      told += changes.restart ? "restart" : "more";
      told += changes.added.empty() ? ", nothing" : "";
    }
    return told;
  }
  // What the next Beat to the node says.
  [[nodiscard]] std::uint64_t asks(const NodeId& node) const {
    wire::pb::Beat beat;
    owner.fill_beat(node, beat);
    return beat.cached_asks();
  }
  asio::io_context context;
  CoordinatorOptions options;
  World world;
  Leases leases{options};
  Owner owner{context.get_executor(), options, world, leases};
};

TEST_F(Hearing, AGapIsForgottenAndAskedAbout) {
  EXPECT_EQ(asks(kNode), 1U);
  EXPECT_EQ(asks(kOther), 0U) << "not connected";
  EXPECT_EQ(hear(3), "") << "means nothing before the beginning";
  EXPECT_EQ(hear(0), "restart");
  EXPECT_EQ(hear(1), "more");
  EXPECT_EQ(asks(kNode), 1U);
  EXPECT_EQ(hear(3), "restart, nothing");
  EXPECT_EQ(asks(kNode), 2U);
  EXPECT_EQ(hear(4), "") << "waits";
  EXPECT_EQ(asks(kNode), 2U);
  EXPECT_EQ(hear(0), "restart");
  EXPECT_EQ(hear(1), "more");
  EXPECT_EQ(hear(1), "restart, nothing") << "twice is no order either";
  EXPECT_EQ(asks(kNode), 3U);
  owner.on_peer_down(kNode, {ErrorCode::kPeerLost, "reset"});
  owner.drain();
  EXPECT_EQ(asks(kNode), 0U);
  EXPECT_EQ(hear(0), "");
}

TEST_F(Hearing, WhoDidNotAskIsToldNothing) {
  options.hear_cached = false;
  message::NodeInfo info;
  info.id = kOther;
  owner.on_peer_up(info);
  owner.drain();
  EXPECT_EQ(asks(kOther), 0U);
  owner.on_cached(kOther, {});
  EXPECT_TRUE(owner.drain().empty());
}

}  // namespace
}  // namespace baton::handoff
