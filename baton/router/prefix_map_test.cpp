// Who probably has which prefix, and what the policy makes of it.
#include "baton/router/prefix_map.h"

#include "baton/router/router.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

namespace baton::router {
namespace {

using message::FinishReason;
using message::NodeRole;

std::vector<TokenId> tokens(std::size_t count, TokenId first = 0) {
  std::vector<TokenId> out(count);
  std::iota(out.begin(), out.end(), first);
  return out;
}

TEST(ChunkNames, CoverAllBeforeThem) {
  const auto names = chunk_names({}, tokens(200));
  EXPECT_EQ(names.size(), 3U) << "whole chunks only";
  EXPECT_EQ(chunk_names({}, tokens(150), tokens(50, 150)), names) << "prompt and answer are one";
  std::vector<TokenId> other = tokens(200);
  other[0] = 7;
  const auto changed = chunk_names({}, other);
  for (std::size_t i = 0; i < names.size(); ++i) {
    EXPECT_NE(changed[i], names[i]);
  }
  other = tokens(200);
  other[130] = 7;
  EXPECT_EQ(chunk_names({}, other)[1], names[1]);
  EXPECT_NE(chunk_names({}, other)[2], names[2]);
  EXPECT_NE(chunk_names({1}, tokens(200))[0], names[0]) << "another namespace shares nothing";
  EXPECT_TRUE(chunk_names({}, tokens(63)).empty());
}

TEST(PrefixMap, ForgetsTheEndsOfTheStalest) {
  PrefixMap map;
  const NodeId node{"p"};
  const auto first = chunk_names({}, tokens(256));
  const auto second = chunk_names({}, tokens(256, 1000));
  EXPECT_EQ(map.cached_tokens(node, first), 0);
  map.note_use(node, first, 384);
  EXPECT_EQ(map.cached_tokens(node, first), 256);
  EXPECT_EQ(map.cached_tokens(node, chunk_names({}, tokens(100))), 64);
  EXPECT_EQ(map.cached_tokens(NodeId{"p2"}, first), 0);
  map.note_use(node, second, 384);  // six chunks of eight
  EXPECT_EQ(map.cached_tokens(node, second), 256);
  EXPECT_EQ(map.cached_tokens(node, first), 128);
  map.note_use(node, std::span(first).first(2), 384);
  map.note_use(node, chunk_names({}, tokens(128, 5000)), 384);
  EXPECT_EQ(map.cached_tokens(node, first), 128) << "used again";
  EXPECT_EQ(map.cached_tokens(node, second), 128);
  map.forget(node);
  EXPECT_EQ(map.cached_tokens(node, first), 0);
}

class KvAware : public ::testing::Test {
 protected:
  void SetUp() override {
    router_ = std::make_unique<Router>(
        RouterOptions{.policy = PolicyKind::kKvAware, .local_prefill_tokens = 64});
    for (const char* id : {"p1", "p2", "d1", "d2"}) {
      Commands out;
      const NodeRole role = id[0] == 'p' ? NodeRole::kPrefill : NodeRole::kDecode;
      router_->on_node_up({message::NodeInfo{NodeId{id}, role, id, "t", 8192, 8192}}, {}, out);
    }
  }
  // Which nodes it was sent to: "p1 d2", or "d2" alone.
  std::string start(const std::vector<TokenId>& prompt) {
    message::Submit submit;
    submit.key.request = {0, ++last_};
    submit.prompt = prompt;
    submit.max_tokens = 100;
    Commands out;
    EXPECT_TRUE(router_->start({submit}, {}, out));
    std::string nodes;
    for (const Command& command : out) {
      if (const auto* prefill = std::get_if<SendPrefill>(&command)) {
        nodes.insert(0, prefill->node.value + " ");
      } else if (const auto* decode = std::get_if<SendDecode>(&command)) {
        nodes += decode->node.value;
        decode_ = decode->node;
      }
    }
    return nodes;
  }
  // The answer of the last one: tokens 5000, 5001, ...
  void answer(std::int32_t count) {
    for (std::int32_t index = 0; index < count; ++index) {
      message::Token token;
      token.key = {{0, last_}, {}, Epoch{1}};
      token.index = index;
      token.token = 5000 + index;
      token.finish = index + 1 == count ? FinishReason::kStop : FinishReason::kNone;
      Commands out;
      router_->on_tokens(decode_, {token}, {}, out);
    }
  }
  std::unique_ptr<Router> router_;
  NodeId decode_;
  std::uint64_t last_ = 0;
};

TEST_F(KvAware, GoesWhereItsPrefixIs) {
  const std::string first = start(tokens(1000));
  answer(1);
  std::vector<TokenId> longer = tokens(2000);
  for (int turn = 0; turn < 4; ++turn) {  // a turn of round robin would alternate
    EXPECT_EQ(start(longer), first);
    answer(1);
    longer.insert(longer.end(), 300, 9);
  }
}

TEST_F(KvAware, LoadOutweighsAPrefixInTheEnd) {
  const std::string first = start(tokens(600));
  answer(1);
  std::vector<std::string> seen;
  for (int n = 0; n < 6; ++n) {  // all at once, none answered
    seen.push_back(start(tokens(1200, 0)));
  }
  EXPECT_EQ(seen.front(), first);
  EXPECT_NE(std::count(seen.begin(), seen.end(), first), 6) << "the other nodes stand idle";
}

TEST_F(KvAware, NewPromptsAreSharedOut) {
  std::map<std::string, int> count;
  for (TokenId n = 0; n < 8; ++n) {
    ++count[start(tokens(1000, 10'000 * (n + 1)))];
  }
  int p1 = 0;
  int d1 = 0;
  for (const auto& [nodes, times] : count) {
    p1 += nodes.find("p1") != std::string::npos ? times : 0;
    d1 += nodes.find("d1") != std::string::npos ? times : 0;
  }
  EXPECT_EQ(p1, 4);
  EXPECT_EQ(d1, 4);
}

// A conversation goes on: its decode node has all but the new question.
TEST_F(KvAware, AShortTailIsComputedWhereItDecodes) {
  std::vector<TokenId> talk = tokens(500);
  start(talk);
  const NodeId decode = decode_;
  answer(76);
  for (TokenId token = 5000; token < 5076; ++token) {
    talk.push_back(token);
  }
  std::vector<TokenId> question = talk;
  question.insert(question.end(), 60, 9);
  EXPECT_EQ(start(question), decode.value) << "576 of 636 are there";
  EXPECT_EQ(router_->stats().local_fallbacks, 0U) << "by choice";
  answer(1);
  question.insert(question.end(), 600, 11);
  EXPECT_NE(start(question), decode.value) << "too much to do it beside others' tokens";
}

TEST_F(KvAware, ANodeThatCameBackHasNothing) {
  start(tokens(1000));
  const NodeId decode = decode_;
  answer(1);
  Commands out;
  router_->on_node_down({decode, "reset"}, {}, out);
  router_->on_node_up({message::NodeInfo{decode, NodeRole::kDecode, decode.value, "t", 8192, 8192}},
                      {}, out);
  EXPECT_NE(start(tokens(1000)).find(' '), std::string::npos) << "a prefill node is needed again";
}

}  // namespace
}  // namespace baton::router
