// Blocks that are lent while their prefill goes on, given back in parts, and reservations of which
// some tiles are here already.
#include "baton/engine/engine_harness.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

namespace baton::engine {
namespace {

using testing::FakeBackendOptions;

FakeBackendOptions pool(std::uint32_t blocks = 64, std::int32_t block_tokens = 32) {
  FakeBackendOptions options;
  options.groups = {{2, 2, 8, blocks}, {1, 1, 4, blocks}};
  options.block_tokens = block_tokens;
  options.max_step_tokens = 96;
  options.end_tokens = {};
  return options;
}

EngineConfig few_sequences() {
  EngineConfig config;
  config.max_num_seqs = 8;
  return config;
}

message::Submit with_prompt(std::uint64_t n, const message::Submit& other) {
  message::Submit submit = submit_of(n, 1, other.max_tokens);
  submit.prompt = other.prompt;
  submit.sampling = other.sampling;
  return submit;
}

// As a transport does: the tiles [first, end) of all groups.
void send_tiles(const EngineHarness& from, const message::LeasedBlocks& source,
                const EngineHarness& to, const message::LeasedBlocks& target, std::int32_t first,
                std::int32_t end) {
  const kv::KvLayout& from_layout = from.backend.info().layout;
  const kv::KvLayout& to_layout = to.backend.info().layout;
  for (std::size_t group = 0; group < source.tables.size(); ++group) {
    const kv::KvGroup& shape = from_layout.groups[group];
    for (std::int32_t tile = first; tile < end; ++tile) {
      const auto place = [&](const kv::KvLayout& layout, const message::LeasedBlocks& blocks,
                             std::int32_t layer, std::int32_t head) {
        const std::int32_t per_block = layout.tiles_per_block();
        return blocks.tables[group][static_cast<std::size_t>(tile / per_block)].bytes.data() +
               layout.tile_offset(group, layer, head, tile % per_block);
      };
      for (std::int32_t layer = 0; layer < static_cast<std::int32_t>(shape.layers.size());
           ++layer) {
        for (std::int32_t head = 0; head < shape.kv_heads; ++head) {
          std::memcpy(place(to_layout, target, layer, head),
                      place(from_layout, source, layer, head), shape.tile_bytes());
        }
      }
    }
  }
}

// Each chunk is announced when its rows are final: what is sent then is what a cold node decodes
// from.
TEST(Progress, RowsAreFinalWhenTheyAreAnnounced) {
  EngineHarness prefill(pool(), few_sequences());
  EngineHarness decode(pool(64, 64), few_sequences());
  const message::Submit submit = submit_of(3, 300, 12, 0.7F);
  prefill.post(message::PrefillForHandoff{submit});
  decode.post(message::Reserve{submit});
  decode.run_until_idle();
  const message::Reserved& reserved = decode.reserved[submit.key];
  std::int32_t sent = 0;
  int chunks = 0;
  while (prefill.engine.run_once()) {
    prefill.take_events();
    const Prefilled& known = prefill.prefilled[submit.key];
    const std::int32_t end = known.first.empty() ? known.computed_tokens.back() / kv::kTileTokens
                                                 : kv::KvLayout::tiles_for(300);
    EXPECT_GT(end, sent) << "a chunk without news";
    send_tiles(prefill, known.blocks, decode, reserved.blocks, sent, end);
    sent = end;
    ++chunks;
  }
  EXPECT_GE(chunks, 4);
  const Prefilled& done = prefill.prefilled[submit.key];
  EXPECT_EQ(done.computed_tokens.front(), 0);
  EXPECT_EQ(done.kv_tokens, 300);
  decode.post(message::Adopt{submit.key, done.first, 1});
  prefill.post(message::Release{done.blocks.lease});
  prefill.run_until_idle();
  decode.run_until_idle();
  EXPECT_EQ(decode.ids(submit.key), decode.reference(submit));
}

TEST(Progress, BeginsWithWhatIsCached) {
  EngineHarness prefill(pool(), few_sequences());
  const message::Submit first = submit_of(3, 300, 12);
  prefill.post(message::RunLocally{first});
  prefill.run_until_idle();
  const message::Submit again = with_prompt(4, first);
  prefill.post(message::PrefillForHandoff{again});
  prefill.run_until_idle();
  const Prefilled& done = prefill.prefilled[again.key];
  EXPECT_EQ(done.computed_tokens, std::vector<std::int32_t>{288});
  EXPECT_EQ(done.first[0].cached_tokens, 288);
  prefill.post(message::Release{done.blocks.lease});
  prefill.run_until_idle();
}

// What the receiver has is free, or cached, at once when the prefill has ended: not only when all
// is acked.
TEST(Progress, BlocksAreFreeAsTheyAreReleased) {
  for (const bool prefix_cache : {true, false}) {
    EngineConfig config = few_sequences();
    config.prefix_cache = prefix_cache;
    EngineHarness node(pool(12), config);
    const message::Submit submit = submit_of(3, 320, 12);  // 10 of 12 blocks
    node.post(message::PrefillForHandoff{submit});
    node.engine.run_once();
    node.take_events();
    const message::LeaseId lease = node.prefilled[submit.key].blocks.lease;
    // While it computes it needs them itself.
    node.post(message::ReleaseBlocks{lease, {{0, 0, 1}, {1, 0, 1}}});
    node.engine.run_once();
    EXPECT_EQ(node.free_blocks(), 2U);
    node.run_until_idle();
    EXPECT_EQ(node.free_blocks(), 3U);  // the one of before
    node.post(message::ReleaseBlocks{lease, {{0, 0, 8}, {1, 0, 8}}});
    node.post(message::ReleaseBlocks{lease, {{0, 7, 1}, {0, 9, 1000}, {7, 0, 1}}});  // wild ones
    node.post(message::ReleaseBlocks{{12345}, {{0, 0, 1}}});
    node.run_until_idle();
    node.engine.check_integrity();
    EXPECT_EQ(node.engine.stats().leases, 1U);
    EXPECT_EQ(node.engine.stats().groups[0].used_blocks, 1U);
    EXPECT_EQ(node.engine.stats().groups[1].used_blocks, 2U);
    // They serve another one now.
    const message::Submit other = submit_of(4, 200, 40);
    node.post(message::RunLocally{other});
    node.run_until_idle();
    EXPECT_EQ(node.ids(other.key), node.reference(other));
    node.post(message::Release{lease});
    node.run_until_idle();
  }
}

// Told only to those who asked, only of the last chunk, and behind the blocks that it fills.
TEST(Progress, LayersOfTheLastChunk) {
  for (const bool wanted : {false, true}) {
    FakeBackendOptions options = pool(40);
    options.groups = {{12, 2, 8, 40, 0}, {4, 2, 8, 40, 64}};
    options.max_step_tokens = 64;
    EngineHarness node(options, few_sequences());
    node.wants_layers = wanted;
    const message::Submit submit = submit_of(3, 150, 12);  // chunks of 64, 64, 22
    node.post(message::PrefillForHandoff{submit});
    while (node.prefilled[submit.key].first.empty()) {  // claims between two steps
      node.engine.run_once();
      node.take_events();
    }
    const Prefilled& done = node.prefilled[submit.key];
    using Layers = std::vector<std::vector<std::uint32_t>>;
    EXPECT_EQ(done.layers,
              wanted ? (Layers{{2, 0}, {4, 0}, {6, 0}, {8, 0}, {10, 0}, {12, 0}, {12, 2}, {12, 4}})
                     : Layers{});
    EXPECT_EQ(done.computed_tokens.back(), 128);
    EXPECT_EQ(done.first[0].token, node.reference(submit)[0]);
    node.post(message::Release{done.blocks.lease});
    node.run_until_idle();
  }
}

// The only chunk of a prompt is under way when its blocks are claimed.
TEST(Progress, LayersAreToldFromTheClaimOn) {
  FakeBackendOptions options = pool(40);
  options.groups = {{12, 2, 8, 40, 0}};
  EngineHarness node(options, few_sequences());
  node.wants_layers = true;
  node.backend.set_on_layer([&](const backend::SequencePlan&, const backend::LayerDone& done) {
    if (done.layer == 4) {
      node.take_events();
    }
  });
  const message::Submit submit = submit_of(3, 22, 12);
  node.post(message::PrefillForHandoff{submit});
  node.run_until_idle();
  const Prefilled& done = node.prefilled[submit.key];
  EXPECT_EQ(done.layers, (std::vector<std::vector<std::uint32_t>>{{6}, {8}, {10}, {12}}));
  node.post(message::Release{done.blocks.lease});
  node.run_until_idle();
}

// A prefill that nobody reads from yet gives its blocks back to those before it; one that is being
// sent keeps them.
TEST(Progress, OnlyUnclaimedBlocksAreTakenBack) {
  for (const bool claimed : {false, true}) {
    FakeBackendOptions options = pool(21);
    options.max_step_tokens = 48;  // a tile at a time
    EngineHarness node(options, few_sequences());
    for (std::uint64_t n = 1; n <= 3; ++n) {
      node.post(message::RunLocally{submit_of(n, 40, 120)});
    }
    while (node.engine.stats().tokens_generated < 159) {  // each soon needs its fourth block
      node.engine.run_once();
    }
    node.take_events();
    const message::Submit handed = submit_of(4, 330, 10);  // 11 blocks of 12
    node.post(message::PrefillForHandoff{handed});
    node.engine.run_once();
    auto events = node.events.drain();
    const auto lent = std::find_if(events.begin(), events.end(), [](const auto& event) {
      return std::holds_alternative<message::PrefillProgress>(event);
    });
    ASSERT_NE(lent, events.end());
    const message::LeasedBlocks blocks = std::get<message::PrefillProgress>(*lent).blocks;
    for (message::EngineEvent& event : events) {
      if (auto* step = std::get_if<message::StepTokens>(&event)) {
        for (message::Token& token : step->tokens) {
          node.tokens[token.key].push_back(std::move(token));
        }
      }
    }
    if (claimed) {
      ASSERT_TRUE(blocks.claim->claim());
    }
    while (node.engine.stats().preemptions == 0 && node.engine.run_once()) {
    }
    EXPECT_EQ(blocks.claim->claim(), claimed);
    node.run_until_idle();
    const Prefilled& done = node.prefilled[handed.key];
    EXPECT_FALSE(done.first.empty());
    EXPECT_EQ(done.blocks.tables.empty(), claimed);  // else it was lent others
    node.post(message::Release{claimed ? blocks.lease : done.blocks.lease});
    node.run_until_idle();
    for (std::uint64_t n = 1; n <= 3; ++n) {
      EXPECT_EQ(node.ids(key_of(n)), node.reference(submit_of(n, 40, 120)));
    }
    EXPECT_EQ(done.first[0].token, node.reference(handed)[0]);
  }
}

// Ends of every kind give unclaimed blocks back without a word of the borrower.
TEST(Progress, AnAbortFreesWhatNobodyClaimed) {
  EngineHarness node(pool(), few_sequences());
  const message::Submit submit = submit_of(3, 300, 12);
  node.post(message::PrefillForHandoff{submit});
  node.engine.run_once();
  EXPECT_EQ(node.engine.stats().leases, 1U);
  node.post(message::Abort{submit.key, {}});
  node.engine.run_once();
  EXPECT_EQ(node.engine.stats().leases, 0U);
  EXPECT_EQ(node.free_blocks(), 64U);
  node.take_events();
  EXPECT_TRUE(node.prefilled[submit.key].blocks.tables.empty());  // the claim failed
}

// A reservation shares what is here, and only the rest is written.
TEST(PartialReservations, ShareWhatIsCached) {
  for (const std::int32_t block_tokens : {32, 64, 128}) {
    for (const std::int32_t known : {20, 64, 150, 288, 320}) {
      EngineHarness prefill(pool(), few_sequences());
      EngineHarness decode(pool(64, block_tokens), few_sequences());
      const message::Submit submit = submit_of(3, 320, 12, 0.7F);
      message::Submit before = submit_of(2, 1, 4);
      before.prompt.assign(submit.prompt.begin(), submit.prompt.begin() + known);
      decode.post(message::RunLocally{before});
      decode.run_until_idle();
      prefill.post(message::PrefillForHandoff{submit});
      decode.post(message::Reserve{submit});
      prefill.run_until_idle();
      decode.run_until_idle();
      const message::Reserved& reserved = decode.reserved[submit.key];
      // At least the last token's tile comes over.
      EXPECT_EQ(reserved.cached_tokens, std::min(known, 319) / 32 * 32);
      const GroupGauges& gauges = decode.engine.stats().groups[0];
      EXPECT_LE(gauges.reserved_blocks.load(), gauges.used_blocks.load());
      const Prefilled& done = prefill.prefilled[submit.key];
      send_tiles(prefill, done.blocks, decode, reserved.blocks, reserved.cached_tokens / 32, 10);
      decode.post(message::Adopt{submit.key, done.first, 1});
      prefill.post(message::Release{done.blocks.lease});
      prefill.run_until_idle();
      decode.run_until_idle();
      EXPECT_EQ(decode.ids(submit.key), decode.reference(submit)) << block_tokens << ' ' << known;
      EXPECT_EQ(decode.engine.stats().prompt_tokens_cached, 0U);  // it computed none of it
      EXPECT_EQ(decode.tokens[submit.key].back().cached_tokens, 0);
    }
  }
}

// Half of a handoff came, then it failed: the next one needs only the other half.
TEST(PartialReservations, WhatArrivedOutlivesAFailedHandoff) {
  for (const std::int32_t block_tokens : {32, 128}) {
    EngineHarness prefill(pool(), few_sequences());
    EngineHarness decode(pool(64, block_tokens), few_sequences());
    const message::Submit submit = submit_of(3, 320, 12, 0.7F);
    prefill.post(message::PrefillForHandoff{submit});
    decode.post(message::Reserve{submit});
    prefill.run_until_idle();
    decode.run_until_idle();
    const Prefilled& done = prefill.prefilled[submit.key];
    const message::LeasedBlocks half = decode.reserved[submit.key].blocks;
    send_tiles(prefill, done.blocks, decode, half, 0, 3);
    decode.post(message::KvArrived{submit.key, 96});
    decode.run_until_idle();
    send_tiles(prefill, done.blocks, decode, half, 3, 5);
    decode.post(message::KvArrived{submit.key, 160});
    decode.post(message::KvArrived{key_of(99), 160});  // unknown
    decode.post(message::Release{half.lease});
    decode.run_until_idle();
    EXPECT_EQ(decode.engine.stats().ended_as(EndReason::kReleased), 1U);

    message::Submit retry = submit;
    retry.key.epoch = Epoch{1};
    decode.post(message::Reserve{retry});
    decode.run_until_idle();
    const message::Reserved& reserved = decode.reserved[retry.key];
    EXPECT_EQ(reserved.cached_tokens, 160) << block_tokens;
    send_tiles(prefill, done.blocks, decode, reserved.blocks, 5, 10);
    std::vector<message::Token> first = done.first;
    first[0].key = retry.key;
    decode.post(message::Adopt{retry.key, first, 1});
    prefill.post(message::Release{done.blocks.lease});
    prefill.run_until_idle();
    decode.run_until_idle();
    EXPECT_EQ(decode.ids(retry.key), decode.reference(submit));
  }
}

}  // namespace
}  // namespace baton::engine
