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

std::vector<PrefixName> names_of(std::span<const TokenId> prompt,
                                 std::span<const TokenId> emitted = {},
                                 const message::Namespace& space = {}) {
  kv::TileHasher hasher("key");
  return prefix_names(hasher, space, prompt, emitted);
}

TEST(PrefixNames, CoverAllBeforeThem) {
  const auto names = names_of(tokens(100));
  EXPECT_EQ(names.size(), 3U) << "whole tiles only";
  EXPECT_EQ(names_of(tokens(75), tokens(25, 75)), names) << "prompt and answer are one";
  std::vector<TokenId> other = tokens(100);
  other[0] = 7;
  const auto changed = names_of(other);
  for (std::size_t i = 0; i < names.size(); ++i) {
    EXPECT_NE(changed[i], names[i]);
  }
  other = tokens(100);
  other[65] = 7;
  EXPECT_EQ(names_of(other)[1], names[1]);
  EXPECT_NE(names_of(other)[2], names[2]);
  EXPECT_NE(names_of(tokens(100), {}, {1})[0], names[0]) << "another namespace shares nothing";
  EXPECT_TRUE(names_of(tokens(31)).empty());
  kv::TileHasher stranger("another key");
  EXPECT_NE(prefix_names(stranger, {}, tokens(32))[0], names[0]);
}

TEST(PrefixMap, ForgetsTheEndsOfTheStalest) {
  PrefixMap map;
  const NodeId node{"p"};
  const auto first = names_of(tokens(128));
  const auto second = names_of(tokens(128, 1000));
  EXPECT_EQ(map.cached_tokens(node, first), 0);
  map.note_use(node, first, 192, {});
  EXPECT_EQ(map.cached_tokens(node, first), 128);
  EXPECT_EQ(map.cached_tokens(node, names_of(tokens(50))), 32);
  EXPECT_EQ(map.cached_tokens(NodeId{"p2"}, first), 0);
  map.note_use(node, second, 192, {});  // six tiles of eight
  EXPECT_EQ(map.cached_tokens(node, second), 128);
  EXPECT_EQ(map.cached_tokens(node, first), 64);
  map.note_use(node, std::span(first).first(2), 192, {});
  map.note_use(node, names_of(tokens(64, 5000)), 192, {});
  EXPECT_EQ(map.cached_tokens(node, first), 64) << "used again";
  EXPECT_EQ(map.cached_tokens(node, second), 64);
  map.forget(node);
  EXPECT_EQ(map.cached_tokens(node, first), 0);
}

TEST(PrefixMap, ANodesWordEndsTheGuess) {
  PrefixMap map;
  const NodeId node{"p"};
  const TimePoint now{};
  const auto first = names_of(tokens(128));
  const auto second = names_of(tokens(128, 1000));
  map.note_use(node, first, 1024, now);
  map.expire(now + 2 * kUnconfirmedFor);
  EXPECT_EQ(map.cached_tokens(node, first), 128) << "a node that tells nothing: the guess stays";

  map.report(node, {true, {first[0], first[1]}, {}});
  EXPECT_EQ(map.reported(), 2U);
  EXPECT_EQ(map.cached_tokens(node, first), 128) << "the rest may be on its way";
  map.report(node, {false, {}, {first[1]}});
  EXPECT_EQ(map.cached_tokens(node, first), 32) << "evicted";
  map.note_use(node, first, 1024, now);
  EXPECT_EQ(map.cached_tokens(node, first), 128) << "and asked for again";
  map.expire(now + kUnconfirmedFor);
  EXPECT_EQ(map.cached_tokens(node, first), 32) << "it never came to be";

  map.report(node, {false, second, {}});  // of another router's request
  EXPECT_EQ(map.cached_tokens(node, second), 128);
  map.note_use(node, second, 32, now + kUnconfirmedFor);
  map.expire(now + 3 * kUnconfirmedFor);
  EXPECT_EQ(map.cached_tokens(node, second), 128) << "what is known does not expire";
  map.report(node, {true, {}, {}});
  EXPECT_EQ(map.cached_tokens(node, second), 0);
  EXPECT_EQ(map.reported(), 0U);
}

// A node whose prefix cache is off never confirms what it is asked for again and again.
TEST(PrefixMap, AskingAgainDoesNotKeepAGuessAlive) {
  PrefixMap map;
  const NodeId node{"d"};
  const auto names = names_of(tokens(64));
  TimePoint now{};
  map.report(node, {true, {}, {}});
  for (int second = 0; second <= 60; ++second) {
    map.note_use(node, names, 1024, now + std::chrono::seconds(second));
  }
  map.expire(now + kUnconfirmedFor);
  EXPECT_EQ(map.cached_tokens(node, names), 0);

  now += 2 * kUnconfirmedFor;
  map.report(node, {false, {1}, {}});
  for (int second = 0; second < 10; ++second) {  // and is done with it at once
    map.note_use(node, names, 1024, now + std::chrono::seconds(second));
    map.note_end(node, names, 1024, now + std::chrono::seconds(second));
    EXPECT_EQ(map.cached_tokens(node, names), 64);
  }
  map.expire(now + kUnconfirmedAfterEnd);
  EXPECT_EQ(map.cached_tokens(node, names), 0);

  now += kUnconfirmedAfterEnd;  // one is always under way when a guess ends
  map.note_end(node, names, 1024, now);
  map.note_use(node, names, 1024, now);
  EXPECT_EQ(map.cached_tokens(node, names), 0) << "it had its chance";
  map.report(node, {false, {names[0]}, {}});
  map.note_use(node, names, 1024, now);
  EXPECT_EQ(map.cached_tokens(node, names), 64) << "it keeps something after all";
}

class KvAware : public ::testing::Test {
 protected:
  void SetUp() override {
    router_ = std::make_unique<Router>(RouterOptions{
        .policy = PolicyKind::kKvAware, .local_prefill_tokens = 64, .prefix_key = "key"});
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

// The last Beat counted a sequence that has ended since.
TEST_F(KvAware, WhatHasEndedIsNoLoad) {
  const std::string first = start(tokens(300));
  for (const char* id : {"p1", "p2", "d1", "d2"}) {
    const bool busy = first.find(id) != std::string::npos;
    router_->on_node_load(NodeId{id}, {.running = busy ? 1U : 0U}, false, {});
  }
  answer(1);
  EXPECT_EQ(start(tokens(500)), first);
  answer(1);
  router_->on_node_load(decode_, {.running = 6}, false, {});
  EXPECT_NE(start(tokens(700)), first) << "another router's sequences are";
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

// Another router's requests, or our own before a restart.
TEST_F(KvAware, GoesWhereANodeSaysThatItIs) {
  const auto known = names_of(tokens(1000));
  router_->on_prefixes(NodeId{"p2"}, {true, known, {}});
  router_->on_prefixes(NodeId{"d2"}, {true, known, {}});
  EXPECT_EQ(router_->stats().prefixes_reported, 2 * known.size());
  EXPECT_EQ(start(tokens(2000)), "p2 d2");
  answer(1);
  EXPECT_EQ(start(tokens(1010)), "d2");
  answer(1);
  const auto all = names_of(tokens(2000));  // ours too, which are guessed yet
  router_->on_prefixes(NodeId{"p2"}, {false, {}, all});
  router_->on_prefixes(NodeId{"d2"}, {false, {}, all});
  EXPECT_EQ(router_->stats().prefixes_reported, 0U);
  EXPECT_NE(start(tokens(1010)).find(' '), std::string::npos) << "it was evicted";
  router_->on_prefixes(NodeId{"stranger"}, {true, known, {}});
  EXPECT_EQ(router_->stats().prefixes_reported, 0U);
}

}  // namespace
}  // namespace baton::router
