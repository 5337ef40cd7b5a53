#include "apps/baton/serve.h"

#include "baton/base/cpu_features.h"
#include "baton/base/failpoints.h"
#include "baton/base/log.h"
#include "baton/files/gguf.h"
#include "baton/handoff/coordinator.h"
#include "baton/handoff/handshake.h"
#include "baton/handoff/tcp_transport.h"
#include "baton/net/async_clock.h"
#include "baton/net/event_loop.h"
#include "baton/net/task_group.h"
#include "baton/text/gguf_tokenizer.h"

#include <boost/asio/signal_set.hpp>
#include <boost/asio/use_future.hpp>

#include "apps/baton/addresses.h"
#include "apps/baton/api_server.h"
#include "apps/baton/engine_host.h"
#include "apps/baton/guard.h"
#include "apps/baton/kv_transport.h"
#include "apps/baton/metrics.h"
#include "apps/baton/node_metrics.h"
#include "apps/baton/owner_loop.h"
#include "apps/baton/peer_loop.h"
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <future>
#include <limits>
#include <optional>
#include <utility>

namespace baton::app {
namespace {

using message::NodeRole;

// How long finished streams get to leave the sockets once nothing computes any more.
constexpr Duration kLastWrites = std::chrono::seconds(2);
constexpr Duration kWatchInterval = std::chrono::milliseconds(200);
constexpr Duration kDrainPoll = std::chrono::milliseconds(20);
// How long a node that stops waits for etcd to have taken its key away.
constexpr Duration kLeaveEtcd = std::chrono::seconds(2);

template <class T>
T or_die(Result<T> result) {
  if (!result) {
    throw StartupError(result.error());
  }
  return *std::move(result);
}
void or_die(const Status& status) {
  if (!status) {
    throw StartupError(status.error());
  }
}

// What all request bodies may take together.
std::size_t bodies_bytes(const ServeOptions& options, std::size_t largest_body) {
  constexpr std::size_t kBodies = 32;
  if (options.max_bodies.empty()) {
    return largest_body > std::numeric_limits<std::size_t>::max() / kBodies
               ? largest_body
               : kBodies * largest_body;
  }
  const std::size_t bytes = or_die(parse_bytes(options.max_bodies, "--max-bodies"));
  if (bytes < largest_body) {
    throw StartupError(fmt::format("--max-bodies {} does not hold one body of --max-body {}",
                                   options.max_bodies, options.max_body));
  }
  return bytes;
}

std::string random_hex(std::size_t digits) {
  return to_string(random_request_id()).substr(0, digits);
}

handoff::CoordinatorOptions coordinator_options(const ServeOptions& options) {
  handoff::CoordinatorOptions result;
  result.self = NodeId{options.node_id};
  result.queue_deadline_ms = options.queue_deadline_ms;
  result.prefill_deadline_ms = options.prefill_deadline_ms;
  result.handoff_deadline_ms = options.handoff_deadline_ms;
  result.stream_kv = options.stream_kv == "on";
  result.beat_interval_ms = options.beat_interval_ms;
  result.lease_ms = options.lease_ms;
  result.stall_ms = options.stall_ms;
  result.has_owner = owns_clients(options);
  result.hear_cached = result.has_owner && options.policy == router::PolicyKind::kKvAware;
  return result;
}

// By what the nodes and routers of a cluster name prefixes alike. Without a token everybody knows
// it: names then rest on the secret in the cache namespaces. Empty: a node alone tells nobody.
std::string prefix_key(const ServeOptions& options, const Guard& guard) {
  constexpr const char* kPurpose = "prefix names";
  if (options.role == NodeRole::kSingle) {
    return {};
  }
  return guard.token ? guard.token->derive(kPurpose) : kPurpose;
}

router::RouterOptions router_options(const ServeOptions& options, const Guard& guard,
                                     const EngineHost* engine) {
  router::RouterOptions result;
  result.local_engine = options.role == NodeRole::kSingle;
  result.self = NodeId{options.node_id};
  result.exactness_tag = engine == nullptr ? "" : engine->info().exactness_tag;
  result.policy = options.policy;
  result.local_prefill_tokens = options.local_prefill_tokens;
  result.prefix_key = prefix_key(options, guard);
  result.max_active = static_cast<std::size_t>(options.max_queue);
  result.queue_deadline = std::chrono::milliseconds(options.queue_deadline_ms);
  return result;
}

// One process of any role. Members are in the order of their making; stop() undoes it.
class Server {
 public:
  Server(ServeOptions options, Guard guard, std::shared_ptr<net::Fabric> fabric)
      : options_(std::move(options)),
        guard_(std::move(guard)),
        fabric_(std::move(fabric)),
        control_("baton-control"),
        io_(static_cast<std::size_t>(options_.io_threads)),
        tasks_(control_.executor()) {}

  int run();

 private:
  void start();
  [[nodiscard]] bool has_engine() const { return options_.role != NodeRole::kRouter; }
  void load_model();
  void make_transport();
  void make_owner();
  void make_peers();
  void make_http();
  void start_tasks();
  void announce();
  [[nodiscard]] router::Readiness readiness() const;
  asio::awaitable<void> watch_engine();
  asio::awaitable<void> wait_for_signal();
  asio::awaitable<void> drain();
  asio::awaitable<void> stop_control();
  void abandon_start();
  asio::awaitable<Status> start_transport();
  asio::awaitable<void> stop_transport();
  void consume_engine_events();
  template <class T>
  T on_control(asio::awaitable<T> work) {
    return asio::co_spawn(control_.executor(), std::move(work), asio::use_future).get();
  }

  ServeOptions options_;
  Guard guard_;
  std::shared_ptr<net::Fabric> fabric_;  // null: KV goes over TCP
  net::SystemAsyncClock clock_;
  const TimePoint started_ = clock_.now();
  net::EventLoop control_;
  net::IoPool io_;
  net::TaskGroup tasks_;
  MetricsPage metrics_;
  std::string tokenizer_digest_;
  std::optional<ServedModel> model_;
  std::unique_ptr<EngineHost> engine_;
  std::optional<handoff::EngineLink> link_;
  std::unique_ptr<handoff::TcpTransport> transport_;
  std::unique_ptr<handoff::ServingCoordinator> coordinator_;
  std::unique_ptr<OwnerLoop> owner_loop_;
  std::unique_ptr<PeerLoop> peers_;
  std::unique_ptr<ApiServer> http_;
  std::atomic<bool> draining_{false};
  bool stopping_ = false;  // control thread: the loops end by themselves
};

void Server::load_model() {
  const files::GgufFile file = or_die(files::GgufFile::open(options_.model_path));
  tokenizer_digest_ = files::to_hex(file.tokenizer_digest());
  if (owns_clients(options_)) {
    const std::string name = options_.served_model_name.empty()
                                 ? std::filesystem::path(options_.model_path).stem().string()
                                 : options_.served_model_name;
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    model_.emplace(ServedModel{name, std::chrono::duration_cast<std::chrono::seconds>(now).count(),
                               or_die(text::load_gguf_tokenizer(file)), std::nullopt});
    if (const std::string source = or_die(text::chat_template_source(file)); !source.empty()) {
      model_->chat_template = or_die(text::ChatTemplate::parse(source));
    }
  }
  if (has_engine()) {
    engine_ = std::make_unique<EngineHost>(options_, clock_, prefix_key(options_, guard_));
  }
}

void Server::make_transport() {
  if (options_.role == NodeRole::kSingle) {
    return;
  }
  message::NodeInfo info;
  info.id = NodeId{options_.node_id};
  info.role = options_.role;
  kv::KvLayout layout;
  std::string model_digest;
  if (engine_) {
    info.exactness_tag = engine_->info().exactness_tag;
    info.max_context_tokens = engine_->geometry().max_context_tokens;
    info.pool_tokens = engine_->geometry().pool_tokens;
    layout = engine_->info().layout;
    model_digest = engine_->info().model_digest;
  }
  handoff::TcpTransportOptions transport;
  transport.hello = handoff::make_hello(info, layout, model_digest, tokenizer_digest_);
  if (!options_.serving_bind.empty()) {
    transport.serving_bind = serving_address(options_);
  }
  transport.bulk_connections = static_cast<std::size_t>(options_.bulk_connections);
  transport.tls = guard_.nodes;
  transport.token = guard_.token;
  transport.fabric = fabric_;
  transport_ = std::make_unique<handoff::TcpTransport>(control_.executor(), &io_, transport);
  if (engine_) {
    link_ = engine_->link();
  }
  coordinator_ = std::make_unique<handoff::ServingCoordinator>(
      control_.executor(), coordinator_options(options_), transport_.get(),
      link_ ? &*link_ : nullptr, clock_);
  or_die(on_control(start_transport()));
}

void Server::make_owner() {
  if (!owns_clients(options_)) {
    return;
  }
  owner_loop_ = std::make_unique<OwnerLoop>(
      control_.executor(), clock_, router_options(options_, guard_, engine_.get()),
      engine_ ? &engine_->scheduler() : nullptr, coordinator_ ? &coordinator_->owner() : nullptr,
      std::chrono::duration_cast<Duration>(
          std::chrono::duration<double>(options_.sse_ping_interval_s)));
  if (engine_) {
    engine_->events().set_on_ready(
        [this] { asio::post(control_.executor(), [this] { consume_engine_events(); }); });
    return;
  }
  for (const NodeRole role : {NodeRole::kPrefill, NodeRole::kDecode}) {
    owner_loop_->await_role(role, source_of(options_, role));
  }
}

void Server::make_peers() {
  if (transport_) {
    std::optional<net::HostPort> serving;
    if (!options_.serving_bind.empty()) {
      serving = transport_->serving_address();
    }
    peers_ = std::make_unique<PeerLoop>(control_.executor(), membership_options(options_, serving),
                                        *transport_, *coordinator_, owner_loop_.get(), clock_);
    add_membership_metrics(metrics_, peers_->stats());
  }
}

void Server::consume_engine_events() {
  for (message::EngineEvent& event : engine_->events().drain()) {
    owner_loop_->on_engine_event(std::move(event));
  }
}

void Server::make_http() {
  if (!serves_http(options_)) {
    return;
  }
  const net::HostPort address = http_address(options_);
  ApiServerOptions api;
  api.http.host = address.host;
  api.http.port = address.port;
  api.http.tls = guard_.http;
  api.http.max_body_bytes = or_die(parse_bytes(options_.max_body, "--max-body"));
  api.http.max_bodies_bytes = bodies_bytes(options_, api.http.max_body_bytes);
  api.http.write_timeout = std::chrono::milliseconds(options_.write_timeout_ms);
  api.max_requests = static_cast<std::size_t>(options_.max_queue);
  // Replicas with one token name a prompt's cache namespace alike: what one of them had computed
  // serves the other's requests too.
  api.secret = guard_.token ? guard_.token->derive("cache namespaces") : random_hex(32);
  api.started = started_;
  api.self.id = NodeId{options_.node_id};
  api.self.role = options_.role;
  if (engine_) {
    api.self.max_context_tokens = engine_->geometry().max_context_tokens;
    api.self.pool_tokens = engine_->geometry().pool_tokens;
    api.local_load = [this] { return engine_->load(); };
  }
  http_ = std::make_unique<ApiServer>(io_.executor(0), api, api::KeyCheck(options_.api_keys),
                                      model_ ? &*model_ : nullptr, owner_loop_.get(), metrics_,
                                      [this] { return readiness(); });
  metrics_.add_gauge("baton_http_body_bytes",
                     "bodies being read or waiting to be tokenized; --max-bodies bounds them", {},
                     [this] { return static_cast<double>(http_->body_bytes()); });
}

router::Readiness Server::readiness() const {
  router::Readiness now;
  if (draining_) {
    now.missing.emplace_back("draining: this process is about to stop");
    return now;
  }
  if (engine_ && !engine_->alive()) {
    now.missing.emplace_back("the engine thread does not answer");
    return now;
  }
  // Whoever came now would wait past the queue deadline, by the look of it.
  if (engine_ &&
      engine_->without_room() > std::chrono::milliseconds(options_.queue_deadline_ms / 2)) {
    now.missing.emplace_back(
        "no KV block has become free for whoever is next, for half of "
        "--queue-deadline-ms");
    return now;
  }
  if (owner_loop_) {
    return owner_loop_->readiness();
  }
  now.ready = true;
  return now;
}

// A stuck engine must not look ready, and its requests must not hang.
asio::awaitable<void> Server::watch_engine() {
  while (!stopping_) {
    const bool alive = engine_->alive();
    owner_loop_->set_local_engine(alive, engine_->geometry().max_context_tokens);
    if (!alive && owner_loop_->active() > 0) {
      owner_loop_->fail_all({ErrorCode::kUnavailable, "the engine thread does not answer", "", 0});
    }
    co_await clock_.sleep_for(kWatchInterval);
  }
}

void Server::start_tasks() {
  if (coordinator_) {
    tasks_.spawn(coordinator_->run());
    tasks_.spawn(peers_->run_membership());
    tasks_.spawn(peers_->run());
  }
  if (owner_loop_) {
    tasks_.spawn(owner_loop_->run_timers());
    if (coordinator_) {
      tasks_.spawn(owner_loop_->run_owner_events());
    }
    if (engine_) {
      tasks_.spawn(watch_engine());
    }
  }
  if (engine_) {
    engine_->start();
  }
}

void Server::announce() {
  std::string line = "listening";
  if (http_) {
    line += fmt::format(" {}={}", guard_.http ? "https" : "http",
                        net::to_string({options_.host, http_->port()}));
  }
  if (transport_ && !options_.serving_bind.empty()) {
    line += fmt::format(" serving={}", net::to_string(transport_->serving_address()));
  }
  fmt::print("{}\n", line);
  std::fflush(stdout);
}

asio::awaitable<void> Server::wait_for_signal() {
  asio::signal_set signals(control_.executor(), SIGTERM, SIGINT);
  const auto [error, number] = co_await signals.async_wait(kTuple);
  log::info("{}: draining, at most {} s", number == SIGTERM ? "SIGTERM" : "SIGINT",
            options_.drain_timeout_s);
  signals.cancel();
  // A second signal ends the process at once.
  std::signal(SIGTERM, SIG_DFL);
  std::signal(SIGINT, SIG_DFL);
}

// Nothing new is taken; what runs may finish, for the drain timeout at most.
asio::awaitable<void> Server::drain() {
  draining_ = true;
  if (owner_loop_) {
    owner_loop_->begin_drain();
  }
  if (coordinator_) {
    coordinator_->begin_drain();
    peers_->begin_drain();
  }
  const TimePoint left_etcd_by = clock_.now() + kLeaveEtcd;
  const TimePoint end = clock_.now() + std::chrono::seconds(options_.drain_timeout_s);
  const auto busy = [this, left_etcd_by] {
    return (owner_loop_ && owner_loop_->active() > 0) ||
           (coordinator_ && !owner_loop_ && !coordinator_->idle()) ||
           (peers_ && peers_->registered() && clock_.now() < left_etcd_by);
  };
  while (busy() && clock_.now() < end) {
    co_await clock_.sleep_for(kDrainPoll);
  }
  if (owner_loop_ && owner_loop_->active() > 0) {
    log::warn("drain timeout: {} requests are cut", owner_loop_->active());
    owner_loop_->fail_all({ErrorCode::kUnavailable, "the server is stopping", "", 0});
  }
  if (http_) {
    co_await http_->drain(kLastWrites);
  }
}

asio::awaitable<void> Server::stop_control() {
  stopping_ = true;
  if (owner_loop_) {
    owner_loop_->stop();
  }
  if (coordinator_) {
    peers_->stop();
    coordinator_->stop();
  }
  // Every loop ends by its own flag: cancelling the coordinator would cut its wait for its tasks.
  while (tasks_.size() > 0) {
    co_await clock_.sleep_for(kDrainPoll);
  }
  tasks_.stop();
  co_await tasks_.wait_empty();
}

void Server::start() {
  load_model();
  make_transport();
  make_owner();
  make_peers();
  add_node_metrics(metrics_, options_.role, model_ ? model_->name : "",
                   engine_ ? &engine_->stats() : nullptr,
                   coordinator_ ? &coordinator_->stats() : nullptr,
                   engine_ && transport_ ? &transport_->stats() : nullptr,
                   owner_loop_ ? &owner_loop_->stats() : nullptr);
  make_http();
  if (http_) {
    or_die(http_->listen());
  }
}

asio::awaitable<Status> Server::start_transport() { co_return transport_->start(); }

asio::awaitable<void> Server::stop_transport() {
  transport_->shutdown();
  co_await transport_->stopped();
}

// A later part did not come up (its port is taken, say): what runs already must end before it goes.
void Server::abandon_start() {
  if (transport_) {
    on_control(stop_transport());
  }
  io_.stop();
  control_.stop();
}

int Server::run() {
  try {
    start();
  } catch (...) {
    abandon_start();
    throw;
  }
  asio::post(control_.executor(), [this] { start_tasks(); });
  announce();
  on_control(wait_for_signal());
  on_control(drain());
  if (http_) {
    http_->stop();
  }
  if (engine_) {
    engine_->stop();
  }
  on_control(stop_control());
  io_.stop();
  control_.stop();
  log::info("stopped");
  return 0;
}

}  // namespace

int run_serve(const ServeOptions& options) {
  validate(options);
  // Whoever reads our log may go (a pager, a log shipper): writing to nobody must not end the node.
  std::signal(SIGPIPE, SIG_IGN);
  or_die(failpoints::arm(options.failpoints));
  spdlog::set_level(spdlog::level::from_str(options.log_level));
  // A mistake in these is told now, not once the model is loaded.
  static_cast<void>(membership_options(options, net::HostPort{}));
  Guard guard = load_guard(options);
  if (!BATON_FAILPOINT("serve.no_early_port_check")) {  // as if the port were taken while we load
    check_can_listen(options, guard.guards_nodes());
  }
  std::shared_ptr<net::Fabric> fabric = load_fabric(options, guard);
  // Before any thread is made: all of them inherit it.
  or_die(use_cpu_mask(options.cpu_mask));
  ServeOptions resolved = options;
  if (resolved.node_id.empty()) {
    static constexpr const char* kNames[] = {"single", "prefill", "decode", "router"};
    resolved.node_id =
        fmt::format("{}-{}", kNames[static_cast<std::size_t>(options.role)], random_hex(8));
  }
  Server server(std::move(resolved), std::move(guard), std::move(fabric));
  return server.run();
}

}  // namespace baton::app
