// Two engines in one process: blocks lent by one are copied into blocks lent by the other, as a
// network would. Parity, leases, and failures in every state.
#include "baton/engine/engine_harness.h"

#include <gtest/gtest.h>

#include <cstring>

namespace baton::engine {
namespace {

using message::FinishReason;
using testing::FakeBackendOptions;

FakeBackendOptions pool(std::uint32_t blocks = 64, std::int32_t block_tokens = 32) {
  FakeBackendOptions options;
  options.groups = {{2, 2, 8, blocks}, {1, 1, 4, blocks}};
  options.block_tokens = block_tokens;
  options.end_tokens = {};
  return options;
}

// Tile by tile, so that the block sizes may differ. What the target has cached is not sent.
void copy_tiles(const BlockGeometry& from, const message::LeasedBlocks& source,
                const BlockGeometry& to, const message::Reserved& reserved) {
  const message::LeasedBlocks& target = reserved.blocks;
  for (std::size_t group = 0; group < source.tables.size(); ++group) {
    const kv::KvGroup& shape = from.layout.groups[group];
    for (std::int32_t tile = reserved.cached_tokens / kv::kTileTokens;
         tile < kv::KvLayout::tiles_for(reserved.kv_tokens); ++tile) {
      const auto place = [&](const BlockGeometry& side, const message::LeasedBlocks& blocks,
                             std::int32_t layer, std::int32_t head) {
        const std::int32_t per_block = side.layout.tiles_per_block();
        return blocks.tables[group][static_cast<std::size_t>(tile / per_block)].bytes.data() +
               side.layout.tile_offset(group, layer, head, tile % per_block);
      };
      for (std::int32_t layer = 0; layer < static_cast<std::int32_t>(shape.layers.size());
           ++layer) {
        for (std::int32_t head = 0; head < shape.kv_heads; ++head) {
          std::memcpy(place(to, target, layer, head), place(from, source, layer, head),
                      shape.tile_bytes());
        }
      }
    }
  }
}

struct Pair {
  explicit Pair(const FakeBackendOptions& p = pool(), const FakeBackendOptions& d = pool())
      : prefill(p), decode(d) {}

  void start(const message::Submit& submit) {
    prefill.post(message::PrefillForHandoff{submit});
    decode.post(message::Reserve{submit});
  }
  // Ships what is prefilled and reserved; returns how many sequences.
  int ship() {
    int shipped = 0;
    for (auto& [key, done] : prefill.prefilled) {
      if (done.first.empty()) {
        continue;
      }
      const auto held = decode.reserved.find(key);
      if (held == decode.reserved.end()) {
        continue;
      }
      const message::Reserved& reserved = held->second;
      if (done.first[0].finish == FinishReason::kNone) {
        EXPECT_EQ(done.kv_tokens, reserved.kv_tokens);
        copy_tiles(prefill.engine.probe_block_geometry(), done.blocks,
                   decode.engine.probe_block_geometry(), reserved);
        decode.post(message::Adopt{key, done.first, 12345});
        prefill.post(message::Release{done.blocks.lease});
      } else {
        decode.post(message::Release{reserved.blocks.lease});
      }
      decode.reserved.erase(held);
      ++shipped;
    }
    prefill.prefilled.clear();
    return shipped;
  }
  void run(int sequences) {
    for (int round = 0; round < 1000 && sequences > 0; ++round) {
      prefill.run_until_idle();
      decode.run_until_idle();
      sequences -= ship();
    }
    prefill.run_until_idle();
    decode.run_until_idle();
  }
  EngineHarness prefill;
  EngineHarness decode;
};

// The seed's parity test: prefill on one node, decode on another, the tokens of a single node.
TEST(Handoff, MatchesSingleNode) {
  for (const std::int32_t prompt : {1, 31, 32, 33, 200}) {
    for (const float temperature : {0.0F, 0.9F}) {
      for (const std::int32_t block_tokens : {32, 64}) {
        Pair pair(pool(64, 32), pool(64, block_tokens));
        message::Submit submit = submit_of(9, prompt, 25, temperature);
        submit.sampling.presence_penalty = 0.4F;
        pair.start(submit);
        pair.run(1);
        EXPECT_EQ(pair.decode.ids(submit.key), pair.decode.reference(submit)) << prompt;
        EXPECT_EQ(pair.prefill.ids(submit.key).size(), 1U);
        const message::Token& from_prefill = pair.prefill.tokens[submit.key][0];
        const message::Token& repeated = pair.decode.tokens[submit.key][0];
        EXPECT_EQ(repeated.token, from_prefill.token);
        EXPECT_EQ(repeated.logprob, from_prefill.logprob);
        EXPECT_EQ(repeated.kv_bytes, 12345U);
        EXPECT_EQ(pair.decode.engine.stats().prompt_tokens_computed, 0U);
        EXPECT_EQ(pair.prefill.engine.stats().tokens_generated, 1U);
        EXPECT_EQ(pair.decode.engine.stats().tokens_generated, 24U);
        EXPECT_EQ(pair.prefill.engine.stats().ended_as(EndReason::kHandedOff), 1U);
      }
    }
  }
}

TEST(Handoff, ManyAtOnceBesideLocalWork) {
  Pair pair(pool(256), pool(256));
  std::vector<message::Submit> submits;
  for (std::uint64_t n = 0; n < 10; ++n) {
    submits.push_back(submit_of(n, static_cast<std::int32_t>(5 + 29 * n), 15, n % 2 ? 0.8F : 0.0F));
    pair.start(submits.back());
  }
  const message::Submit on_prefill = submit_of(50, 60, 30);
  const message::Submit on_decode = submit_of(51, 60, 30);
  pair.prefill.post(message::RunLocally{on_prefill});
  pair.decode.post(message::RunLocally{on_decode});
  pair.run(10);
  for (const message::Submit& submit : submits) {
    EXPECT_EQ(pair.decode.ids(submit.key), pair.decode.reference(submit));
  }
  EXPECT_EQ(pair.prefill.ids(on_prefill.key), pair.prefill.reference(on_prefill));
  EXPECT_EQ(pair.decode.ids(on_decode.key), pair.decode.reference(on_decode));
}

// Wrong KV must show: one V row zeroed on the way gives other tokens. (So no test here can pass by
// a silent recompute.) The harness of the decode side counts the bad rows, so it is not used.
TEST(Handoff, PoisonedKvShows) {
  EngineHarness prefill(pool());
  const message::Submit submit = submit_of(9, 40, 25);
  prefill.post(message::PrefillForHandoff{submit});
  prefill.run_until_idle();
  const Prefilled& done = prefill.prefilled[submit.key];

  const ManualClock clock;
  EventQueue events(10'000);
  testing::FakeBackend backend(pool());
  BatchScheduler decode(backend, clock, {}, events);
  ASSERT_TRUE(decode.reserve_for_handoff(submit));
  decode.run_once();
  auto event = events.drain();
  const auto& reserved = std::get<message::Reserved>(event.at(0));
  copy_tiles(prefill.engine.probe_block_geometry(), done.blocks, decode.probe_block_geometry(),
             reserved);
  const kv::KvGroup shape = decode.probe_block_geometry().layout.groups[0];
  std::memset(reserved.blocks.tables[0][0].bytes.data() + shape.plane_tile_bytes(), 0,
              shape.plane_tile_bytes());
  ASSERT_TRUE(decode.ingest_handoff_as_active({submit.key, done.first, 0}));
  decode.decode_handoff_until_idle();
  std::vector<TokenId> ids;
  for (message::EngineEvent& later : events.drain()) {
    for (const message::Token& token : std::get<message::StepTokens>(later).tokens) {
      ids.push_back(token.token);
    }
  }
  EXPECT_EQ(ids.size(), 25U);
  EXPECT_NE(ids, prefill.reference(submit));
  EXPECT_GT(backend.bad_rows_read(), 0U);
  decode.check_integrity();
  prefill.post(message::Release{done.blocks.lease});
  prefill.run_until_idle();
}

// Ending on the first token: no handoff (field reports B01 and B02).
TEST(Handoff, EndingOnTheFirstToken) {
  const message::Submit plain = submit_of(4, 40, 10);
  const TokenId first =
      testing::FakeBackend::reference(pool(), plain.prompt, plain.sampling, Choice{0}, 1)[0];
  for (const int how : {0, 1, 2}) {
    FakeBackendOptions options = pool();
    message::Submit submit = plain;
    if (how == 0) {
      options.end_tokens = {first};
    } else if (how == 1) {
      submit.stop_token_ids = {first};
    } else {
      submit.max_tokens = 1;
    }
    Pair pair(options, options);
    pair.start(submit);
    pair.prefill.run_until_idle();
    pair.decode.run_until_idle();
    const Prefilled& done = pair.prefill.prefilled[submit.key];
    EXPECT_EQ(done.first[0].finish, how == 2 ? FinishReason::kLength : FinishReason::kStop);
    EXPECT_TRUE(done.blocks.tables.empty());  // nobody had claimed them
    EXPECT_EQ(pair.prefill.engine.stats().leases, 0U);
    pair.run(1);
    EXPECT_EQ(pair.decode.engine.stats().step_count, 0U);
    EXPECT_EQ(pair.decode.engine.stats().ended_as(EndReason::kReleased), 1U);
  }
}

// min_tokens bars the end token on the prefill leg too.
TEST(Handoff, MinTokensHoldsOnThePrefillLeg) {
  const message::Submit plain = submit_of(4, 40, 10);
  FakeBackendOptions options = pool();
  options.end_tokens = {
      testing::FakeBackend::reference(pool(), plain.prompt, plain.sampling, Choice{0}, 1)[0]};
  message::Submit submit = plain;
  submit.min_tokens = 5;
  EngineHarness single(options);
  single.post(message::RunLocally{submit});
  single.run_until_idle();
  Pair pair(options, options);
  pair.start(submit);
  pair.run(1);
  EXPECT_GE(pair.decode.ids(submit.key).size(), 5U);
  EXPECT_EQ(pair.decode.ids(submit.key), single.ids(submit.key));
}

// Stop rules hold for a token that arrives by handoff, even if its sender said nothing.
TEST(Handoff, StopRulesHoldForAnAdoptedToken) {
  EngineHarness decode(pool());
  message::Submit submit = submit_of(4, 40, 10);
  submit.stop_token_ids = {77};
  decode.post(message::Reserve{submit});
  decode.run_until_idle();
  message::Token first;
  first.key = submit.key;
  first.token = 77;
  // Who hears of the end finds it in the gauges.
  std::uint32_t held = 99;
  decode.events.set_on_ready(
      [&] { held = decode.engine.stats().running + decode.engine.stats().reserved; });
  decode.post(message::Adopt{submit.key, {first}, 0});
  decode.run_until_idle();
  EXPECT_EQ(decode.tokens[submit.key].back().finish, FinishReason::kStop);
  EXPECT_EQ(decode.engine.stats().step_count, 0U);
  EXPECT_EQ(held, 0U);
}

TEST(Handoff, TokensThatDoNotFollowEndTheSequence) {
  for (const int how : {0, 1, 2, 3}) {
    EngineHarness decode(pool());
    const message::Submit submit = submit_of(4, 40, 10);
    decode.post(message::Reserve{submit});
    decode.run_until_idle();
    message::Token first;
    first.index = how == 0 ? 1 : 0;
    first.token = how == 1 ? 257 : how == 2 ? -1 : 5;
    message::Adopt adopt{submit.key, {first}, 0};
    if (how == 3) {
      adopt.first.clear();
    }
    const Status status = decode.engine.ingest_handoff_as_active(adopt);
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, ErrorCode::kProtocol);
    decode.run_until_idle();
    EXPECT_EQ(decode.ended[submit.key].reason, FinishReason::kError);
    EXPECT_EQ(decode.engine.ingest_handoff_as_active(adopt).error().code, ErrorCode::kNotFound);
  }
}

// Aborting in each state of a handoff; blocks that are lent stay until the lease ends.
TEST(Leases, OutliveAnAbort) {
  Pair pair;
  const message::Submit submit = submit_of(4, 70, 10);
  pair.start(submit);
  pair.prefill.run_until_idle();
  pair.decode.run_until_idle();
  pair.prefill.post(message::Abort{submit.key, {}});
  pair.decode.post(message::Abort{submit.key, {}});
  pair.prefill.run_until_idle();
  pair.decode.run_until_idle();
  EXPECT_TRUE(pair.prefill.ended.contains(submit.key));
  EXPECT_TRUE(pair.decode.ended.contains(submit.key));
  for (EngineHarness* side : {&pair.prefill, &pair.decode}) {
    EXPECT_EQ(side->engine.stats().leases, 1U);
    EXPECT_EQ(side->free_blocks(), 64U - 3U);  // 70 tokens
    side->engine.check_integrity();
  }
  const message::LeasedBlocks& lent = pair.decode.reserved[submit.key].blocks;
  std::memset(lent.tables[0][2].bytes.data(), 0x11, lent.tables[0][2].bytes.size());  // in flight
  pair.decode.post(message::Adopt{submit.key, pair.prefill.prefilled[submit.key].first, 0});
  pair.decode.run_until_idle();  // unknown by now: dropped, but the lease ends with it
  EXPECT_EQ(pair.decode.engine.stats().leases, 0U);
  EXPECT_EQ(pair.decode.engine.stats().groups[0].used_blocks, 0U);
  pair.prefill.post(message::Release{pair.prefill.prefilled[submit.key].blocks.lease});
  pair.decode.post(message::Release{lent.lease});
  pair.decode.post(message::Release{lent.lease});  // idempotent
  pair.prefill.run_until_idle();
  pair.decode.run_until_idle();
}

TEST(Leases, AReleasedReservationIsForgotten) {
  EngineHarness decode(pool());
  const message::Submit submit = submit_of(4, 70, 10);
  decode.post(message::Reserve{submit});
  decode.run_until_idle();
  EXPECT_EQ(decode.reserved[submit.key].kv_tokens, 70);
  EXPECT_EQ(decode.engine.stats().reserved, 1U);
  EXPECT_EQ(decode.engine.stats().groups[0].reserved_blocks, 3U);
  decode.post(message::Release{decode.reserved[submit.key].blocks.lease});
  decode.run_until_idle();
  EXPECT_TRUE(decode.ended.empty());
  EXPECT_EQ(decode.engine.stats().ended_as(EndReason::kReleased), 1U);
}

TEST(Leases, PinBlocksWhileOthersComeAndGo) {
  EngineHarness prefill(pool(8));
  const message::Submit submit = submit_of(4, 96, 10);
  prefill.post(message::PrefillForHandoff{submit});
  prefill.run_until_idle();
  const Prefilled& done = prefill.prefilled[submit.key];
  std::vector<std::vector<std::byte>> before;
  for (const message::LeasedBlock& block : done.blocks.tables[0]) {
    before.emplace_back(block.bytes.begin(), block.bytes.end());
  }
  for (std::uint64_t n = 20; n < 26; ++n) {
    prefill.post(message::RunLocally{submit_of(n, 60, 20)});
  }
  prefill.run_until_idle();
  for (std::size_t i = 0; i < before.size(); ++i) {
    const auto bytes = done.blocks.tables[0][i].bytes;
    EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), before[i].begin()));
  }
  prefill.post(message::Release{done.blocks.lease});
  prefill.run_until_idle();
}

// Reservations wait for room in order instead of failing, and give up at the queue deadline.
TEST(Reservations, WaitForRoomThenExpire) {
  EngineConfig config;
  config.queue_deadline_ms = 1000;
  EngineHarness decode(pool(8), config);
  for (std::uint64_t n = 1; n <= 3; ++n) {
    decode.post(message::Reserve{submit_of(n, 70, 30)});  // 3 of 8 blocks each, half is 4
  }
  decode.run_until_idle();
  EXPECT_EQ(decode.reserved.size(), 1U);
  EXPECT_EQ(decode.engine.stats().waiting, 2U);
  decode.post(message::Release{decode.reserved[key_of(1)].blocks.lease});
  decode.run_until_idle();
  EXPECT_TRUE(decode.reserved.contains(key_of(2)));
  EXPECT_FALSE(decode.reserved.contains(key_of(3)));
  decode.clock.advance(std::chrono::milliseconds(1000));
  decode.run_until_idle();
  EXPECT_TRUE(decode.refused[key_of(3)].later);
  decode.post(message::Abort{key_of(2), {}});
  decode.post(message::Release{decode.reserved[key_of(2)].blocks.lease});
  decode.run_until_idle();
}

TEST(Replay, OverTheSplitContinues) {
  const message::Submit submit = submit_of(8, 50, 20, 0.7F);
  const std::vector<TokenId> whole =
      testing::FakeBackend::reference(pool(), submit.prompt, submit.sampling, Choice{0}, 20);
  Pair pair;
  message::Submit replay = submit;
  replay.key.epoch = Epoch{1};
  replay.emitted.assign(whole.begin(), whole.begin() + 6);
  pair.start(replay);
  pair.run(1);
  const std::vector<TokenId> rest = pair.decode.ids(replay.key);
  EXPECT_EQ(rest, std::vector<TokenId>(whole.begin() + 6, whole.end()));
  EXPECT_EQ(pair.decode.tokens[replay.key][0].index, 6);
}

// The call from raw parts: own response channel and cancel flag.
TEST(TextRequests, AnswerOnTheirOwnChannel) {
  EngineHarness prefill(pool());
  EventQueue response(100);
  auto cancel = std::make_shared<std::atomic<bool>>(false);
  TextRequest request{key_of(1), prompt_of(1, 40), submit_of(1, 1, 1).sampling,
                      10,        &response,        cancel};
  TextRequest empty = request;
  empty.prompt.clear();
  EXPECT_EQ(prefill.engine.prefill_text_request_for_handoff(empty).error().code,
            ErrorCode::kInvalidArgument);
  ASSERT_TRUE(prefill.engine.prefill_text_request_for_handoff(request));
  prefill.run_until_idle();
  EXPECT_TRUE(prefill.tokens.empty());
  const auto answered = response.drain();
  ASSERT_EQ(answered.size(), 3U);
  const auto& lent = std::get<message::PrefillProgress>(answered[0]).blocks;
  EXPECT_TRUE(lent.claim->claim());
  EXPECT_TRUE(std::holds_alternative<message::StepTokens>(answered[1]));
  EXPECT_TRUE(std::holds_alternative<message::PrefillDone>(answered[2]));
  cancel->store(true);
  prefill.run_until_idle();
  const auto after = response.drain();
  ASSERT_EQ(after.size(), 1U);
  EXPECT_EQ(std::get<message::Finished>(after[0]).reason, FinishReason::kAborted);
  prefill.engine.release(lent.lease);
  prefill.run_until_idle();
}

TEST(Geometry, IsWhatThePoolIs) {
  EngineHarness node(pool(64, 64));
  const BlockGeometry geometry = node.engine.probe_block_geometry();
  EXPECT_EQ(geometry.layout.block_tokens, 64);
  EXPECT_EQ(geometry.group_blocks, (std::vector<std::uint32_t>{64, 64}));
  EXPECT_EQ(geometry.pool_tokens, 64 * 64);
  EXPECT_EQ(geometry.block_bytes[0], geometry.layout.block_bytes(0));
  EXPECT_EQ(geometry.max_context_tokens, 4096);
}

}  // namespace
}  // namespace baton::engine
