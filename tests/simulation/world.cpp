#include "tests/simulation/world.h"

#include "baton/base/check.h"

#include <fmt/format.h>

#include <algorithm>

namespace baton::simulation {

using handoff::FaultAction;
using message::NodeRole;
using std::chrono::milliseconds;
using std::chrono::seconds;

void EventLog::add(TimePoint now, const std::string& line) {
  add(static_cast<std::uint64_t>(now.time_since_epoch().count()));
  for (const char c : line) {
    digest_ = (digest_ ^ static_cast<unsigned char>(c)) * 1099511628211ULL;
  }
  if (print_) {
    fmt::print("{:>10.3f} ms  {}\n",
               std::chrono::duration<double, std::milli>(now.time_since_epoch()).count(), line);
  }
}

void EventLog::add(std::uint64_t value) {
  digest_ = (digest_ ^ value) * 1099511628211ULL;
  digest_ ^= digest_ >> 29U;
}

// ---- nodes ------------------------------------------------------------------------------------

World::World(const Plan& plan, EventLog& log) : plan_(plan), log_(log), draw_(plan.run_seed) {
  cluster.options = plan.options;
  if (plan.slices) {
    cluster.slice = [this] {
      return static_cast<std::size_t>(draw_.chance(25) ? 0 : draw_.in(1, 6));
    };
  }
  cluster.network.set_hook(
      [this](const NodeId& from, const NodeId& to, const wire::FrameHeader& header) {
        return on_send(from, to, header);
      });
  cluster.network.set_bulk_time([this](const NodeId&, const NodeId&) {
    return handoff::MockNetwork::BulkTime{draw_time(plan_.bulk_time), draw_time(plan_.bulk_time),
                                          draw_time(plan_.bulk_time)};
  });
  for (const NodePlan& node : plan.nodes) {
    for (const NodePlan& other : plan.nodes) {
      const bool router_dials = node.role == NodeRole::kRouter && other.role != NodeRole::kRouter;
      if (router_dials || (node.role == NodeRole::kPrefill && other.role == NodeRole::kDecode)) {
        pairs_.emplace_back(node.id, other.id);
      }
    }
  }
  for (const Direction& pair : pairs_) {
    for (const Direction& direction : {pair, Direction{pair.second, pair.first}}) {
      delays_[direction] = draw_time(plan.link_delay);
      cluster.network.set_delay(NodeId{direction.first}, NodeId{direction.second},
                                delays_[direction]);
    }
  }
  for (const NodePlan& node : plan.nodes) {
    start(node.id);
  }
}

// Only after stop() does a World end well; a run that failed may leave anything behind.
World::~World() {
  for (auto& [id, host] : routers_) {
    host->loop->stop();
    cluster.nodes.at(id)->coordinator->stop();
  }
  static_cast<void>(cluster.run_until(
      [this] {
        return std::all_of(routers_.begin(), routers_.end(),
                           [](const auto& entry) { return entry.second->running == 0; });
      },
      seconds(10)));
  cluster.slice = {};  // the cluster outlives what these need
  cluster.network.set_hook({});
  cluster.network.set_bulk_time({});
}

// Mostly short, of what is most; sometimes nothing.
Duration World::draw_time(Duration most) {
  const auto us = std::chrono::duration_cast<std::chrono::microseconds>(most).count();
  const auto limit = static_cast<std::int32_t>(draw_.chance(75) ? us / 5 : us);
  return std::chrono::microseconds(draw_.in(0, limit));
}

const NodePlan& World::plan_of(const std::string& id) const {
  return *std::find_if(plan_.nodes.begin(), plan_.nodes.end(),
                       [&](const NodePlan& node) { return node.id == id; });
}

void World::start(const std::string& id) {
  const NodePlan& plan = plan_of(id);
  ++lives_[id];
  if (plan.role == NodeRole::kRouter) {
    start_router(id);
  } else {
    cluster.add_engine(id, plan.role, plan.setup);
  }
}

void World::start_router(const std::string& id) {
  testing::Node& node = cluster.add_router(id);
  auto host = std::make_shared<RouterHost>();
  node.driven = true;
  node.in_use = [host] { return host->running > 0; };
  router::RouterOptions options;
  options.self = node.id;
  options.policy = plan_.policy;
  options.local_prefill_tokens = 16;  // prompts are short here
  options.prefix_key =
      std::find_if(plan_.nodes.begin(), plan_.nodes.end(), [](const NodePlan& each) {
        return each.role != NodeRole::kRouter;
      })->setup.engine.cache_key;
  // Longer than any fault: a request may end for want of a node only when none ever comes back.
  options.queue_deadline = seconds(20);
  host->loop =
      std::make_unique<app::OwnerLoop>(cluster.context.get_executor(), cluster.clock, options,
                                       nullptr, &node.owner(), std::chrono::seconds(15));
  for (const NodePlan& other : plan_.nodes) {
    if (other.role != NodeRole::kRouter) {
      host->loop->expect_peer(other.role, other.id);
    }
  }
  const auto spawn = [&](asio::awaitable<void> task) {
    ++host->running;
    asio::co_spawn(cluster.context, std::move(task), [host](const std::exception_ptr& failure) {
      BATON_CHECK(failure == nullptr, "a router's loop threw");
      --host->running;
    });
  };
  spawn(host->loop->run_timers());
  spawn(host->loop->run_owner_events());
  routers_[id] = std::move(host);
}

void World::kill(const std::string& id, bool politely) {
  count(*cluster.nodes.at(id), gone_);
  if (const auto host = routers_.extract(id)) {
    count(*host.mapped()->loop, gone_);
    host.mapped()->loop->stop();
    old_routers_.push_back(host.mapped());
    dead_routers_.push_back(id);
  }
  cluster.kill(id, politely);
}

app::OwnerLoop* World::router(const std::string& id) const {
  const auto found = routers_.find(id);
  return found == routers_.end() ? nullptr : found->second->loop.get();
}

// ---- links ------------------------------------------------------------------------------------

void World::dial() {
  for (const Direction& pair : pairs_) {
    const auto& [from, to] = pair;
    const NodeId a{from};
    const NodeId b{to};
    if (!alive(from) || !alive(to) || blocked_[pair] > 0 || blocked_[{to, from}] > 0 ||
        cluster.network.is_up(a, b)) {
      continue;
    }
    const std::pair<int, int> lives{lives_[from], lives_[to]};
    if (cluster.network.is_up(b, a) && joined_[pair] != lives) {
      continue;  // refused until the process that had the name is seen dead
    }
    joined_[pair] = lives;
    log_.add(cluster.clock.now(), fmt::format("{} connects to {}", from, to));
    cluster.network.connect(a, b);
  }
}

bool World::connected() const {
  return std::all_of(pairs_.begin(), pairs_.end(), [this](const Direction& pair) {
    return cluster.network.is_up(NodeId{pair.first}, NodeId{pair.second}) &&
           cluster.network.is_up(NodeId{pair.second}, NodeId{pair.first});
  });
}

void World::block(const Direction& direction, int by) {
  const NodeId from{direction.first};
  const NodeId to{direction.second};
  blocked_[direction] += by;
  if (by < 0) {
    cluster.network.heal(from, to);
  }
  for (const Direction& each : {direction, Direction{direction.second, direction.first}}) {
    if (blocked_[each] > 0) {
      cluster.network.partition_one_way(NodeId{each.first}, NodeId{each.second});
    }
  }
}

std::optional<FaultAction> World::on_send(const NodeId& from, const NodeId& to,
                                          const wire::FrameHeader& header) {
  const bool beat = header.type == wire::FrameType::kBeat;
  log_.add(static_cast<std::uint64_t>(cluster.clock.now().time_since_epoch().count()));
  log_.add(std::hash<std::string>{}(from.value) ^ (std::hash<std::string>{}(to.value) << 1U));
  log_.add((header.key.request.low << 24U) ^ (std::uint64_t{header.key.epoch.value} << 16U) ^
           static_cast<std::uint64_t>(header.type));
  log_.add(header.payload_crc);
  if (beat) {
    return std::nullopt;
  }
  if (log_.printed()) {
    constexpr const char* kNames[] = {
        "?",   "Hello",  "HelloReply", "Prefill",  "Decode", "Grant", "Blocks", "Commit",
        "Ack", "Tokens", "Refused",    "Finished", "Abort",  "Beat",  "Lane",   "Cached"};
    log_.add(cluster.clock.now(),
             fmt::format("  {} -> {} {} {} epoch {}", from.value, to.value,
                         kNames[static_cast<std::size_t>(header.type)],
                         to_string(header.key.request).substr(0, 8), header.key.epoch.value));
  }
  ++gone_.frames;
  if (on_frame) {
    on_frame(gone_.frames);
  }
  const bool bulk =
      header.type == wire::FrameType::kBlocks || header.type == wire::FrameType::kCommit;
  const auto armed = std::find_if(armed_.begin(), armed_.end(), [&](const Armed& each) {
    const bool fits = bulk || (each.kind != FaultKind::kCut && each.kind != FaultKind::kLose);
    return fits && each.direction == Direction{from.value, to.value};
  });
  if (armed == armed_.end()) {
    return std::nullopt;
  }
  const FaultKind kind = armed->kind;
  armed_.erase(armed);
  log_.add(cluster.clock.now(),
           fmt::format("{} strikes {} -> {}", fault_name(kind), from.value, to.value));
  switch (kind) {
    case FaultKind::kHalfClose:
      return FaultAction::kHalfClose;
    case FaultKind::kCut:
      return FaultAction::kCut;
    case FaultKind::kLose:
      return FaultAction::kDrop;
    default:
      return FaultAction::kCorrupt;
  }
}

// ---- faults -----------------------------------------------------------------------------------

void World::begin(const FaultPlan& fault) {
  log_.add(cluster.clock.now(), fmt::format("{} {} {}", fault_name(fault.kind), fault.a, fault.b));
  const NodeId a{fault.a};
  const NodeId b{fault.b};
  switch (fault.kind) {
    case FaultKind::kKill:
      if (alive(fault.a)) {
        kill(fault.a, false);
      }
      break;
    case FaultKind::kDrain:
      if (app::OwnerLoop* loop = router(fault.a)) {
        loop->begin_drain();
      }
      if (alive(fault.a)) {
        cluster.nodes.at(fault.a)->coordinator->begin_drain();
      }
      break;
    case FaultKind::kFreeze:
      if (alive(fault.a)) {
        cluster.nodes.at(fault.a)->frozen = true;
      }
      break;
    case FaultKind::kReset:
      cluster.network.reset(a, b);
      break;
    case FaultKind::kPartition:
      block({fault.b, fault.a}, 1);
      [[fallthrough]];
    case FaultKind::kOneWay:
      block({fault.a, fault.b}, 1);
      break;
    case FaultKind::kSlow:
      cluster.network.set_delay(a, b, delays_[{fault.a, fault.b}] + fault.delay);
      break;
    case FaultKind::kHalfClose:
    case FaultKind::kCut:
    case FaultKind::kLose:
    case FaultKind::kCorrupt:
      armed_.push_back({fault.kind, {fault.a, fault.b}});
      break;
  }
}

void World::end(const FaultPlan& fault) {
  log_.add(cluster.clock.now(),
           fmt::format("{} {} {} ends", fault_name(fault.kind), fault.a, fault.b));
  switch (fault.kind) {
    case FaultKind::kDrain:
      if (alive(fault.a)) {
        kill(fault.a, true);
      }
      [[fallthrough]];
    case FaultKind::kKill:
      if (!alive(fault.a)) {
        start(fault.a);
      }
      break;
    case FaultKind::kFreeze:
      if (alive(fault.a)) {
        cluster.nodes.at(fault.a)->frozen = false;
      }
      break;
    case FaultKind::kPartition:
      block({fault.b, fault.a}, -1);
      [[fallthrough]];
    case FaultKind::kOneWay:
      block({fault.a, fault.b}, -1);
      break;
    case FaultKind::kSlow:
      cluster.network.set_delay(NodeId{fault.a}, NodeId{fault.b}, delays_[{fault.a, fault.b}]);
      break;
    case FaultKind::kReset:
      break;
    case FaultKind::kHalfClose:
    case FaultKind::kCut:
    case FaultKind::kLose:
    case FaultKind::kCorrupt:
      disarm(fault);
      break;
  }
}

void World::disarm(const FaultPlan& fault) {
  const auto found = std::find_if(armed_.begin(), armed_.end(), [&](const Armed& each) {
    return each.kind == fault.kind && each.direction == Direction{fault.a, fault.b};
  });
  if (found != armed_.end()) {
    armed_.erase(found);
  }
}

// ---- the end ----------------------------------------------------------------------------------

void World::count(const testing::Node& node, Totals& totals) const {
  totals.handoffs += node.coordinator->stats().ok;
  totals.local += node.coordinator->stats().local;
  totals.protocol_errors += node.coordinator->stats().protocol_errors;
  if (node.engine) {
    totals.preemptions += node.engine->stats().preemptions;
    totals.cached_tokens += node.engine->stats().prompt_tokens_cached;
  }
}

void World::count(const app::OwnerLoop& loop, Totals& totals) const {
  totals.retries += loop.stats().retries;
  totals.replays += loop.stats().replays;
  totals.mismatches += loop.stats().mismatches;
}

World::Totals World::totals() const {
  Totals totals = gone_;
  for (const auto& [id, node] : cluster.nodes) {
    count(*node, totals);
  }
  for (const auto& [id, host] : routers_) {
    count(*host->loop, totals);
  }
  return totals;
}

std::string World::leftovers(bool for_long) const {
  for (const auto& [id, node] : cluster.nodes) {
    if (!node->coordinator->idle() || (node->engine && !node->engine->idle())) {
      return cluster.leftovers();
    }
    for (std::size_t group = 0; node->engine && group < node->engine->stats().group_count;
         ++group) {
      if (node->engine->stats().groups[group].used_blocks > 0) {
        return id + " still uses blocks: " + cluster.leftovers();
      }
    }
    if (node->engine) {
      node->engine->check_integrity();
    }
    const auto remembered = node->coordinator->remembered();
    if (remembered.watches > 0 ||
        (for_long && remembered.tombstones + remembered.kept_messages > 0)) {
      return fmt::format("{} still has {} watches, {} tombstones, {} kept messages", id,
                         remembered.watches, remembered.tombstones, remembered.kept_messages);
    }
  }
  for (const auto& [id, host] : routers_) {
    const router::Stats& stats = host->loop->stats();
    if (host->loop->active() > 0 ||
        stats.completed + stats.failed + stats.aborted != stats.accepted) {
      return fmt::format("{} has {} requests", id, host->loop->active());
    }
  }
  return {};
}

std::string World::stop() {
  while (!cluster.nodes.empty()) {
    kill(cluster.nodes.begin()->first, true);
  }
  const bool stopped = cluster.run_until([this] { return cluster.ending() == 0; }, seconds(30));
  return stopped ? "" : "a node does not stop";
}

}  // namespace baton::simulation
