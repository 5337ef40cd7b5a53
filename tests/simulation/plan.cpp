#include "tests/simulation/plan.h"

#include <fmt/format.h>

#include "tests/support/draw.h"
#include <algorithm>

namespace baton::simulation {

namespace {

using message::NodeRole;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using testing::Draw;

constexpr std::int32_t kVocabulary = 61;
constexpr std::int32_t kMaxPrompt = 170;
constexpr std::int32_t kMaxTokens = 70;
constexpr std::int32_t kLongest = kMaxPrompt + kMaxTokens;

// Short against the defaults, in the same proportions: a lease is ten Beats.
handoff::CoordinatorOptions draw_options(Draw& draw) {
  handoff::CoordinatorOptions options;
  options.beat_interval_ms = 100;
  options.lease_ms = 1'000;
  options.delivery_grace_ms = 350;
  options.stall_ms = 1'700;
  options.tick_ms = 25;
  options.queue_deadline_ms = 4'000;
  options.prefill_deadline_ms = 6'000;
  options.handoff_deadline_ms = 3'000;
  options.ack_bytes = draw.one_of<std::uint64_t>({1, 4'000, 4U << 20U});
  options.min_frame_bytes = draw.one_of<std::size_t>({1, 4'000, handoff::kMinFrameBytes});
  options.slow_way_us = draw.one_of<std::int64_t>({0, 3'000});
  return options;
}

// The shape that all nodes of a cluster share: it is part of the handshake.
std::vector<testing::FakeGroup> draw_groups(Draw& draw) {
  testing::FakeGroup full;
  full.layers = draw.in(1, 2);
  full.kv_heads = draw.in(1, 2);
  full.head_dim = 4;
  std::vector<testing::FakeGroup> groups = {full};
  if (draw.chance(25)) {
    testing::FakeGroup window = full;
    window.window_tokens = draw.in(20, 90);
    groups.push_back(window);
  }
  return groups;
}

// Room for the longest request at least, and often for little more: then others are preempted.
testing::NodeSetup draw_setup(Draw& draw, const std::vector<testing::FakeGroup>& groups,
                              bool small_queues) {
  testing::NodeSetup setup;
  setup.engine.max_num_seqs = draw.in(2, 8);
  setup.engine.max_step_ms = draw.one_of<std::int32_t>({1, 40});
  setup.engine.queue_deadline_ms = 4'000;
  if (small_queues) {
    setup.engine.max_waiting = draw.in(1, 3);
    setup.engine.mailbox_capacity = static_cast<std::size_t>(draw.in(1, 4));
  }
  setup.engine.prefix_cache = draw.chance(80);
  setup.engine.cache_key = "simulation";
  setup.backend.groups = groups;
  setup.backend.vocabulary = kVocabulary;
  setup.backend.block_tokens = draw.one_of<std::int32_t>({32, 64});
  setup.backend.max_step_tokens = draw.one_of<std::int32_t>({40, 64, 200});
  const std::int32_t block = setup.backend.block_tokens;
  for (testing::FakeGroup& group : setup.backend.groups) {
    const std::int32_t least =
        group.window_tokens > 0 ? (group.window_tokens + setup.backend.max_step_tokens) / block + 3
                                : kLongest / block + 1;
    const std::int32_t most = draw.chance(70) ? least + 3 : least * 5;
    group.blocks = static_cast<std::uint32_t>(draw.in(least, most));
    if (group.window_tokens > 0) {
      group.blocks *= static_cast<std::uint32_t>(setup.engine.max_num_seqs);
    }
  }
  return setup;
}

void draw_nodes(Draw& draw, Plan& plan) {
  const auto add = [&](const std::string& id, NodeRole role) -> NodePlan& {
    return plan.nodes.emplace_back(NodePlan{id, role, {}});
  };
  const std::int32_t routers = draw.chance(30) ? 2 : 1;
  for (std::int32_t i = 0; i < routers; ++i) {
    add(fmt::format("r{}", i), NodeRole::kRouter);
  }
  const std::vector<testing::FakeGroup> groups = draw_groups(draw);
  const bool small_queues = draw.chance(12);
  if (small_queues) {
    plan.options.max_sequences = static_cast<std::size_t>(draw.in(2, 6));
  }
  const std::int32_t prefill = draw.one_of<std::int32_t>({1, 1, 2, 2, 3});
  const std::int32_t decode = draw.one_of<std::int32_t>({1, 1, 2, 2, 3});
  for (std::int32_t i = 0; i < prefill; ++i) {
    add(fmt::format("p{}", i), NodeRole::kPrefill).setup = draw_setup(draw, groups, small_queues);
  }
  for (std::int32_t i = 0; i < decode; ++i) {
    add(fmt::format("d{}", i), NodeRole::kDecode).setup = draw_setup(draw, groups, small_queues);
  }
}

message::Submit draw_submit(Draw& draw, const std::vector<TokenId>& family) {
  message::Submit submit;
  submit.key.request = RequestId{draw.bits(), draw.bits()};
  const std::int32_t length = draw.chance(30) ? 32 * draw.in(1, 5) + draw.in(-1, 1)
                                              : draw.in(1, draw.chance(50) ? 60 : kMaxPrompt);
  const std::int32_t shared = draw.chance(30) ? length : draw.in(0, length);
  submit.prompt.assign(family.begin(), family.begin() + shared);
  const std::vector<TokenId> own = testing::draw_tokens(draw, length - shared, kVocabulary);
  submit.prompt.insert(submit.prompt.end(), own.begin(), own.end());
  submit.sampling = testing::draw_sampling(draw, kVocabulary);
  submit.max_tokens = draw.chance(60) ? draw.in(1, 20) : draw.in(20, kMaxTokens);
  submit.min_tokens = draw.chance(15) ? draw.in(0, submit.max_tokens) : 0;
  submit.ignore_eos = draw.chance(60);
  if (draw.chance(15)) {
    submit.stop_token_ids = {draw.in(0, kVocabulary - 1)};
  }
  return submit;
}

void draw_requests(Draw& draw, Plan& plan) {
  const std::vector<TokenId> family = testing::draw_tokens(draw, kMaxPrompt, kVocabulary);
  std::vector<std::string> routers;
  for (const NodePlan& node : plan.nodes) {
    if (node.role == NodeRole::kRouter) {
      routers.push_back(node.id);
    }
  }
  const bool burst = draw.chance(40);
  const std::int32_t count = burst ? draw.in(3, 12) : draw.in(2, 8);
  for (std::int32_t i = 0; i < count; ++i) {
    RequestPlan request;
    request.submit = draw_submit(draw, family);
    request.router = draw.one_of(routers);
    request.at = microseconds(draw.in(0, burst ? 20'000 : 900'000));
    if (draw.chance(12)) {
      request.cancel_after_tokens = draw.in(0, request.submit.max_tokens);
    }
    if (draw.chance(12)) {
      request.cancel_after = microseconds(draw.in(0, 60'000));
    }
    request.choices = draw.chance(15) ? draw.in(2, 3) : 1;
    if (draw.chance(12)) {
      request.stop_at = draw.in(0, request.submit.max_tokens - 1);
    }
    plan.requests.push_back(std::move(request));
  }
}

std::string node_of(Draw& draw, const Plan& plan, std::vector<NodeRole> roles) {
  std::vector<std::string> ids;
  for (const NodePlan& node : plan.nodes) {
    if (std::find(roles.begin(), roles.end(), node.role) != roles.end()) {
      ids.push_back(node.id);
    }
  }
  return draw.one_of(ids);
}

FaultPlan draw_fault(Draw& draw, const Plan& plan, std::int32_t frames) {
  FaultPlan fault;
  fault.kind = static_cast<FaultKind>(draw.in(0, static_cast<std::int32_t>(FaultKind::kCorrupt)));
  switch (fault.kind) {
    case FaultKind::kKill:
    case FaultKind::kDrain:
      fault.a = draw.chance(12) ? node_of(draw, plan, {NodeRole::kRouter})
                                : node_of(draw, plan, {NodeRole::kPrefill, NodeRole::kDecode});
      break;
    case FaultKind::kFreeze:
      fault.a = node_of(draw, plan, {NodeRole::kPrefill, NodeRole::kDecode});
      break;
    case FaultKind::kCut:
    case FaultKind::kLose:
      fault.a = node_of(draw, plan, {NodeRole::kPrefill});
      fault.b = node_of(draw, plan, {NodeRole::kDecode});
      break;
    default:
      if (draw.chance(40)) {
        fault.a = node_of(draw, plan, {NodeRole::kPrefill});
        fault.b = node_of(draw, plan, {NodeRole::kDecode});
      } else {
        fault.a = node_of(draw, plan, {NodeRole::kRouter});
        fault.b = node_of(draw, plan, {NodeRole::kPrefill, NodeRole::kDecode});
      }
      if (draw.chance(50)) {
        std::swap(fault.a, fault.b);
      }
      break;
  }
  // Half of them in the midst of something, the rest at any time.
  if (draw.chance(60)) {
    fault.at_frame = static_cast<std::uint64_t>(draw.in(1, frames));
  }
  fault.at = microseconds(draw.in(0, 1'200'000));
  fault.lasts =
      microseconds(draw.chance(50) ? draw.in(1'000, 300'000) : draw.in(300'000, 2'600'000));
  fault.delay = milliseconds(draw.chance(50) ? draw.in(1, 30) : draw.in(30, 700));
  return fault;
}

}  // namespace

Plan draw_plan(std::uint64_t seed) {
  Draw draw(seed * 0x9E3779B97F4A7C15ULL + 5);
  Plan plan;
  plan.seed = seed;
  plan.options = draw_options(draw);
  plan.slices = draw.chance(50);
  plan.policy = draw.one_of<router::PolicyKind>({router::PolicyKind::kLeastLoaded,
                                                 router::PolicyKind::kRoundRobin,
                                                 router::PolicyKind::kKvAware});
  plan.link_delay = microseconds(draw.one_of<std::int32_t>({0, 300, 3'000}));
  plan.bulk_time = microseconds(draw.one_of<std::int32_t>({0, 2'000, 30'000}));
  draw_nodes(draw, plan);
  draw_requests(draw, plan);
  if (!draw.chance(15)) {
    const std::int32_t faults = draw.chance(15) ? draw.in(6, 14) : draw.in(1, 5);
    const auto frames = static_cast<std::int32_t>(plan.requests.size()) * 20;
    for (std::int32_t i = 0; i < faults; ++i) {
      plan.faults.push_back(draw_fault(draw, plan, frames));
    }
  }
  plan.run_seed = draw.bits();
  plan.options.hear_cached = plan.policy == router::PolicyKind::kKvAware && draw.chance(70);
  return plan;
}

message::Submit draw_probe(std::uint64_t seed, std::uint64_t number) {
  Draw draw(seed * 0xD1B54A32D192ED03ULL + number);
  return draw_submit(draw, testing::draw_tokens(draw, kMaxPrompt, kVocabulary));
}

std::string fault_name(FaultKind kind) {
  constexpr const char* kNames[] = {"kill",       "drain",     "freeze",  "reset",
                                    "half-close", "partition", "one-way", "slow",
                                    "cut",        "lose",      "corrupt"};
  return kNames[static_cast<std::size_t>(kind)];
}

std::string describe(const Plan& plan) {
  const auto ms = [](Duration time) {
    return std::chrono::duration<double, std::milli>(time).count();
  };
  std::string text = fmt::format(
      "seed {} (replay: simulation_test --seed {}): acks of {} bytes, frames of {}, ways slow from "
      "{} us on, at most {} sequences, links up to {} ms, bulk up to {} ms, policy {}{}{}\n",
      plan.seed, plan.seed, plan.options.ack_bytes, plan.options.min_frame_bytes,
      plan.options.slow_way_us, plan.options.max_sequences, ms(plan.link_delay), ms(plan.bulk_time),
      static_cast<int>(plan.policy), plan.options.hear_cached ? " with block events" : "",
      plan.slices ? ", in slices" : "");
  for (const NodePlan& node : plan.nodes) {
    text += "  " + node.id;
    for (const testing::FakeGroup& group : node.setup.backend.groups) {
      if (node.role != NodeRole::kRouter) {
        text += fmt::format(
            ": {} blocks of {}{}", group.blocks, node.setup.backend.block_tokens,
            group.window_tokens > 0 ? fmt::format(" (window {})", group.window_tokens) : "");
      }
    }
    text += node.role == NodeRole::kRouter
                ? "\n"
                : fmt::format(", steps of {} rows, {} sequences{}\n",
                              node.setup.backend.max_step_tokens, node.setup.engine.max_num_seqs,
                              node.setup.engine.prefix_cache ? "" : ", no prefix cache");
  }
  for (const RequestPlan& request : plan.requests) {
    const message::Submit& submit = request.submit;
    text += fmt::format("  {} at {} ms to {}: {} prompt tokens, at most {}, temperature {}",
                        to_string(submit.key.request).substr(0, 8), ms(request.at), request.router,
                        submit.prompt.size(), submit.max_tokens, submit.sampling.temperature);
    text += request.choices > 1 ? fmt::format(", {} choices", request.choices) : "";
    if (request.cancel_after_tokens >= 0) {
      text += fmt::format(", leaves after {} tokens", request.cancel_after_tokens);
    }
    if (request.cancel_after >= Duration{}) {
      text += fmt::format(", leaves after {} ms", ms(request.cancel_after));
    }
    if (request.stop_at >= 0) {
      text += fmt::format(", stops at {}", request.stop_at);
    }
    text += "\n";
  }
  for (const FaultPlan& fault : plan.faults) {
    text += fmt::format("  {} {} {} at {}, for {} ms", fault_name(fault.kind), fault.a, fault.b,
                        fault.at_frame > 0 ? fmt::format("frame {}", fault.at_frame)
                                           : fmt::format("{} ms", ms(fault.at)),
                        ms(fault.lasts));
    text += fault.kind == FaultKind::kSlow ? fmt::format(", {} ms\n", ms(fault.delay)) : "\n";
  }
  return text;
}

}  // namespace baton::simulation
