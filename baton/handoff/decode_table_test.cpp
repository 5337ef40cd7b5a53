// Every event in every state of the decode role, those that a peer would have to break the protocol
// for and those that the engine never sends included: nothing stays behind, a lease is given back
// once, never while the transport uses its blocks, and the table counts what was met.
#include "baton/handoff/cells.h"
#include "baton/handoff/convert.h"
#include "baton/handoff/decode_role.h"
#include "baton/handoff/role_table_util.h"
#include "baton/wire/codec.h"
#include "baton/wire/digest.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <utility>

namespace baton::handoff::role_table {
namespace {

enum class D { kNone, kReserving, kReceiving, kLanding, kClosing };
constexpr std::size_t kDecodeStates = 5;

struct DecodeNode : Node {
  explicit DecodeNode(D state, bool linked = true) {
    if (!linked) {
      leases.on_peer_down(kOther);
    }
    if (state == D::kNone) {
      return;
    }
    request();
    if (state == D::kReserving) {
      return;
    }
    reserved();
    if (state == D::kReceiving) {
      return;
    }
    for (const wire::BlocksHeader& frame : frames()) {
      EXPECT_TRUE(table.accept(kOther, kKey, frame).has_value());
      books.landing = true;
    }
    if (state == D::kClosing) {
      role.handle(abort_by(kOwner), now);
      return;
    }
    blocks({});
    commit(kOther, message::FinishReason::kNone);
  }

  void request() { role.handle(DecodeRoleHandoff{submit(), kOther, kOwner}, now); }
  void reserved() {
    message::Reserved message;
    message.key = kKey;
    message.kv_tokens = kPromptTokens;
    message.blocks.lease = {lease};
    message.blocks.tables = tables();
    books.lent.insert(lease);
    role.handle(std::move(message), now);
    lease = 6;  // a second one would have another
  }
  [[nodiscard]] std::vector<wire::BlocksHeader> frames() const {
    return plan_frames(own, tiles_needed(own, kPromptTokens), 1U << 20U, 1U << 20U);
  }
  void blocks(const Status& status) {
    std::uint64_t sequence = 0;
    for (const wire::BlocksHeader& header : frames()) {
      BlocksReceived frame{kOther, kKey, header, sequence++, {}, frame_bytes(own, header), status};
      wire::FrameHeader raw;
      raw.type = wire::FrameType::kBlocks;
      raw.key = kKey;
      frame.header = wire::encode_header(raw);
      digest.add(frame.header);
      role.handle(frame, now);
    }
  }
  void commit(const NodeId& from, message::FinishReason finish) {
    wire::pb::Commit message;
    message.set_frames(frames().size());
    message.set_payload_bytes(own.handoff_bytes(kPromptTokens));
    message.set_digest(digest.value());
    message.set_kv_tokens(kPromptTokens);
    message.set_tokens_digest(wire::tokens_digest(submit().prompt, {}));
    *message.add_first() = token_to_wire(token(finish));
    role.handle(CommitReceived{from, kKey, message}, now);
  }
  // Every byte that is under way to the reserved blocks.
  void land() {
    if (std::exchange(books.landing, false)) {
      for (const wire::BlocksHeader& frame : frames()) {
        table.landed(kKey, frame);
      }
    }
    while (idle > 0) {
      --idle;
      role.handle(ReservationIdle{kKey}, now);
    }
  }
  bool meet(cells::DecodeEvent event);

  std::uint64_t lease = Books::kDecodeLease;
  int idle = 0;
  ReservationTable table{own, [this](const SequenceKey&) { ++idle; }};
  ActiveSequences active{context};
  DecodeRole role{context, table, active};
  wire::HandoffDigest digest;
};

bool DecodeNode::meet(cells::DecodeEvent event) {
  using Event = cells::DecodeEvent;
  switch (event) {
    case Event::kDecode:
      request();
      return true;
    case Event::kReserved:
      reserved();
      return true;
    case Event::kBlocks:
      blocks({});
      return true;
    case Event::kBadBlocks:
      blocks(fail(ErrorCode::kCorruptFrame, "CRC"));
      return true;
    case Event::kCommit:
      commit(kOther, message::FinishReason::kNone);
      return true;
    case Event::kCommitEnd:
      commit(kOther, message::FinishReason::kStop);
      return true;
    case Event::kBadCommit:
      commit(kStranger, message::FinishReason::kNone);
      return true;
    case Event::kLanded:
      if (!books.landing) {
        return false;
      }
      land();
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
    case Event::kCounterpartUp: {
      PeerUp up;
      up.info.id = kOther;
      leases.on_peer_up(up.info, 64, now);
      role.handle(std::move(up), now);
      return true;
    }
    case Event::kDeadline:
      now += milliseconds(options.prefill_deadline_ms + options.handoff_deadline_ms);
      role.tick(now);
      return true;
    case Event::kNoLink:
      now += milliseconds(options.lease_ms);
      role.tick(now);
      return true;
  }
  return false;
}

bool counts_there(cells::DecodeEvent event, D state) {
  using Event = cells::DecodeEvent;
  switch (event) {
    case Event::kBadCommit:
    case Event::kAbortCounterpart:
    case Event::kOwnerDown:
    case Event::kCounterpartDown:
    case Event::kCounterpartUp:
      return state != D::kNone;
    case Event::kDeadline:
      return state == D::kReserving || state == D::kReceiving;
    case Event::kNoLink:
      return state == D::kReceiving;
    default:
      return true;
  }
}

TEST(role_table, every_event_in_every_state_of_the_decode_role) {
  const auto events = cells::decode().events().size();
  for (std::size_t at = 0; at < kDecodeStates; ++at) {
    for (std::size_t number = 0; number < events; ++number) {
      const auto state = static_cast<D>(at);
      const auto event = static_cast<cells::DecodeEvent>(number);
      SCOPED_TRACE(
          fmt::format("{} in {}", cells::decode().events()[number], cells::decode().states()[at]));
      const bool unlinked =
          event == cells::DecodeEvent::kNoLink || event == cells::DecodeEvent::kCounterpartUp;
      DecodeNode node(state, !unlinked);
      const std::uint64_t before = cells::decode().count(at, number);
      if (!node.meet(event)) {
        continue;
      }
      if (kCounted && counts_there(event, state)) {
        EXPECT_GT(cells::decode().count(at, number), before);
      }
      node.role.handle(abort_by(kOwner), node.now);
      node.land();
      node.role.handle(abort_by(kOwner), node.now);  // of what was adopted only then
      EXPECT_EQ(node.role.count(), 0U);
      EXPECT_EQ(node.active.count(), 0U);
      EXPECT_TRUE(node.books.lent.empty());
      EXPECT_EQ(node.leases.watch_count(), 0U);
      node.role.tick(node.now += milliseconds(node.options.queue_deadline_ms));
      EXPECT_EQ(node.role.kept_count(), 0U);
    }
  }
}

}  // namespace
}  // namespace baton::handoff::role_table
