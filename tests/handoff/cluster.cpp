#include "tests/handoff/cluster.h"

#include "baton/handoff/handshake.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <bit>
#include <utility>

namespace baton::testing {

using std::chrono::milliseconds;
using std::chrono::seconds;

std::vector<std::string> canonical(const Answer& answer) {
  std::vector<std::string> lines;
  for (const message::Token& token : answer.tokens) {
    std::string line =
        fmt::format("{}:{}:{:08x}:{}", token.index, token.token,
                    std::bit_cast<std::uint32_t>(token.logprob), static_cast<int>(token.finish));
    for (const message::TokenLogprob& top : token.top) {
      line += fmt::format(" {}:{:08x}", top.token, std::bit_cast<std::uint32_t>(top.logprob));
    }
    lines.push_back(std::move(line));
  }
  return lines;
}

Node::Node(Cluster& cluster, const std::string& name, message::NodeRole role,
           const NodeSetup* setup)
    : id{name} {
  message::NodeInfo info;
  info.id = id;
  info.role = role;
  kv::KvLayout layout;
  handoff::EngineLink link;
  if (setup != nullptr) {
    backend = std::make_unique<FakeBackend>(setup->backend);
    events = std::make_unique<engine::EventQueue>(1 << 20);
    engine =
        std::make_unique<engine::BatchScheduler>(*backend, cluster.clock, setup->engine, *events);
    layout = backend->info().layout;
    info.exactness_tag = backend->info().exactness_tag;
    info.max_context_tokens = backend->info().max_context_tokens;
    info.pool_tokens = engine->probe_block_geometry().pool_tokens;
    link.post = [this](message::EngineCommand&& command) {
      posted = true;
      return engine->post(std::move(command));
    };
    link.events = events.get();
    link.layout = layout;
    link.load = [this, &cluster] {
      const engine::EngineStats& stats = engine->stats();
      return message::NodeLoad{stats.running.load(),
                               stats.waiting.load(),
                               stats.groups[0].free_blocks.load(),
                               stats.groups[0].total_blocks.load(),
                               stats.step_count.load(),
                               turns(cluster.clock.now())};
    };
  }
  const std::string digest(64, 'a');
  transport = cluster.network.attach(
      handoff::make_hello(info, layout, setup != nullptr ? digest : "", digest));
  handoff::CoordinatorOptions options = cluster.options;
  options.self = id;
  options.hear_cached = options.hear_cached && role == message::NodeRole::kRouter;
  coordinator = std::make_unique<handoff::ServingCoordinator>(
      cluster.context.get_executor(), options, transport.get(), setup != nullptr ? &link : nullptr,
      cluster.clock);
  asio::co_spawn(cluster.context, coordinator->run(),
                 [this](const std::exception_ptr&) { ended = true; });
}

std::uint64_t Node::turns(TimePoint now) {
  if (!frozen) {
    turns_ = engine->stats().turn_count.load() +
             static_cast<std::uint64_t>(now.time_since_epoch() / seconds(1));
  }
  return turns_;
}

Cluster::Cluster() {
  options.queue_deadline_ms = 4'000;
  options.prefill_deadline_ms = 6'000;
  options.handoff_deadline_ms = 4'000;
}

Node& Cluster::add_engine(const std::string& id, message::NodeRole role, const NodeSetup& setup) {
  return *nodes.emplace(id, std::make_unique<Node>(*this, id, role, &setup)).first->second;
}

Node& Cluster::add_router(const std::string& id) {
  return *nodes.emplace(id, std::make_unique<Node>(*this, id, message::NodeRole::kRouter, nullptr))
              .first->second;
}

void Cluster::connect_all() {
  for (auto a = nodes.begin(); a != nodes.end(); ++a) {
    for (auto b = std::next(a); b != nodes.end(); ++b) {
      network.heal(a->second->id, b->second->id);
      network.connect(a->second->id, b->second->id);
    }
  }
  run_for(milliseconds(10));
}

Cluster::~Cluster() {
  for (auto& [name, node] : nodes) {
    node->frozen = false;
    node->coordinator->stop();
  }
  const auto has_ended = [](const std::unique_ptr<Node>& node) { return node->ended; };
  const bool stopped = run_until(
      [&] {
        return std::all_of(nodes.begin(), nodes.end(),
                           [&](const auto& entry) { return has_ended(entry.second); }) &&
               std::all_of(gone_.begin(), gone_.end(), has_ended);
      },
      seconds(60));
  EXPECT_TRUE(stopped) << "a coordinator did not stop";
  reap(true);
  for (auto& [name, node] : nodes) {
    audit(*node, bad_rows_expected);
  }
  bool network_stopped = false;
  asio::co_spawn(context, network.stop(),
                 [&](const std::exception_ptr&) { network_stopped = true; });
  run_until([&] { return network_stopped; }, seconds(1));
  for (auto& [name, node] : nodes) {
    node->coordinator.reset();
    node->transport.reset();
  }
  context.restart();
  context.poll();
  EXPECT_TRUE(context.stopped()) << "a coroutine still waits for something";
  EXPECT_FALSE(clock.next_wake()) << "a coroutine still sleeps";
}

void Cluster::audit(Node& node, bool bad_rows_expected) {
  if (!node.engine) {
    return;
  }
  node.engine->stop();
  while (node.engine->run_once()) {
  }
  node.engine->check_integrity();
  EXPECT_TRUE(bad_rows_expected || node.backend->bad_rows_read() == 0) << node.id.value;
}

void Cluster::kill(const std::string& id, bool politely) {
  std::unique_ptr<Node> node = std::move(nodes.extract(id).mapped());
  if (!politely) {
    network.kill(node->id);
  }
  node->frozen = false;
  node->coordinator->stop();
  gone_.push_back(std::move(node));
}

// Its engine may still hold a lease whose news came too late for a coordinator that has ended.
void Cluster::reap(bool all) {
  std::erase_if(gone_, [&](const std::unique_ptr<Node>& node) {
    if (!node->ended || (node->in_use && node->in_use())) {
      EXPECT_FALSE(all) << node->id.value;
      return false;
    }
    audit(*node, bad_rows_expected);
    node->coordinator.reset();
    return true;
  });
}

SequenceKey Cluster::start(Node& router, message::Submit submit, const std::string& p,
                           const std::string& d) {
  const SequenceKey key = submit.key;
  Answer& answer = answers_[key];
  Status sent;
  if (!d.empty()) {
    sent = router.owner().send_decode(NodeId{d}, submit, NodeId{p}, clock.now());
  }
  if (sent && !p.empty()) {
    sent = router.owner().send_prefill(NodeId{p}, submit, NodeId{d}, clock.now());
  }
  if (!sent) {
    router.owner().abort(key, sent.error());
    answer.error = sent.error();
    answer.later = sent.error().code != ErrorCode::kInvalidArgument;
  }
  return key;
}

void Cluster::take(Node& router) {
  for (handoff::OwnerEvent& event : router.owner().drain()) {
    if (auto* tokens = std::get_if<handoff::NodeTokens>(&event)) {
      for (message::Token& token : tokens->tokens) {
        Answer& answer = answers_[token.key];
        answer.nodes.insert(tokens->node.value);
        answer.kv_bytes = std::max(answer.kv_bytes, token.kv_bytes);
        const auto index = static_cast<std::size_t>(token.index);
        if (index < answer.tokens.size()) {
          answer.conflicts += answer.tokens[index].token != token.token ? 1 : 0;
          continue;
        }
        if (index > answer.tokens.size()) {  // a Tokens frame was lost: a connection would break
          answer.error = Error{ErrorCode::kPeerLost, "a token is missing"};
          router.owner().abort(token.key, *answer.error);
          continue;
        }
        answer.finished = token.finish != message::FinishReason::kNone;
        answer.tokens.push_back(std::move(token));
      }
    } else if (auto* refused = std::get_if<handoff::NodeRefused>(&event)) {
      Answer& answer = answers_[refused->refused.key];
      answer.error = refused->refused.error;
      answer.later = refused->refused.later;
    } else if (auto* finished = std::get_if<handoff::NodeFinished>(&event)) {
      answers_[finished->finished.key].error = finished->finished.error;
    }
  }
}

bool Cluster::turn() {
  context.restart();
  bool moved = false;
  if (const std::size_t handlers = slice ? slice() : 0; handlers == 0) {
    moved = context.poll() > 0;
  } else {
    for (std::size_t i = 0; i < handlers && context.poll_one() > 0; ++i) {
      moved = true;
    }
  }
  bool stepped = false;
  for (auto& [name, node] : nodes) {
    stepped = turn(*node) || stepped;
  }
  for (auto& node : gone_) {
    stepped = turn(*node) || stepped;
  }
  reap(false);
  if (stepped) {
    clock.advance(milliseconds(1));
  }
  return moved || stepped;
}

// True when its engine made a step.
bool Cluster::turn(Node& node) {
  if (!node.engine) {
    if (!node.driven) {
      take(node);
    }
    return false;
  }
  if (node.frozen || (!node.posted && node.engine->idle())) {
    return false;
  }
  node.posted = false;
  return node.engine->run_once();
}

bool Cluster::run_until(const std::function<bool()>& done, Duration at_most) {
  const TimePoint end = clock.now() + at_most;
  while (!done()) {
    if (turn()) {
      if (clock.now() >= end) {
        return done();
      }
      continue;
    }
    if (clock.now() >= end) {
      return done();
    }
    const auto wake = clock.next_wake();
    clock.advance_to(wake && *wake < end ? *wake : end);
  }
  return true;
}

bool Cluster::all_ended() const {
  return std::all_of(answers_.begin(), answers_.end(),
                     [](const auto& entry) { return entry.second.ended(); });
}

bool Cluster::all_idle() const {
  return std::all_of(nodes.begin(), nodes.end(), [](const auto& entry) {
    const Node& node = *entry.second;
    if (node.engine) {
      node.engine->check_integrity();
    }
    return node.coordinator->idle() && (!node.engine || node.engine->idle());
  });
}

std::string Cluster::leftovers() const {
  std::string text;
  for (const auto& [name, node] : nodes) {
    text += fmt::format("{}: attempts {}, in handoff {}, held {}", name,
                        node->owner().active_attempts(), node->coordinator->stats().active.load(),
                        node->coordinator->stats().held.load());
    if (node->engine) {
      const engine::EngineStats& stats = node->engine->stats();
      text += fmt::format(
          ", running {}, waiting {}, handing off {}, reserved {}, leases {}, blocks {}",
          stats.running.load(), stats.waiting.load(), stats.handing_off.load(),
          stats.reserved.load(), stats.leases.load(), stats.groups[0].used_blocks.load());
    }
    text += "; ";
  }
  return text;
}

message::Submit make_submit(std::uint64_t seed, std::int32_t prompt_tokens, std::int32_t max_tokens,
                            float temperature) {
  message::Submit submit;
  submit.key.request = {seed, seed * 0x9E3779B97F4A7C15ULL + 1};
  std::uint64_t state = seed * 0xD1B54A32D192ED03ULL + 7;
  for (std::int32_t i = 0; i < prompt_tokens; ++i) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    submit.prompt.push_back(static_cast<TokenId>(3 + (state >> 33) % 250));
  }
  submit.sampling.temperature = temperature;
  submit.sampling.seed = seed;
  submit.sampling.top_logprobs = 2;
  submit.max_tokens = max_tokens;
  return submit;
}

std::vector<std::string> single_node_answer(const NodeSetup& setup, const message::Submit& submit) {
  Cluster cluster;
  cluster.add_engine("single", message::NodeRole::kSingle, setup);
  Node& router = cluster.add_router();
  cluster.connect_all();
  const SequenceKey key = cluster.start(router, submit, "", "single");
  EXPECT_TRUE(cluster.run_until([&] { return cluster.answer(key).ended(); }, seconds(120)));
  EXPECT_TRUE(cluster.answer(key).finished)
      << (cluster.answer(key).error ? cluster.answer(key).error->message : "");
  return canonical(cluster.answer(key));
}

}  // namespace baton::testing
