// Test only: an engine on the fake backend and a clock that stands still, with its events
// collected, and an audit of pool and counters at the end of every test.
#pragma once

#include "baton/engine/batch_scheduler.h"

#include <gtest/gtest.h>

#include "tests/support/fake_backend.h"
#include <algorithm>
#include <map>
#include <memory>
#include <utility>
#include <variant>
#include <vector>

namespace baton::engine {

inline SequenceKey key_of(std::uint64_t n, std::uint32_t choice = 0, std::uint32_t epoch = 0) {
  return {RequestId{7, n}, Choice{choice}, Epoch{epoch}};
}

// A prompt of that length, another for each n.
inline std::vector<TokenId> prompt_of(std::uint64_t n, std::int32_t tokens,
                                      std::int32_t vocabulary = 257) {
  std::vector<TokenId> prompt;
  for (std::int32_t i = 0; i < tokens; ++i) {
    const std::uint64_t mixed = (n * 1000003 + static_cast<std::uint64_t>(i)) * 2654435761U;
    prompt.push_back(static_cast<TokenId>((mixed >> 16) % static_cast<std::uint64_t>(vocabulary)));
  }
  return prompt;
}

inline message::Submit submit_of(std::uint64_t n, std::int32_t prompt_tokens,
                                 std::int32_t max_tokens, float temperature = 0.0F) {
  message::Submit submit;
  submit.key = key_of(n);
  submit.prompt = prompt_of(n, prompt_tokens);
  submit.max_tokens = max_tokens;
  submit.sampling.temperature = temperature;
  submit.sampling.seed = 1000 + n;
  return submit;
}

// What the events of a prefill for handoff said.
struct Prefilled {
  message::LeasedBlocks blocks;                    // without tables: none could be claimed
  std::vector<std::int32_t> computed_tokens;       // of each PrefillProgress
  std::vector<std::vector<std::uint32_t>> layers;  // of those that tell of layers
  std::vector<message::Token> first;               // once it is done
  std::int32_t kv_tokens = 0;
};

class EngineHarness {
 public:
  explicit EngineHarness(const testing::FakeBackendOptions& options = {},
                         const EngineConfig& config = {})
      : options_(options),
        events(1'000'000),
        backend(options),
        engine(backend, clock, config, events) {}

  ~EngineHarness() {
    take_events();
    engine.check_integrity();
    EXPECT_EQ(backend.bad_rows_read(), 0U);
    const EngineStats& stats = engine.stats();
    std::uint64_t endings = 0;
    for (const auto& count : stats.ended) {
      endings += count.load();
    }
    EXPECT_EQ(endings, stats.accepted.load()) << "every accepted sequence ends in one way";
    EXPECT_TRUE(engine.idle());
    for (std::size_t group = 0; group < stats.group_count; ++group) {
      EXPECT_EQ(stats.groups[group].free_blocks.load() + stats.groups[group].cached_blocks.load(),
                stats.groups[group].total_blocks.load());
      EXPECT_EQ(stats.groups[group].used_blocks.load(), 0U);
    }
    EXPECT_EQ(stats.running + stats.waiting + stats.reserved + stats.handing_off, 0U);
  }
  EngineHarness(const EngineHarness&) = delete;
  EngineHarness& operator=(const EngineHarness&) = delete;

  void post(message::EngineCommand command) { ASSERT_TRUE(engine.post(std::move(command))); }

  // Steps until nothing runs; the bound catches an engine that never stops.
  void run_until_idle() {
    for (int step = 0; step < 20'000; ++step) {
      if (!engine.run_once()) {
        take_events();
        return;
      }
    }
    FAIL() << "still busy after 20,000 steps";
  }

  void take_events() {
    for (message::EngineEvent& event : events.drain()) {
      if (auto* step = std::get_if<message::StepTokens>(&event)) {
        for (message::Token& token : step->tokens) {
          EXPECT_FALSE(finished(token.key)) << "a token after the end";
          std::vector<message::Token>& seen = tokens[token.key];
          EXPECT_TRUE(seen.empty() || token.index == seen.back().index + 1);
          seen.push_back(std::move(token));
        }
      } else if (auto* progress = std::get_if<message::PrefillProgress>(&event)) {
        take_progress(std::move(*progress));
      } else if (auto* done = std::get_if<message::PrefillDone>(&event)) {
        EXPECT_TRUE(tokens.contains(done->key)) << "its token comes first";
        Prefilled& known = prefilled[done->key];
        EXPECT_TRUE(known.first.empty()) << "done twice";
        known.first = std::move(done->first);
        known.kv_tokens = done->kv_tokens;
      } else if (auto* held = std::get_if<message::Reserved>(&event)) {
        reserved.emplace(held->key, std::move(*held));
      } else if (auto* no = std::get_if<message::Refused>(&event)) {
        refused.emplace(no->key, std::move(*no));
      } else if (auto* end = std::get_if<message::Finished>(&event)) {
        EXPECT_TRUE(ended.emplace(end->key, std::move(*end)).second) << "ended twice";
      } else if (auto* changes = std::get_if<message::PrefixChanges>(&event)) {
        prefix_changes.push_back(std::move(*changes));
      } else {
        ++drained;
      }
    }
  }

  // As a prefill node whose grants are there always (unless `claims` is off): claims what it gets.
  void take_progress(message::PrefillProgress&& progress) {
    Prefilled& known = prefilled[progress.key];
    EXPECT_TRUE(known.first.empty()) << "progress after the end";
    if (claims && !progress.blocks.tables.empty() && progress.blocks.claim->claim()) {
      known.blocks = std::move(progress.blocks);
      if (wants_layers) {
        known.blocks.claim->want_layers();
      }
    }
    if (!progress.layers.empty()) {
      known.layers.push_back(progress.layers);
    }
    known.computed_tokens.push_back(progress.computed_tokens);
  }

  [[nodiscard]] bool finished(const SequenceKey& key) const {
    const auto found = tokens.find(key);
    return ended.contains(key) ||
           (found != tokens.end() && found->second.back().finish != message::FinishReason::kNone);
  }
  [[nodiscard]] std::vector<TokenId> ids(const SequenceKey& key) const {
    std::vector<TokenId> result;
    if (const auto found = tokens.find(key); found != tokens.end()) {
      for (const message::Token& token : found->second) {
        result.push_back(token.token);
      }
    }
    return result;
  }
  [[nodiscard]] std::vector<TokenId> reference(const message::Submit& submit) const {
    return testing::FakeBackend::reference(options_, submit.prompt, submit.sampling,
                                           submit.key.choice, submit.max_tokens);
  }
  // Free, or cached and nobody's.
  [[nodiscard]] std::uint32_t free_blocks() const {
    const GroupGauges& group = engine.stats().groups[0];
    return group.free_blocks.load() + group.cached_blocks.load();
  }

 private:
  testing::FakeBackendOptions options_;

 public:
  ManualClock clock;
  EventQueue events;
  testing::FakeBackend backend;
  BatchScheduler engine;
  std::map<SequenceKey, std::vector<message::Token>> tokens;
  std::map<SequenceKey, Prefilled> prefilled;
  std::map<SequenceKey, message::Reserved> reserved;
  std::map<SequenceKey, message::Refused> refused;
  std::map<SequenceKey, message::Finished> ended;
  std::vector<message::PrefixChanges> prefix_changes;
  int drained = 0;
  bool claims = true;
  bool wants_layers = false;
};

}  // namespace baton::engine
