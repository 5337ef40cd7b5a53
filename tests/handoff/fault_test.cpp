// A fault at every frame of a handoff, sent whole, streamed chunk by chunk, and with its last chunk
// layer by layer: the client gets the whole right answer or one error, nothing hangs, every block
// comes back, and the next request is served by the same loops.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/handoff/cluster.h"

namespace baton::testing {
namespace {

using handoff::FaultAction;
using message::NodeRole;
using std::chrono::seconds;
using wire::FrameType;

constexpr std::int32_t kPromptTokens = 150;
constexpr std::int32_t kMaxTokens = 6;

NodeSetup setup(std::int32_t block_tokens, std::int32_t max_step_tokens = 512) {
  NodeSetup result;
  result.backend.block_tokens = block_tokens;
  result.backend.max_step_tokens = max_step_tokens;
  // Tiles of 64 KiB a token tile: several Blocks frames for one prompt.
  result.backend.groups[0] = {4, 4, 64, static_cast<std::uint32_t>(1024 / block_tokens)};
  return result;
}

message::Submit request(std::uint64_t seed) {
  message::Submit submit = make_submit(seed, kPromptTokens, kMaxTokens, 0.8F);
  submit.ignore_eos = true;
  return submit;
}

enum class Sent { kWhole, kStreamed, kByLayers };

struct Trio {
  Cluster cluster;
  Node* router = nullptr;
  Trio(Sent sent, std::int32_t d_block) {
    if (sent != Sent::kWhole) {
      cluster.options.ack_bytes = 1;
    }
    if (sent == Sent::kByLayers) {
      cluster.options.slow_way_us = 0;
    }
    cluster.add_engine("p", NodeRole::kPrefill, setup(32, sent == Sent::kWhole ? 512 : 64));
    cluster.add_engine("d", NodeRole::kDecode, setup(d_block));
    router = &cluster.add_router();
    cluster.connect_all();
  }
};

// How many frames other than Beats a healthy request takes, and what they are.
std::vector<FrameType> healthy_frames(Sent sent) {
  Trio trio(sent, 64);
  std::vector<FrameType> frames;
  trio.cluster.network.set_hook([&](const NodeId&, const NodeId&, const wire::FrameHeader& header) {
    if (header.type != FrameType::kBeat) {
      frames.push_back(header.type);
    }
    return std::optional<FaultAction>();
  });
  const SequenceKey key = trio.cluster.start(*trio.router, request(1), "p", "d");
  EXPECT_TRUE(trio.cluster.run_until([&] { return trio.cluster.all_ended(); }, seconds(30)));
  EXPECT_TRUE(trio.cluster.answer(key).finished);
  return frames;
}

enum class Kind { kFrameFault, kPartition };

struct FaultCase {
  const char* name;
  Kind kind;
  FaultAction action;
};

class EveryFrame : public ::testing::TestWithParam<std::tuple<FaultCase, Sent>> {};

void strike(Trio& trio, const FaultCase& fault, std::size_t at) {
  auto seen = std::make_shared<std::size_t>(0);
  Cluster* cluster = &trio.cluster;
  cluster->network.set_hook([=](const NodeId& from, const NodeId& to,
                                const wire::FrameHeader& header) -> std::optional<FaultAction> {
    if (header.type == FrameType::kBeat || (*seen)++ != at) {
      return std::nullopt;
    }
    switch (fault.kind) {
      case Kind::kFrameFault:
        return fault.action;
      case Kind::kPartition:
        asio::post(cluster->context, [=] { cluster->network.partition(from, to); });
        return FaultAction::kDrop;
    }
    return std::nullopt;
  });
}

TEST_P(EveryFrame, ends_frees_and_serves_on) {
  const auto [fault, sent] = GetParam();
  const std::vector<FrameType> frames = healthy_frames(sent);
  ASSERT_GE(frames.size(), sent == Sent::kWhole ? 10U : sent == Sent::kStreamed ? 15U : 18U);
  const std::vector<std::string> expected = single_node_answer(setup(32), request(1));
  const std::vector<std::string> expected_next = single_node_answer(setup(32), request(2));
  int failed = 0;
  for (std::size_t at = 0; at < frames.size(); ++at) {
    SCOPED_TRACE(
        fmt::format("{} at frame {} (type {})", fault.name, at, static_cast<int>(frames[at])));
    Trio trio(sent, at % 2 == 0 ? 64 : 32);
    Cluster& cluster = trio.cluster;
    strike(trio, fault, at);
    const SequenceKey key = cluster.start(*trio.router, request(1), "p", "d");
    ASSERT_TRUE(cluster.run_until([&] { return cluster.answer(key).ended(); }, seconds(30)))
        << "the client hangs";
    const Answer& answer = cluster.answer(key);
    EXPECT_EQ(answer.conflicts, 0);
    const std::vector<std::string> got = canonical(answer);
    if (answer.finished) {
      EXPECT_EQ(got, expected);
    } else {
      ++failed;
      ASSERT_LE(got.size(), expected.size());
      EXPECT_TRUE(std::equal(got.begin(), got.end(), expected.begin()));
    }
    EXPECT_TRUE(cluster.run_until([&] { return cluster.all_idle(); }, seconds(30)))
        << cluster.leftovers();

    cluster.network.set_hook({});
    cluster.connect_all();
    cluster.run_for(seconds(1));
    cluster.connect_all();
    const SequenceKey next = cluster.start(*trio.router, request(2), "p", "d");
    ASSERT_TRUE(cluster.run_until([&] { return cluster.answer(next).ended(); }, seconds(30)));
    ASSERT_TRUE(cluster.answer(next).finished) << cluster.answer(next).error->message;
    EXPECT_EQ(canonical(cluster.answer(next)), expected_next);
    EXPECT_TRUE(cluster.run_until([&] { return cluster.all_idle(); }, seconds(5)))
        << cluster.leftovers();
  }
  // Not vacuous: every kind but a repeated frame costs some attempts.
  EXPECT_GE(failed, fault.action == FaultAction::kDuplicate ? 0 : 3);
  RecordProperty("failed_attempts", failed);
  RecordProperty("frames", static_cast<int>(frames.size()));
}

INSTANTIATE_TEST_SUITE_P(
    handoff, EveryFrame,
    ::testing::Combine(
        ::testing::Values(FaultCase{"drop", Kind::kFrameFault, FaultAction::kDrop},
                          FaultCase{"corrupt", Kind::kFrameFault, FaultAction::kCorrupt},
                          FaultCase{"duplicate", Kind::kFrameFault, FaultAction::kDuplicate},
                          FaultCase{"swap", Kind::kFrameFault, FaultAction::kSwapNext},
                          FaultCase{"reset", Kind::kFrameFault, FaultAction::kReset},
                          FaultCase{"half_close", Kind::kFrameFault, FaultAction::kHalfClose},
                          FaultCase{"partition", Kind::kPartition, FaultAction::kDrop}),
        ::testing::Values(Sent::kWhole, Sent::kStreamed, Sent::kByLayers)),
    [](const auto& each) {
      const Sent sent = std::get<1>(each.param);
      return std::string(std::get<0>(each.param).name) + (sent == Sent::kWhole      ? ""
                                                          : sent == Sent::kStreamed ? "_streamed"
                                                                                    : "_by_layers");
    });

}  // namespace
}  // namespace baton::testing
