// Prefixes that are shared: who has computed what, hits of every length, whose they are.
#include "baton/engine/engine_harness.h"
#include "baton/message/prefix_root.h"

#include <gtest/gtest.h>

namespace baton::engine {
namespace {

using testing::FakeBackendOptions;

FakeBackendOptions roomy(std::int32_t block_tokens = 64, std::uint32_t blocks = 64) {
  FakeBackendOptions options;
  options.groups = {{2, 2, 8, blocks}, {1, 1, 4, blocks}};
  options.block_tokens = block_tokens;
  options.end_tokens = {};
  return options;
}

message::Submit again(message::Submit submit, std::uint64_t n) {
  submit.key = key_of(n);
  return submit;
}

std::int32_t whole_tiles(std::int32_t tokens) { return tokens / kv::kTileTokens * kv::kTileTokens; }

// The whole prompt is already cached (field report B27): three times in a row, then twice at once.
TEST(PrefixCache, TheWholePromptIsThere) {
  constexpr std::int32_t kBlock = 64;
  std::uint64_t n = 0;
  for (const std::int32_t prompt :
       {1, kBlock - 1, kBlock, kBlock + 1, 2 * kBlock, 2 * kBlock + 1}) {
    EngineHarness node(roomy(kBlock));
    const message::Submit first = submit_of(++n, prompt, 32, 0.8F);
    const std::vector<TokenId> expected = node.reference(first);
    const std::int32_t cached = whole_tiles(prompt - 1);
    for (int round = 0; round < 3; ++round) {
      const message::Submit repeat = again(first, ++n);
      node.post(message::RunLocally{repeat});
      node.run_until_idle();
      EXPECT_EQ(node.ids(repeat.key), expected) << prompt;
      for (const message::Token& token : node.tokens[repeat.key]) {
        EXPECT_EQ(token.cached_tokens, round == 0 ? 0 : cached);
        EXPECT_LT(token.cached_tokens, prompt);
      }
    }
    for (int twin = 0; twin < 2; ++twin) {
      node.post(message::RunLocally{again(first, ++n)});
    }
    node.run_until_idle();
    EXPECT_EQ(node.ids(key_of(n - 1)), expected);
    EXPECT_EQ(node.ids(key_of(n)), expected);
    EXPECT_EQ(node.tokens[key_of(n)][0].cached_tokens, cached);
    EXPECT_EQ(node.engine.stats().prompt_tokens_cached, static_cast<std::uint64_t>(4 * cached));
    EXPECT_EQ(node.engine.stats().prompt_tokens_computed,
              static_cast<std::uint64_t>(5 * prompt - 4 * cached));
  }
}

// The same over the split: P has the prompt cached, D takes fresh blocks for all of it.
TEST(PrefixCache, OnThePrefillNode) {
  EngineHarness prefill(roomy());
  const message::Submit first = submit_of(1, 200, 5);
  std::vector<std::byte> bytes;
  for (std::uint64_t n = 1; n <= 3; ++n) {
    prefill.post(message::PrefillForHandoff{again(first, n)});
    prefill.run_until_idle();
    const Prefilled& done = prefill.prefilled[key_of(n)];
    EXPECT_EQ(done.first[0].cached_tokens, n == 1 ? 0 : 192);
    EXPECT_EQ(done.kv_tokens, 200);
    ASSERT_EQ(done.blocks.tables[0].size(), 4U);
    std::vector<std::byte> now;
    for (const message::LeasedBlock& block : done.blocks.tables[0]) {
      now.insert(now.end(), block.bytes.begin(), block.bytes.end());
    }
    // The rows of the last tile past the prompt are zero too, so all bytes of used tiles are alike.
    const std::size_t used = now.size() / 4 * 3;
    EXPECT_TRUE(
        bytes.empty() ||
        std::equal(now.begin(), now.begin() + static_cast<std::ptrdiff_t>(used), bytes.begin()));
    bytes = std::move(now);
    prefill.post(message::Release{done.blocks.lease});
    prefill.run_until_idle();
  }
}

// A prompt that shares the first k tokens with one that was computed, for every k around borders of
// tiles and blocks.
TEST(PrefixCache, HitsOfEveryLength) {
  for (const std::int32_t block_tokens : {32, 64, 128}) {
    EngineHarness node(roomy(block_tokens, 256));  // nothing is evicted
    const message::Submit base = submit_of(1, 300, 8);
    node.post(message::RunLocally{base});
    node.run_until_idle();
    std::uint64_t n = 10;
    for (const std::int32_t shared :
         {0, 1, 31, 32, 33, 63, 64, 65, 96, 127, 128, 129, 255, 256, 299}) {
      message::Submit other = submit_of(++n, 310, 8, 0.7F);
      std::copy_n(base.prompt.begin(), shared, other.prompt.begin());
      other.prompt[static_cast<std::size_t>(shared)] =
          (base.prompt[static_cast<std::size_t>(shared)] + 1) % 257;
      node.post(message::RunLocally{other});
      node.run_until_idle();
      EXPECT_EQ(node.ids(other.key), node.reference(other)) << block_tokens << ' ' << shared;
      EXPECT_EQ(node.tokens[other.key][0].cached_tokens, whole_tiles(shared));
    }
  }
}

// The next turn of a conversation finds prompt and answer.
TEST(PrefixCache, AnswersAreCachedToo) {
  EngineHarness node(roomy());
  const message::Submit first = submit_of(1, 50, 60);
  node.post(message::RunLocally{first});
  node.run_until_idle();
  message::Submit next = submit_of(2, 20, 10);
  std::vector<TokenId> prompt = first.prompt;
  const std::vector<TokenId> answer = node.ids(first.key);
  prompt.insert(prompt.end(), answer.begin(), answer.end());
  prompt.insert(prompt.end(), next.prompt.begin(), next.prompt.end());
  next.prompt = prompt;
  node.post(message::RunLocally{next});
  node.run_until_idle();
  EXPECT_EQ(node.ids(next.key), node.reference(next));
  EXPECT_EQ(node.tokens[next.key][0].cached_tokens, whole_tiles(50 + 60 - 1));
}

// Those that run share what they have, blocks included, and go on when the first has left.
TEST(PrefixCache, RunningSequencesShareBlocks) {
  EngineHarness node(roomy(32, 20));
  const message::Submit first = submit_of(1, 300, 40);
  node.post(message::RunLocally{first});
  while (node.engine.stats().tokens_generated == 0) {
    node.engine.run_once();
  }
  const std::uint32_t used = node.engine.stats().groups[0].used_blocks;
  for (std::uint64_t n = 2; n <= 4; ++n) {  // 10 blocks each if they were not shared
    node.post(message::RunLocally{again(first, n)});
  }
  node.engine.run_once();
  EXPECT_EQ(node.engine.stats().running, 4U);
  EXPECT_LE(node.engine.stats().groups[0].used_blocks, used + 3 * 2);
  node.post(message::Abort{first.key, {}});
  node.run_until_idle();
  for (std::uint64_t n = 2; n <= 4; ++n) {
    EXPECT_EQ(node.ids(key_of(n)), node.reference(first));
  }
}

TEST(PrefixCache, NamespacesNeverMeet) {
  EngineHarness node(roomy());
  message::Submit mine = submit_of(1, 200, 8);
  mine.cache_namespace.fill(1);
  message::Submit yours = again(mine, 2);
  yours.cache_namespace.fill(2);
  for (const message::Submit& submit : {mine, yours, again(mine, 3)}) {
    node.post(message::RunLocally{submit});
    node.run_until_idle();
    EXPECT_EQ(node.ids(submit.key), node.reference(mine));
  }
  EXPECT_EQ(node.tokens[yours.key][0].cached_tokens, 0);
  EXPECT_EQ(node.tokens[key_of(3)][0].cached_tokens, 192);
}

TEST(PrefixCache, CanBeOff) {
  EngineConfig config;
  config.prefix_cache = false;
  EngineHarness node(roomy(), config);
  const message::Submit first = submit_of(1, 200, 8);
  for (std::uint64_t n = 1; n <= 2; ++n) {
    node.post(message::RunLocally{again(first, n)});
    node.run_until_idle();
    EXPECT_EQ(node.tokens[key_of(n)][0].cached_tokens, 0);
    EXPECT_EQ(node.engine.stats().groups[0].cached_blocks, 0U);
  }
}

// A pool that is full of what is cached is as good as an empty one; the oldest goes.
TEST(PrefixCache, GivesRoomWhenItIsNeeded) {
  EngineHarness node(roomy(32, 16));
  for (std::uint64_t n = 1; n <= 40; ++n) {
    const message::Submit submit = submit_of(n, static_cast<std::int32_t>(20 + n * 7), 30);
    node.post(message::RunLocally{submit});
    node.run_until_idle();
    EXPECT_EQ(node.ids(submit.key), node.reference(submit));
  }
  EXPECT_GT(node.engine.stats().groups[0].cached_blocks, 10U);
  const message::Submit all = submit_of(99, 16 * 32, 1);
  node.post(message::RunLocally{all});
  node.run_until_idle();
  EXPECT_EQ(node.ids(all.key), node.reference(all));
  node.post(message::RunLocally{again(all, 100)});
  node.run_until_idle();
  EXPECT_EQ(node.ids(key_of(100)), node.reference(all));
}

// The block that would be copied from is the one that is needed: the hit ends before it.
TEST(PrefixCache, APartialHitNeverBlocksTheOnlyRequest) {
  EngineHarness node(roomy(128, 2));
  const message::Submit first = submit_of(1, 200, 20);  // both blocks, the second in part
  node.post(message::RunLocally{first});
  node.run_until_idle();
  const message::Submit second = again(first, 2);
  node.post(message::RunLocally{second});
  node.run_until_idle();
  EXPECT_EQ(node.ids(second.key), node.reference(first));
  EXPECT_EQ(node.tokens[second.key][0].cached_tokens, 128);
}

// What arrived by handoff is shared once it is complete, never before.
TEST(PrefixCache, AdoptedKvIsSharedOnceItIsThere) {
  EngineHarness prefill(roomy());
  EngineHarness decode(roomy());
  const message::Submit submit = submit_of(1, 128, 10);
  prefill.post(message::PrefillForHandoff{submit});
  decode.post(message::Reserve{submit});
  prefill.run_until_idle();
  decode.run_until_idle();
  const message::Submit before = again(submit, 2);
  decode.post(message::RunLocally{before});
  decode.run_until_idle();
  EXPECT_EQ(decode.tokens[before.key][0].cached_tokens, 0);
  const Prefilled& done = prefill.prefilled[submit.key];
  for (std::size_t group = 0; group < done.blocks.tables.size(); ++group) {
    for (std::size_t block = 0; block < done.blocks.tables[group].size(); ++block) {
      std::ranges::copy(done.blocks.tables[group][block].bytes,
                        decode.reserved[submit.key].blocks.tables[group][block].bytes.begin());
    }
  }
  decode.post(message::Adopt{submit.key, done.first, 1});
  prefill.post(message::Release{done.blocks.lease});
  prefill.run_until_idle();
  decode.run_until_idle();
  EXPECT_EQ(decode.ids(submit.key), decode.reference(submit));
  message::Submit after = submit_of(3, 20, 6);
  after.prompt.insert(after.prompt.begin(), submit.prompt.begin(), submit.prompt.end());
  decode.post(message::RunLocally{after});
  decode.run_until_idle();
  EXPECT_EQ(decode.ids(after.key), decode.reference(after));
  EXPECT_EQ(decode.tokens[after.key][0].cached_tokens, 128);
}

// What the engine told since it was asked to: names that are in the cache.
std::map<PrefixName, int> told(EngineHarness& node) {
  std::map<PrefixName, int> held;
  for (const message::PrefixChanges& changes : node.prefix_changes) {
    if (changes.restart) {
      held.clear();
    }
    for (const PrefixName name : changes.added) {
      ++held[name];
    }
    for (const PrefixName name : changes.removed) {
      --held[name];
    }
  }
  std::erase_if(held, [](const auto& entry) { return entry.second == 0; });
  return held;
}

std::vector<PrefixName> names_of(const message::Submit& submit, std::size_t tiles) {
  kv::TileHasher hasher("shared");
  kv::TileDigest digest = message::prefix_root(hasher, submit.cache_namespace);
  std::vector<PrefixName> names;
  for (std::size_t tile = 0; tile < tiles; ++tile) {
    digest = hasher.tile(digest, std::span(submit.prompt).subspan(tile * 32, 32));
    names.push_back(kv::prefix_name(digest));
  }
  return names;
}

// Who has the key knows what is cached here by names alone, from the time that it asks.
TEST(PrefixCache, TellsWhatItHolds) {
  EngineConfig config;
  config.cache_key = "shared";
  EngineHarness node(roomy(64, 8), config);
  const message::Submit first = submit_of(1, 200, 4);
  node.post(message::RunLocally{first});
  node.run_until_idle();
  EXPECT_TRUE(node.prefix_changes.empty()) << "nobody asked";
  node.post(message::WatchPrefixes{});
  node.run_until_idle();
  ASSERT_EQ(node.prefix_changes.size(), 1U);
  EXPECT_TRUE(node.prefix_changes[0].restart);
  const auto has_all = [&](const message::Submit& submit, std::size_t tiles) {
    const auto held = told(node);
    const auto names = names_of(submit, tiles);
    return std::all_of(names.begin(), names.end(),
                       [&](PrefixName name) { return held.contains(name); });
  };
  EXPECT_TRUE(has_all(first, 6));
  EXPECT_EQ(told(node).size(), 6U);

  message::Submit second = submit_of(2, 100, 1);
  second.cache_namespace.fill(7);
  node.post(message::RunLocally{second});
  node.run_until_idle();
  EXPECT_TRUE(has_all(second, 3));
  EXPECT_EQ(told(node).size(), 9U);
  const std::size_t events = node.prefix_changes.size();
  node.post(message::RunLocally{again(second, 3)});  // nothing new comes of it
  node.run_until_idle();
  EXPECT_EQ(node.prefix_changes.size(), events);

  const message::Submit large = submit_of(4, 8 * 64 - 1, 1);  // all blocks
  node.post(message::RunLocally{large});
  node.run_until_idle();
  EXPECT_FALSE(has_all(first, 1)) << "it was evicted";
  EXPECT_TRUE(has_all(large, 15));
  EXPECT_EQ(told(node).size(), 15U);
  node.post(message::WatchPrefixes{});  // again: all of it
  node.run_until_idle();
  EXPECT_TRUE(node.prefix_changes.back().restart);
  EXPECT_EQ(node.prefix_changes.back().added.size(), 15U);
}

}  // namespace
}  // namespace baton::engine
