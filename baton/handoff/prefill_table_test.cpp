// Every event in every state of the prefill role, those that a peer would have to break the
// protocol for and those that the engine never sends included: nothing stays behind, a lease is
// given back once, never while the transport uses its blocks, and the table counts what was met.
#include "baton/handoff/cells.h"
#include "baton/handoff/prefill_role.h"
#include "baton/handoff/role_table_util.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <utility>

namespace baton::handoff::role_table {
namespace {

enum class P {
  kNone,
  kPrefilling,
  kStreaming,
  kAwaitGrant,
  kSending,
  kCommitting,
  kAwaitAck,
  kEnding,
  kEndingAtIndex0,  // with its Commit under way
};
constexpr std::size_t kPrefillStates = 9;
// The column of the table that each of them is in.
constexpr std::array<std::size_t, kPrefillStates> kPrefillColumn = {0, 1, 1, 2, 3, 3, 4, 5, 5};

struct PrefillNode : Node {
  explicit PrefillNode(P state, bool linked = true) {
    options.min_frame_bytes = 1;
    if (!linked) {
      leases.on_peer_down(kOther);
    }
    if (state == P::kNone) {
      return;
    }
    role.handle(PrefillRoleRequest{submit(), kOther, kOwner}, now);
    progress(1, state == P::kStreaming || state == P::kEndingAtIndex0 ? 64 : 0);
    if (state == P::kPrefilling) {
      return;
    }
    if (state != P::kAwaitGrant) {
      grant(kOther);
    }
    if (state == P::kEndingAtIndex0) {
      done(message::FinishReason::kStop);
    }
    if (state == P::kStreaming || state == P::kEndingAtIndex0) {
      return;
    }
    done();
    if (state == P::kCommitting || state == P::kAwaitAck) {
      answer_frames(true);
    }
    if (state == P::kAwaitAck) {
      answer_commits({});
    }
    if (state == P::kEnding) {
      role.handle(abort_by(kOwner), now);
    }
  }

  void progress(std::uint64_t lease, std::int32_t computed_tokens) {
    message::PrefillProgress progress{kKey, computed_tokens, {}};
    progress.blocks.lease = {lease};
    progress.blocks.claim = std::make_shared<message::LeaseClaim>();
    progress.blocks.tables = tables();
    books.lent.insert(lease);
    role.handle(std::move(progress), now);
  }
  void grant(const NodeId& from) {
    wire::pb::Grant message;
    for (const auto& range : tiles_needed(own, kPromptTokens)) {
      *message.add_ranges() = range;
    }
    role.handle(GrantInput{from, kKey, message}, now);
  }
  void done(message::FinishReason finish = message::FinishReason::kNone) {
    role.handle(message::PrefillDone{kKey, {token(finish)}, kPromptTokens}, now);
  }
  void ack(const NodeId& from, bool all) {
    wire::pb::Ack message;
    message.set_all(all);
    if (!all) {
      message.add_ranges()->set_tiles(2);
    }
    role.handle(AckInput{from, kKey, message}, now);
  }
  // The first frame that is under way, or all of them; those that follow are answered too.
  void answer_frame(bool well) {
    const std::uint64_t number = *books.frames.begin();
    books.frames.erase(books.frames.begin());
    FrameSent answer{kKey, number, BulkSent{}};
    if (!well) {
      answer.result = fail(kWhy);
    }
    role.handle(std::move(answer), now);
  }
  void answer_frames(bool well) {
    while (!books.frames.empty()) {
      answer_frame(well);
    }
  }
  void answer_commits(const Status& status) {
    while (books.commits > 0) {
      --books.commits;
      role.handle(CommitSent{kKey, status}, now);
    }
  }

  // False when there is nothing that the event could be about.
  bool meet(cells::PrefillEvent event);
  void late(bool linked) {
    now += linked ? milliseconds(options.prefill_deadline_ms) : milliseconds(options.lease_ms);
    role.tick(now);
  }
  PrefillRole role{context};
};

bool PrefillNode::meet(cells::PrefillEvent event) {
  using Event = cells::PrefillEvent;
  switch (event) {
    case Event::kPrefill:
      role.handle(PrefillRoleRequest{submit(), kOther, kOwner}, now);
      return true;
    case Event::kGrant:
      grant(kOther);
      return true;
    case Event::kBadGrant:
      grant(kStranger);
      return true;
    case Event::kAckRanges:
      ack(kOther, false);
      return true;
    case Event::kAckAll:
      ack(kOther, true);
      return true;
    case Event::kBadAck:
      ack(kStranger, true);
      return true;
    case Event::kAbortOwner:
    case Event::kAbortCounterpart:
    case Event::kAbortSelf:
    case Event::kOwnerDown:
    case Event::kCounterpartDown:
    case Event::kOwnerLost:
    case Event::kCounterpartLost:
    case Event::kRefused:
    case Event::kFinished:
      meet_end(role, event, now);
      return true;
    case Event::kFrameSent:
    case Event::kFrameFailed:
      if (books.frames.empty()) {
        return false;
      }
      answer_frame(event == Event::kFrameSent);
      return true;
    case Event::kCommitSent:
    case Event::kCommitFailed:
      if (books.commits == 0 && role.holds(kKey)) {
        return false;
      }
      books.commits = 1;  // of one that has ended
      answer_commits(event == Event::kCommitSent ? Status{} : fail(kWhy));
      return true;
    case Event::kProgress:
      progress(role.holds(kKey) ? 1 : 7, 96);
      return true;
    case Event::kDone:
      done();
      return true;
    case Event::kDoneEnd:
      done(message::FinishReason::kStop);
      return true;
    case Event::kDeadline:
    case Event::kNoLink:
      late(event == Event::kDeadline);
      return true;
  }
  return false;
}

// States of the table in which the event only counts as another one, or as none.
bool counts_there(cells::PrefillEvent event, P state) {
  using Event = cells::PrefillEvent;
  switch (event) {
    case Event::kBadGrant:
    case Event::kBadAck:
    case Event::kAbortCounterpart:
    case Event::kOwnerDown:
    case Event::kCounterpartDown:
      return state != P::kNone;
    case Event::kGrant:
      return state == P::kNone || state == P::kPrefilling || state == P::kAwaitGrant;
    case Event::kDeadline:
      return state != P::kNone && kPrefillColumn[static_cast<std::size_t>(state)] != 5;
    case Event::kNoLink:
      return state == P::kPrefilling || state == P::kAwaitGrant;
    default:
      return true;
  }
}

TEST(role_table, every_event_in_every_state_of_the_prefill_role) {
  const auto events = cells::prefill().events().size();
  for (std::size_t at = 0; at < kPrefillStates; ++at) {
    for (std::size_t number = 0; number < events; ++number) {
      const auto state = static_cast<P>(at);
      const auto event = static_cast<cells::PrefillEvent>(number);
      const std::string what = fmt::format("{} in {} ({})", cells::prefill().events()[number],
                                           cells::prefill().states()[kPrefillColumn[at]], at);
      SCOPED_TRACE(what);
      PrefillNode node(state, event != cells::PrefillEvent::kNoLink);
      const std::uint64_t before = cells::prefill().count(kPrefillColumn[at], number);
      if (!node.meet(event)) {
        continue;
      }
      if (kCounted && counts_there(event, state)) {
        EXPECT_GT(cells::prefill().count(kPrefillColumn[at], number), before);
      }
      // However it went on: an abort ends it, once the transport has answered.
      node.role.handle(abort_by(kOwner), node.now);
      node.answer_frames(false);
      node.answer_commits(fail(kWhy));
      EXPECT_EQ(node.role.count(), 0U);
      EXPECT_TRUE(node.books.lent.empty());
      EXPECT_EQ(node.leases.watch_count(), 0U);
      node.role.tick(node.now += milliseconds(node.options.queue_deadline_ms));
      EXPECT_EQ(node.role.kept_count(), 0U);
    }
  }
}

}  // namespace
}  // namespace baton::handoff::role_table
