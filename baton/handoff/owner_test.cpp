// The owner's queue of events; what it does with attempts is tested by whole clusters in
// tests/handoff.
#include "baton/handoff/owner.h"

#include <boost/asio/io_context.hpp>
#include <gtest/gtest.h>

namespace baton::handoff {
namespace {

struct NoWorld final : Outbox {
  Status control(const NodeId&, const SequenceKey&, wire::Control) override { return {}; }
  Status tokens(const NodeId&, std::uint64_t, std::vector<message::Token>) override { return {}; }
  bool engine(message::EngineCommand) override { return true; }
  void send_frame(FrameJob) override {}
  void send_commit(const NodeId&, const SequenceKey&, wire::pb::Commit) override {}
};

std::size_t events_of_a_peers_life(bool has_owner) {
  asio::io_context context;
  CoordinatorOptions options;
  options.has_owner = has_owner;
  NoWorld world;
  Leases leases(options);
  Owner owner(context.get_executor(), options, world, leases);
  message::NodeInfo info;
  info.id = NodeId{"d"};
  owner.on_peer_up(info);
  owner.on_load(info.id, {}, false);  // at each of its Beats
  owner.on_peer_unusable({"h:1", {ErrorCode::kPeerLost, "refused"}});
  owner.on_peer_down(info.id, {ErrorCode::kPeerLost, "reset"});
  owner.on_peer_forgotten({"h:1"});
  return owner.drain().size();
}

TEST(owner, keeps_events_only_where_somebody_takes_them) {
  EXPECT_EQ(events_of_a_peers_life(true), 5U);
  EXPECT_EQ(events_of_a_peers_life(false), 0U);
}

}  // namespace
}  // namespace baton::handoff
