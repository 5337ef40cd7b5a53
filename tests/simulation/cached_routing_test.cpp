// What a router knows of caches that it did not fill: two routers, two prefill and two decode
// nodes on virtual time, and block events between them that come, get lost and come again.
#include <gtest/gtest.h>

#include "tests/simulation/world.h"
#include <algorithm>
#include <chrono>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

namespace baton::simulation {
namespace {

using message::NodeRole;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::int32_t kVocabulary = 4096;
// With its answer of 40, all but 16 tokens of it are whole tiles: few enough to be computed where
// it decodes (World's local_prefill_tokens).
constexpr std::int32_t kPrompt = 584;
// A tick, the way, a Beat that asks: all that a router waits for to hear of something.
constexpr Duration kHeardOf = milliseconds(700);

Plan plan_of(bool events, std::uint32_t blocks) {
  Plan plan;
  plan.policy = router::PolicyKind::kKvAware;
  plan.options.hear_cached = events;
  plan.link_delay = milliseconds(1);
  testing::NodeSetup setup;
  setup.engine.cache_key = "cluster";
  setup.backend.vocabulary = kVocabulary;
  setup.backend.end_tokens = {};
  setup.backend.max_context_tokens = 4096;
  setup.backend.block_tokens = 64;
  testing::FakeGroup group;
  group.layers = 1;
  group.kv_heads = 1;
  group.head_dim = 4;
  group.blocks = blocks;
  setup.backend.groups = {group};
  for (const char* id : {"r0", "r1"}) {
    plan.nodes.push_back({id, NodeRole::kRouter, {}});
  }
  for (const char* id : {"p0", "p1"}) {
    plan.nodes.push_back({id, NodeRole::kPrefill, setup});
  }
  for (const char* id : {"d0", "d1"}) {
    plan.nodes.push_back({id, NodeRole::kDecode, setup});
  }
  return plan;
}

std::vector<TokenId> prompt_of(std::int32_t tokens, std::int32_t first) {
  std::vector<TokenId> prompt(static_cast<std::size_t>(tokens));
  std::iota(prompt.begin(), prompt.end(), first);
  return prompt;
}

// Two routers that see each other only in the nodes' caches.
class Routers {
 public:
  explicit Routers(bool events = true, std::uint32_t blocks = 400)
      : plan_(plan_of(events, blocks)), world_(plan_, log_) {
    join();
  }
  ~Routers() { EXPECT_EQ(world_.stop(), ""); }
  Routers(const Routers&) = delete;
  Routers& operator=(const Routers&) = delete;

  void join() {
    world_.dial();
    world_.cluster.run_for(kHeardOf);
    EXPECT_TRUE(world_.connected());
  }
  void restart(const std::string& router) {
    FaultPlan fault;
    fault.kind = FaultKind::kKill;
    fault.a = router;
    world_.begin(fault);
    world_.cluster.run_for(milliseconds(50));
    world_.end(fault);
    join();
  }
  void lose_next_cached(const std::string& from, const std::string& to) {
    world_.cluster.network.add_fault(
        {NodeId{from}, NodeId{to}, wire::FrameType::kCached, 1, handoff::FaultAction::kDrop});
  }
  [[nodiscard]] std::uint64_t reported(const std::string& router) const {
    return world_.router(router)->stats().prefixes_reported;
  }
  // How often the router has asked the node for all of it.
  [[nodiscard]] std::uint64_t asks(const std::string& router, const std::string& node) const {
    wire::pb::Beat beat;
    world_.cluster.nodes.at(router)->owner().fill_beat(NodeId{node}, beat);
    return beat.cached_asks();
  }
  [[nodiscard]] std::uint64_t cached_frames(const std::string& node,
                                            const std::string& router) const {
    return world_.cluster.network.frames_sent(NodeId{node}, NodeId{router},
                                              wire::FrameType::kCached);
  }
  void wait() { world_.cluster.run_for(kHeardOf); }

  // Where it ran; its tokens, which are those of the cold run, go behind the prompt.
  router::Route ask(const std::string& router, std::vector<TokenId>& talk,
                    std::int32_t max_tokens = 40) {
    message::Submit submit;
    submit.key.request = {1, ++requests_};
    submit.prompt = talk;
    submit.max_tokens = max_tokens;
    submit.sampling.temperature = 0.0F;
    auto stream = std::make_shared<app::RequestStream>(world_.cluster.context.get_executor(),
                                                       static_cast<std::size_t>(max_tokens) + 64);
    world_.router(router)->start({std::move(submit)}, {}, stream);
    router::Route route;
    std::vector<TokenId> tokens;
    bool over = false;
    EXPECT_TRUE(world_.cluster.run_until(
        [&] {
          while (auto event = stream->try_pop()) {
            if (const auto* delivered = std::get_if<app::Delivered>(&*event)) {
              tokens.push_back(delivered->token.token);
              route = delivered->route;
            } else {
              EXPECT_TRUE(std::holds_alternative<app::Completed>(*event));
              over = true;
            }
          }
          return over;
        },
        seconds(60)));
    sample::SamplingParams greedy;
    greedy.temperature = 0.0F;
    EXPECT_EQ(tokens, testing::FakeBackend::reference(plan_.nodes.back().setup.backend, talk,
                                                      greedy, Choice{0}, max_tokens));
    talk.insert(talk.end(), tokens.begin(), tokens.end());
    return route;
  }

 private:
  Plan plan_;
  EventLog log_{false};
  World world_;
  std::uint64_t requests_ = 0;
};

// The next turns of four conversations at another router than the first: where the first ones ran.
TEST(CachedRouting, AConversationMayChangeItsRouter) {
  Routers routers;
  for (std::int32_t number = 0; number < 4; ++number) {
    std::vector<TokenId> talk = prompt_of(kPrompt, 700 * number);
    const router::Route first = routers.ask("r0", talk);
    EXPECT_TRUE(first.split);
    routers.wait();
    EXPECT_EQ(routers.reported("r0"), routers.reported("r1"));
    const router::Route next = routers.ask("r1", talk);
    EXPECT_FALSE(next.split) << "nothing new: the decode node does it alone";
    EXPECT_EQ(next.decode_node, first.decode_node);
    routers.wait();
    talk.resize(talk.size() + 300, 7);
    const router::Route longer = routers.ask("r1", talk);
    EXPECT_TRUE(longer.split);
    EXPECT_EQ(longer.prefill_node, first.prefill_node);
    EXPECT_EQ(longer.decode_node, first.decode_node);
  }
}

TEST(CachedRouting, WithoutEventsAnotherRouterKnowsNothing) {
  Routers routers(false);
  std::vector<TokenId> talk = prompt_of(kPrompt, 0);
  EXPECT_TRUE(routers.ask("r0", talk).split);
  routers.wait();
  EXPECT_TRUE(routers.ask("r1", talk).split);
  EXPECT_EQ(routers.reported("r1"), 0U);
  EXPECT_EQ(routers.cached_frames("d0", "r1") + routers.cached_frames("d1", "r1"), 0U);
}

TEST(CachedRouting, ARouterKnowsAgainAfterItsRestart) {
  Routers routers;
  std::vector<TokenId> talk = prompt_of(kPrompt, 0);
  const router::Route first = routers.ask("r0", talk);
  routers.restart("r0");
  EXPECT_EQ(routers.reported("r0"), routers.reported("r1"));
  const router::Route next = routers.ask("r0", talk);
  EXPECT_FALSE(next.split);
  EXPECT_EQ(next.decode_node, first.decode_node);
}

TEST(CachedRouting, WhatWasEvictedIsForgotten) {
  constexpr std::uint32_t kBlocks = 24;  // of 64 tokens: two conversations
  Routers routers(true, kBlocks);
  std::vector<TokenId> talk = prompt_of(kPrompt, 0);
  routers.ask("r0", talk);
  routers.wait();
  for (std::int32_t number = 1; number <= 8; ++number) {
    std::vector<TokenId> other = prompt_of(kPrompt, 400 * number);
    routers.ask("r0", other);
  }
  routers.wait();
  EXPECT_EQ(routers.reported("r0"), routers.reported("r1"));
  EXPECT_LE(routers.reported("r1"), std::uint64_t{4} * kBlocks * 2);
  EXPECT_TRUE(routers.ask("r1", talk).split) << "both decode nodes have others' KV in its place";
}

// A frame that does not arrive is noticed by the next one, and all is told again.
TEST(CachedRouting, AGapLeadsToASnapshot) {
  Routers routers;
  std::vector<TokenId> talk = prompt_of(kPrompt, 0);
  const std::string decode = routers.ask("r0", talk).decode_node.value;
  routers.wait();
  EXPECT_EQ(routers.reported("r0"), routers.reported("r1"));
  EXPECT_EQ(routers.asks("r1", decode), 1U);
  routers.lose_next_cached(decode, "r1");
  for (int more = 0; more < 2; ++more) {  // what is lost, and what shows it at the latest
    talk.resize(talk.size() + 40, 3);
    EXPECT_EQ(routers.ask("r0", talk, 24).decode_node.value, decode);
    routers.wait();
  }
  EXPECT_EQ(routers.asks("r1", decode), 2U);
  EXPECT_EQ(routers.asks("r0", decode), 1U);
  EXPECT_EQ(routers.reported("r0"), routers.reported("r1"));
  const router::Route next = routers.ask("r1", talk);
  EXPECT_FALSE(next.split);
  EXPECT_EQ(next.decode_node.value, decode);
}

}  // namespace
}  // namespace baton::simulation
