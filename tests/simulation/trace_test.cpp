// How many tokens that prompts share a routing policy finds in the caches of two prefill and two
// decode nodes: a conversation trace on virtual time, beside one cache without end that all share.
// BATON_TEST_TRACE names another trace (the whole release, for docs/benchmarks.md).
#include "bench/serving/trace.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/simulation/world.h"
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace baton::simulation {
namespace {

using message::NodeRole;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::size_t kTile = 32;
// A block of the trace is one tile, and time runs so fast that nodes are busy about half of it.
constexpr double kScaleLengths = static_cast<double>(kTile) / serving::kTraceBlockTokens;
constexpr double kScaleTime = 0.02;
constexpr std::size_t kMostLines = 100'000;
constexpr std::uint64_t kSeed = 9;
constexpr std::int32_t kVocabulary = 4096;

struct Arrival {
  Duration at{};
  std::vector<TokenId> prompt;
  std::int32_t max_tokens = 1;
};

std::vector<Arrival> read_arrivals() {
  const char* path = std::getenv("BATON_TEST_TRACE");
  const auto lines = serving::read_trace(
      path != nullptr ? path : "tests/fixtures/traces/mooncake_conversation_excerpt.jsonl",
      kMostLines);
  EXPECT_TRUE(lines) << lines.error().message;
  std::vector<Arrival> arrivals;
  for (const serving::TraceLine& line : *lines) {
    arrivals.push_back(
        {std::chrono::duration_cast<Duration>(std::chrono::duration<double, std::milli>(
             static_cast<double>(line.timestamp_ms) * kScaleTime)),
         serving::prompt_ids(serving::scaled_prompt(line, kScaleLengths), kSeed, {3, kVocabulary}),
         serving::scaled_tokens(line.output_tokens, kScaleLengths)});
  }
  return arrivals;
}

std::int64_t prompt_tokens(const std::vector<Arrival>& arrivals) {
  std::int64_t sum = 0;
  for (const Arrival& arrival : arrivals) {
    sum += static_cast<std::int64_t>(arrival.prompt.size());
  }
  return sum;
}

// Whole tiles that any earlier prompt began with; the last token is always computed.
std::int64_t shared_tokens(const std::vector<Arrival>& arrivals) {
  std::set<std::uint64_t> known;  // prefixes of whole tiles, by hash
  std::int64_t sum = 0;
  for (const Arrival& arrival : arrivals) {
    const std::size_t size = arrival.prompt.size();
    std::uint64_t prefix = 0;
    bool hit = true;
    for (std::size_t end = kTile; end <= size; end += kTile) {
      for (std::size_t i = end - kTile; i < end; ++i) {
        prefix = serving::mixed(prefix + static_cast<std::uint64_t>(arrival.prompt[i]) + 1);
      }
      hit = !known.insert(prefix).second && hit;
      sum += hit && end < size ? kTile : 0;
    }
  }
  return sum;
}

// Requests go to the routers in turn; with events the nodes tell them what is cached.
struct Setting {
  router::PolicyKind policy = router::PolicyKind::kKvAware;
  std::size_t routers = 1;
  bool events = true;
};

Plan plan_of(const Setting& setting) {
  Plan plan;
  plan.policy = setting.policy;
  plan.options.hear_cached = setting.events;
  plan.options.queue_deadline_ms = 600'000;
  plan.link_delay = milliseconds(1);
  for (std::size_t router = 0; router < setting.routers; ++router) {
    plan.nodes.push_back({fmt::format("r{}", router), NodeRole::kRouter, {}});
  }
  testing::NodeSetup setup;
  setup.engine.cache_key = "trace";
  setup.backend.vocabulary = kVocabulary;
  setup.backend.end_tokens = {};
  setup.backend.max_context_tokens = 16'384;
  testing::FakeGroup group;
  group.layers = 1;
  group.kv_heads = 1;
  group.head_dim = 4;
  group.blocks = 40'000;  // nothing is evicted: routing is what is looked at
  setup.backend.groups = {group};
  for (const char* id : {"p0", "p1"}) {
    plan.nodes.push_back({id, NodeRole::kPrefill, setup});
  }
  for (const char* id : {"d0", "d1"}) {
    plan.nodes.push_back({id, NodeRole::kDecode, setup});
  }
  return plan;
}

class Replay {
 public:
  explicit Replay(const Setting& setting)
      : routers_(setting.routers), plan_(plan_of(setting)), world_(plan_, log_) {
    world_.dial();
    world_.cluster.run_for(milliseconds(300));  // every node has been heard of
    EXPECT_TRUE(world_.connected());
  }

  // Tokens of prompts that no node computed.
  std::int64_t run(const std::vector<Arrival>& arrivals) {
    const TimePoint begin = world_.cluster.clock.now();
    for (const Arrival& arrival : arrivals) {
      run_until([&] { return world_.cluster.clock.now() >= begin + arrival.at; });
      start(arrival);
    }
    run_until([this] { return open_.empty(); });
    std::int64_t computed = 0;
    for (const auto& [id, node] : world_.cluster.nodes) {
      if (node->engine) {
        computed += static_cast<std::int64_t>(node->engine->stats().prompt_tokens_computed);
      }
    }
    EXPECT_EQ(world_.stop(), "");
    return prompt_tokens(arrivals) - computed;
  }

 private:
  struct Open {
    const Arrival* arrival;
    std::shared_ptr<app::RequestStream> stream;
    std::vector<TokenId> tokens;
  };

  void start(const Arrival& arrival) {
    message::Submit submit;
    submit.key.request = {kSeed, ++requests_};
    submit.prompt = arrival.prompt;
    submit.max_tokens = arrival.max_tokens;
    submit.sampling.temperature = 0.0F;
    auto stream = std::make_shared<app::RequestStream>(
        world_.cluster.context.get_executor(), static_cast<std::size_t>(arrival.max_tokens) + 64);
    open_.push_back({&arrival, stream, {}});
    world_.router(fmt::format("r{}", requests_ % routers_))
        ->start({std::move(submit)}, {}, std::move(stream));
  }

  void run_until(const std::function<bool()>& done) {
    EXPECT_TRUE(world_.cluster.run_until(
        [&] {
          std::erase_if(open_, [this](Open& open) { return look(open); });
          return done();
        },
        seconds(3600)));
  }

  // True at its end, which is that of the cold run.
  bool look(Open& open) {
    while (auto event = open.stream->try_pop()) {
      if (const auto* delivered = std::get_if<app::Delivered>(&*event)) {
        open.tokens.push_back(delivered->token.token);
      } else if (const auto* failed = std::get_if<app::Failed>(&*event)) {
        ADD_FAILURE() << failed->error.message;
        return true;
      } else if (std::holds_alternative<app::Completed>(*event)) {
        sample::SamplingParams greedy;
        greedy.temperature = 0.0F;
        EXPECT_EQ(open.tokens, testing::FakeBackend::reference(
                                   plan_.nodes.back().setup.backend, open.arrival->prompt, greedy,
                                   Choice{0}, open.arrival->max_tokens));
        return true;
      }
    }
    return false;
  }

  const std::size_t routers_;
  Plan plan_;
  EventLog log_{false};
  World world_;
  std::vector<Open> open_;
  std::uint64_t requests_ = 0;
};

TEST(Trace, KvAwareRoutingFindsWhatPromptsShare) {
  const std::vector<Arrival> arrivals = read_arrivals();
  const std::int64_t all = prompt_tokens(arrivals);
  const auto shared = static_cast<double>(shared_tokens(arrivals));
  const auto share = [&](const Setting& setting, const char* name) {
    const auto found = static_cast<double>(Replay(setting).run(arrivals));
    fmt::print("{:>24}: {:>9} of {} shared tokens found, {:.3f}; {} prompts of {} tokens\n", name,
               found, shared, found / shared, arrivals.size(), all);
    return found / shared;
  };
  using router::PolicyKind;
  const double round_robin = share({PolicyKind::kRoundRobin, 1, false}, "round-robin");
  const double least_loaded = share({PolicyKind::kLeastLoaded, 1, false}, "least-loaded");
  const double guessing = share({PolicyKind::kKvAware, 1, false}, "kv-aware, a guess");
  const double kv_aware = share({PolicyKind::kKvAware, 1, true}, "kv-aware");
  const double guessing_apart = share({PolicyKind::kKvAware, 2, false}, "two routers, a guess");
  const double apart = share({PolicyKind::kKvAware, 2, true}, "two routers");
  EXPECT_GE(guessing, 0.9);
  EXPECT_GE(kv_aware, 0.9);
  EXPECT_GE(apart, 0.9);
  EXPECT_GT(apart, guessing_apart);
  EXPECT_GT(kv_aware, round_robin);
  EXPECT_GT(kv_aware, least_loaded);
}

}  // namespace
}  // namespace baton::simulation
