#include "baton/handoff/leases.h"

#include "baton/handoff/late.h"

#include <gtest/gtest.h>

namespace baton::handoff {
namespace {

const NodeId kPeer{"peer"};
const SequenceKey kKey{{1, 2}, {0}, {3}};

struct Fixture {
  Fixture() {
    options.self = NodeId{"self"};
    message::NodeInfo info;
    info.id = kPeer;
    leases.on_peer_up(info, 32, now);
  }
  std::vector<LostSequence> beat(std::vector<SequenceKey> keys, std::uint64_t turns = 0) {
    now += milliseconds(250);
    wire::pb::Beat message;
    message.set_turn_count(turns);
    for (const SequenceKey& key : keys) {
      auto* held = message.add_held();
      held->set_request_high(key.request.high);
      held->set_request_low(key.request.low);
      held->set_choice(key.choice.value);
      held->set_epoch(key.epoch.value);
    }
    return leases.on_beat(kPeer, message, now);
  }
  CoordinatorOptions options;
  Leases leases{options};
  TimePoint now{};
};

TEST(leases, absence_from_two_beats_in_a_row_is_loss) {
  Fixture f;
  f.leases.watch(kPeer, WatchKind::kOwner, kKey, true, 0, f.now);
  EXPECT_TRUE(f.beat({}).empty());
  EXPECT_TRUE(f.beat({kKey}).empty());  // renews
  EXPECT_TRUE(f.beat({}).empty());
  const auto lost = f.beat({});
  ASSERT_EQ(lost.size(), 1U);
  EXPECT_EQ(lost[0].key, kKey);
  EXPECT_EQ(lost[0].reason.code, ErrorCode::kPeerLost);
  EXPECT_TRUE(f.beat({}).empty());  // once
}

TEST(leases, absence_does_not_count_before_the_message_can_have_arrived) {
  Fixture f;
  f.leases.watch(kPeer, WatchKind::kOwnedLeg, kKey, false, 1'000, f.now);
  EXPECT_TRUE(f.beat({}).empty());
  EXPECT_TRUE(f.beat({}).empty());
  EXPECT_TRUE(f.beat({}).empty());
  EXPECT_TRUE(f.beat({}).empty());  // 1,000 ms: counts from here
  EXPECT_EQ(f.beat({}).size(), 1U);
  f.leases.watch(kPeer, WatchKind::kOwnedLeg, kKey, false, 60'000, f.now);
  EXPECT_TRUE(f.beat({kKey}).empty());  // listed once: it has it
  EXPECT_TRUE(f.beat({}).empty());
  EXPECT_EQ(f.beat({}).size(), 1U);
}

TEST(leases, beats_list_what_both_have_in_common_once) {
  Fixture f;
  f.leases.watch(kPeer, WatchKind::kOwnedLeg, kKey, true, 0, f.now);
  f.leases.watch(kPeer, WatchKind::kCounterpart, kKey, true, 0, f.now);
  f.leases.watch(NodeId{"other"}, WatchKind::kOwner, {{9, 9}, {0}, {0}}, true, 0, f.now);
  EXPECT_EQ(f.leases.beat_for(kPeer, {}, false).held_size(), 1);
  f.leases.unwatch(kPeer, WatchKind::kOwnedLeg, kKey);
  EXPECT_EQ(f.leases.beat_for(kPeer, {}, false).held_size(), 1);
  EXPECT_TRUE(f.leases.watches(kPeer));
  f.leases.unwatch(kPeer, WatchKind::kCounterpart, kKey);
  EXPECT_FALSE(f.leases.watches(kPeer));
  EXPECT_EQ(f.leases.beat_for(kPeer, {}, true).held_size(), 0);
}

TEST(leases, a_listed_sequence_is_stuck_only_when_the_engine_stands_still) {
  Fixture f;
  f.leases.watch(kPeer, WatchKind::kOwnedLeg, kKey, true, 0, f.now);
  for (std::uint64_t step = 1; step < 40; ++step) {  // preempted: slow, not dead
    EXPECT_TRUE(f.beat({kKey}, step).empty());
    EXPECT_TRUE(f.leases.stalled(f.now).empty());
  }
  for (int i = 0; i < 19; ++i) {
    EXPECT_TRUE(f.beat({kKey}, 39).empty());
    EXPECT_TRUE(f.leases.stalled(f.now).empty());
  }
  f.beat({kKey}, 39);
  const auto lost = f.leases.stalled(f.now);
  ASSERT_EQ(lost.size(), 1U);
  EXPECT_EQ(lost[0].reason.code, ErrorCode::kDeadlineExceeded);
}

TEST(leases, a_silent_peer_is_dead_unless_we_stood_still_ourselves) {
  Fixture f;
  f.now += milliseconds(2'999);
  EXPECT_TRUE(f.leases.take_dead(f.now).empty());
  f.now += milliseconds(1);
  EXPECT_EQ(f.leases.take_dead(f.now).size(), 1U);
  f.leases.forgive(f.now);
  EXPECT_TRUE(f.leases.take_dead(f.now).empty());
}

TEST(tombstones, cover_an_epoch_and_all_before_it) {
  Tombstones tombstones;
  const TimePoint now{};
  tombstones.add(kKey, now);
  EXPECT_TRUE(tombstones.covers(kKey));
  EXPECT_TRUE(tombstones.covers({kKey.request, kKey.choice, {2}}));
  EXPECT_FALSE(tombstones.covers({kKey.request, kKey.choice, {4}}));
  EXPECT_FALSE(tombstones.covers({kKey.request, {1}, {0}}));
  tombstones.add({kKey.request, kAllChoices, {0}}, now + milliseconds(1));
  EXPECT_TRUE(tombstones.covers({kKey.request, {1}, {0}}));
  tombstones.add({kKey.request, kKey.choice, {7}}, now + milliseconds(2));
  tombstones.expire(now + milliseconds(kTombstoneMs + 1));
  EXPECT_TRUE(tombstones.covers({kKey.request, kKey.choice, {7}}));
  EXPECT_FALSE(tombstones.covers({kKey.request, {1}, {0}}));
  tombstones.expire(now + milliseconds(kTombstoneMs + 2));
  EXPECT_EQ(tombstones.count(), 0U);
}

TEST(tombstones, are_bounded) {
  Tombstones tombstones;
  for (std::uint64_t i = 0; i < kMaxTombstones + 10; ++i) {
    tombstones.add({{i, 0}, {0}, {0}}, TimePoint{});
  }
  EXPECT_EQ(tombstones.count(), kMaxTombstones);
  EXPECT_FALSE(tombstones.covers({{9, 0}, {0}, {0}}));
  EXPECT_TRUE(tombstones.covers({{10, 0}, {0}, {0}}));
}

TEST(kept_messages, are_bounded_and_expire) {
  KeptMessages<int> kept;
  for (std::uint64_t i = 0; i < kMaxKeptMessages; ++i) {
    EXPECT_TRUE(kept.keep({{i, 0}, {0}, {0}}, 1, 100, TimePoint{} + milliseconds(5)));
  }
  EXPECT_FALSE(kept.keep(kKey, 1, 100, TimePoint{} + milliseconds(9)));
  EXPECT_EQ(kept.take({{3, 0}, {0}, {0}}).size(), 1U);
  EXPECT_TRUE(kept.keep(kKey, 1, 100, TimePoint{} + milliseconds(9)));
  kept.expire(TimePoint{} + milliseconds(5));
  EXPECT_EQ(kept.count(), 1U);
}

// A peer that says much about sequences nobody knows takes no memory to speak of.
TEST(kept_messages, are_bounded_in_bytes) {
  KeptMessages<int> kept;
  EXPECT_TRUE(kept.keep({{1, 0}, {0}, {0}}, 1, kMaxKeptBytes - 1, TimePoint{} + milliseconds(5)));
  EXPECT_FALSE(kept.keep({{2, 0}, {0}, {0}}, 1, 2, TimePoint{} + milliseconds(9)));
  EXPECT_TRUE(kept.keep({{2, 0}, {0}, {0}}, 1, 1, TimePoint{} + milliseconds(9)));
  kept.expire(TimePoint{} + milliseconds(5));
  EXPECT_TRUE(kept.keep({{3, 0}, {0}, {0}}, 1, kMaxKeptBytes - 1, TimePoint{} + milliseconds(9)));
  EXPECT_EQ(kept.take({{3, 0}, {0}, {0}}).size(), 1U);
  EXPECT_TRUE(kept.keep({{4, 0}, {0}, {0}}, 1, kMaxKeptBytes - 1, TimePoint{} + milliseconds(9)));
}

}  // namespace
}  // namespace baton::handoff
