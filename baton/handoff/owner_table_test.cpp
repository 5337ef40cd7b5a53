// Every event in every state of an owner's attempt: it ends at most once, nothing is watched or
// held of it afterwards, the other leg is told, and the table counts what was met.
#include "baton/handoff/cells.h"
#include "baton/handoff/owner.h"
#include "baton/handoff/role_table_util.h"

#include <boost/asio/io_context.hpp>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <utility>
#include <variant>
#include <vector>

namespace baton::handoff::role_table {
namespace {

using cells::OwnerEvent;
using cells::OwnerState;

const NodeId kPrefillNode{"p"};
const NodeId kDecodeNode{"d"};

struct Told final : Outbox {
  Status control(const NodeId& to, const SequenceKey&, wire::Control message) override {
    if (std::holds_alternative<wire::pb::Abort>(message)) {
      aborted.insert(to);
    }
    return {};
  }
  Status tokens(const NodeId&, std::uint64_t, std::vector<message::Token>) override { return {}; }
  bool engine(message::EngineCommand) override { return true; }
  void send_frame(FrameJob) override {}
  void send_commit(const NodeId&, const SequenceKey&, wire::pb::Commit) override {}
  std::set<NodeId> aborted;
};

struct OwnerNode {
  explicit OwnerNode(OwnerState state) {
    options.self = kOwner;
    if (state == OwnerState::kAlone) {
      EXPECT_TRUE(owner.send_decode(kDecodeNode, submit(), {}, now));
    } else if (state != OwnerState::kNone) {
      EXPECT_TRUE(owner.send_decode(kDecodeNode, submit(), kPrefillNode, now));
      EXPECT_TRUE(owner.send_prefill(kPrefillNode, submit(), kDecodeNode, now));
    }
    if (state == OwnerState::kPrefilled || state == OwnerState::kDecoding) {
      owner.on_tokens(kPrefillNode, 0, {token()});
    }
    if (state == OwnerState::kDecoding) {
      owner.on_tokens(kDecodeNode, 1, {token()});
    }
    owner.drain();
  }

  void meet(OwnerEvent event);
  // How often the attempt ended, by what its owner was told.
  int ends() {
    int found = 0;
    for (const handoff::OwnerEvent& event : owner.drain()) {
      if (const auto* tokens = std::get_if<NodeTokens>(&event)) {
        for (const message::Token& each : tokens->tokens) {
          found += each.finish != message::FinishReason::kNone ? 1 : 0;
        }
      }
      const bool ended =
          std::holds_alternative<NodeRefused>(event) || std::holds_alternative<NodeFinished>(event);
      found += ended ? 1 : 0;
    }
    return found;
  }

  asio::io_context context;
  CoordinatorOptions options;
  Told told;
  Leases leases{options};
  Owner owner{context.get_executor(), options, told, leases};
  TimePoint now{};
};

void OwnerNode::meet(OwnerEvent event) {
  const auto place = static_cast<std::uint8_t>(event);
  const bool of_prefill = place >= cells::kOfPrefill && event < OwnerEvent::kAbortAll;
  const NodeId& node = of_prefill ? kPrefillNode : kDecodeNode;
  switch (of_prefill ? static_cast<OwnerEvent>(place - cells::kOfPrefill) : event) {
    case OwnerEvent::kToken:
      owner.on_tokens(node, 2, {token()});
      break;
    case OwnerEvent::kLastToken:
      owner.on_tokens(node, 2, {token(message::FinishReason::kStop)});
      break;
    case OwnerEvent::kRefused:
      owner.on_refused(node, {kKey, true, kWhy});
      break;
    case OwnerEvent::kFinished:
      owner.on_finished(node, {kKey, message::FinishReason::kError, kWhy});
      break;
    case OwnerEvent::kAbort:
      owner.on_abort(node, kKey, kWhy);
      break;
    case OwnerEvent::kLost:
      owner.on_lost(node, kKey, kWhy);
      break;
    case OwnerEvent::kDown:
      owner.on_peer_down(node, kWhy);
      break;
    case OwnerEvent::kAbortAll:
      owner.abort(kKey, kWhy);
      break;
    case OwnerEvent::kAbortLeg:
      owner.abort(kDecodeNode, kKey, kWhy);
      break;
    default:
      owner.stop();
      break;
  }
}

// Whether the table has the event as that one in that state.
bool counts_there(OwnerEvent event, OwnerState state) {
  const bool of_prefill =
      static_cast<std::uint8_t>(event) >= cells::kOfPrefill && event < OwnerEvent::kAbortAll;
  if (state == OwnerState::kNone) {
    return event < OwnerEvent::kAbort || event == OwnerEvent::kLost;
  }
  return !of_prefill || state != OwnerState::kAlone;
}

TEST(role_table, every_event_in_every_state_of_an_owner) {
  for (std::size_t at = 0; at < cells::owner().states().size(); ++at) {
    for (std::size_t number = 0; number < cells::owner().events().size(); ++number) {
      SCOPED_TRACE(
          fmt::format("{} in {}", cells::owner().events()[number], cells::owner().states()[at]));
      const auto state = static_cast<OwnerState>(at);
      const auto event = static_cast<OwnerEvent>(number);
      OwnerNode node(state);
      const std::uint64_t before = cells::owner().count(at, number);
      node.meet(event);
      if (kCounted && counts_there(event, state)) {
        EXPECT_GT(cells::owner().count(at, number), before);
      }
      const bool over = node.owner.active_attempts() == 0;
      const int ends = node.ends();
      EXPECT_LE(ends, over && state != OwnerState::kNone ? 1 : 0);
      // Of the two nodes of an attempt that one of them ended badly, the other one is told.
      const bool badly =
          event != OwnerEvent::kLastToken && event != OwnerEvent::kLastTokenOfPrefill;
      if (ends > 0 && badly && state != OwnerState::kAlone) {
        EXPECT_FALSE(node.told.aborted.empty());
      }
      node.owner.abort(kKey, kWhy);
      node.owner.on_tokens(kDecodeNode, 3, {token(message::FinishReason::kStop)});
      node.owner.on_refused(kPrefillNode, {kKey, true, kWhy});
      EXPECT_EQ(node.ends(), 0) << "something came after the end";
      EXPECT_EQ(node.owner.active_attempts(), 0U);
      EXPECT_EQ(node.leases.watch_count(), 0U);
    }
  }
}

}  // namespace
}  // namespace baton::handoff::role_table
