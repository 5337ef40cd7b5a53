#include "tests/property/schedule.h"

#include <fmt/format.h>

#include "tests/support/draw.h"
#include <algorithm>

namespace baton::property {

namespace {

using testing::Draw;
using testing::draw_sampling;
using testing::draw_tokens;

constexpr std::int32_t kKeyPart = 512;  // keys are summed in parts of so many (numerics rule 3)

// Mostly short; often at a border of a tile; sometimes over two key parts or three.
std::int32_t draw_length(Draw& draw, bool long_allowed) {
  const std::int32_t kind = draw.in(1, 100);
  if (kind <= 50) {
    return draw.in(1, 90);
  }
  if (kind <= 78) {
    return std::max(1, kv::kTileTokens * draw.in(1, 9) + draw.in(-1, 1));
  }
  if (kind <= 90 || !long_allowed) {
    return draw.in(200, 420);
  }
  return kKeyPart * draw.in(1, 2) + draw.in(-3, 60);
}

NodeDraw draw_node(Draw& draw, const std::vector<std::string>& isas) {
  NodeDraw node;
  node.isa = draw.one_of(isas);
  node.threads = draw.in(1, 4);
  node.block_tokens = draw.one_of<std::int32_t>({32, 64, 128, 256});
  node.max_num_seqs = draw.in(1, 8);
  node.max_step_tokens = draw.one_of<std::int32_t>({40, 64, 96, 200, 512});
  node.max_step_ms = draw.in(1, 40);
  node.us_per_row = draw.one_of<std::int32_t>({1, 50, 400, 3000});
  node.prefix_cache = draw.chance(80);
  return node;
}

// Room for the largest sequence at least, and often for little more: then others are preempted.
void draw_pools(Draw& draw, Schedule& schedule, bool crowded) {
  std::int32_t longest = 1;
  std::int32_t all = 0;
  for (const RequestDraw& request : schedule.requests) {
    const auto tokens =
        static_cast<std::int32_t>(request.submit.prompt.size()) + request.submit.max_tokens;
    longest = std::max(longest, tokens);
    all += tokens + 2 * 256;
  }
  for (NodeDraw& node : schedule.nodes) {
    const auto blocks = [&](std::int32_t tokens) { return tokens / node.block_tokens + 1; };
    const std::int32_t most = crowded || draw.chance(60) ? blocks(longest) + 2 : blocks(all);
    node.pool_blocks = static_cast<std::uint32_t>(draw.in(blocks(longest), most));
  }
}

void draw_times(Draw& draw, RequestDraw& request, const Schedule& schedule) {
  request.arrives = draw.chance(40) ? 0 : draw.in(0, 60);
  request.cancelled = draw.chance(15) ? request.arrives + draw.in(0, 25) : -1;
  request.replay = draw.chance(15);
  request.handoff = schedule.nodes.size() == 2 && draw.chance(70);
  request.node = schedule.nodes.size() == 2 && draw.chance(50) ? 1 : 0;
  request.ship_delay = draw.chance(50) ? 0 : draw.in(1, 12);
}

}  // namespace

Schedule draw_schedule(std::uint64_t seed, const DrawLimits& limits) {
  Draw draw(seed * 0x9E3779B97F4A7C15ULL + 1);
  Schedule schedule;
  schedule.seed = seed;
  schedule.model = static_cast<std::size_t>(
      draw.in(0, static_cast<std::int32_t>(limits.vocabularies.size()) - 1));
  schedule.kv_dtype = draw.one_of(limits.kv_dtypes[schedule.model]);
  const std::int32_t vocabulary = limits.vocabularies[schedule.model];
  // The scalar twin is slow: in a third of the schedules, with short prompts.
  const bool with_ref = draw.chance(33);
  std::vector<std::string> isas = limits.isas;
  if (!with_ref && isas.size() > 1) {
    std::erase(isas, "ref");
  }
  schedule.reference_isa = draw.one_of(isas);
  const std::int32_t nodes = draw.chance(35) ? 2 : 1;
  for (std::int32_t i = 0; i < nodes; ++i) {
    schedule.nodes.push_back(draw_node(draw, isas));
  }
  // Prompts begin alike: prefix hits of every length.
  const std::vector<TokenId> family = draw_tokens(draw, 2 * kKeyPart + 100, vocabulary);
  // Many that start together on small blocks, grow past them and find no more: preemption.
  const bool crowded = draw.chance(30);
  if (crowded) {
    for (NodeDraw& node : schedule.nodes) {
      node.block_tokens = 32;
      node.max_num_seqs = 8;
    }
  }
  const std::int32_t count = crowded ? draw.in(4, 7) : draw.in(2, 6);
  for (std::int32_t i = 0; i < count; ++i) {
    RequestDraw request;
    message::Submit& submit = request.submit;
    submit.key.request = RequestId{seed, static_cast<std::uint64_t>(i)};
    const std::int32_t length = crowded ? draw.in(20, 110) : draw_length(draw, !with_ref);
    const std::int32_t shared = draw.chance(25) ? length : draw.in(0, length);
    submit.prompt.assign(family.begin(), family.begin() + std::min(shared, length));
    const std::vector<TokenId> own = draw_tokens(draw, length - shared, vocabulary);
    submit.prompt.insert(submit.prompt.end(), own.begin(), own.end());
    submit.sampling = draw_sampling(draw, vocabulary);
    submit.max_tokens = draw.chance(crowded ? 20 : 80) ? draw.in(1, 24) : draw.in(30, 75);
    submit.min_tokens = draw.chance(15) ? draw.in(0, submit.max_tokens) : 0;
    submit.ignore_eos = draw.chance(50);
    if (draw.chance(20)) {
      submit.stop_token_ids = {draw.in(0, vocabulary - 1)};
    }
    submit.priority = draw.in(-2, 2);
    const std::int32_t choices = draw.chance(20) ? draw.in(2, 3) : 1;
    draw_times(draw, request, schedule);
    if (crowded) {
      request.arrives = draw.in(0, 4);
      request.cancelled = request.cancelled < 0 ? -1 : request.arrives + draw.in(0, 40);
    }
    if (request.handoff) {
      // In one order on both nodes: else P may hold what D will take second while D waits for what
      // P will prefill second. On a network the queue deadline ends that; here nothing would.
      submit.priority = 0;
    }
    for (std::int32_t choice = 0; choice < choices; ++choice) {
      submit.key.choice = Choice{static_cast<std::uint32_t>(choice)};
      schedule.requests.push_back(request);
    }
  }
  draw_pools(draw, schedule, crowded);
  return schedule;
}

std::string describe(const Schedule& schedule) {
  std::string text =
      fmt::format("seed {} (replay: property_test --seed {}), model {}, KV {}, reference on {}\n",
                  schedule.seed, schedule.seed, schedule.model,
                  kv::kv_dtype_name(schedule.kv_dtype), schedule.reference_isa);
  for (const NodeDraw& node : schedule.nodes) {
    text += fmt::format(
        "  node: {}, {} threads, {} blocks of {} tokens, steps of {} rows or {} ms at {} us a row, "
        "{} sequences, prefix cache {}\n",
        node.isa, node.threads, node.pool_blocks, node.block_tokens, node.max_step_tokens,
        node.max_step_ms, node.us_per_row, node.max_num_seqs, node.prefix_cache ? "on" : "off");
  }
  for (const RequestDraw& request : schedule.requests) {
    const message::Submit& submit = request.submit;
    text += fmt::format(
        "  {}: prompt {}, at most {} tokens, temperature {}, arrives {}, cancelled {}{}{}\n",
        to_string(submit.key), submit.prompt.size(), submit.max_tokens, submit.sampling.temperature,
        request.arrives, request.cancelled, request.replay ? ", replay" : "",
        request.handoff ? ", handoff" : fmt::format(", on node {}", request.node));
  }
  return text;
}

}  // namespace baton::property
