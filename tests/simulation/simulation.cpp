#include "tests/simulation/simulation.h"

#include "baton/base/check.h"

#include <fmt/format.h>

#include "tests/simulation/client.h"
#include <algorithm>
#include <map>
#include <utility>

namespace baton::simulation {

namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Duration kRedial = milliseconds(50);
// Far above every deadline of the plan: what is not over by then hangs.
constexpr Duration kMostOfAll = seconds(90);
constexpr Duration kMostToReconnect = seconds(5);
constexpr Duration kMostToBeIdle = seconds(12);
// A cancel frees both sides within 100 ms, or a step; and what is on the wire arrives first.
constexpr Duration kMostToBeFree = milliseconds(100);
constexpr Duration kMostOfProbe = seconds(10);
constexpr std::uint32_t kMaxAttempts = 8;  // router::RouterOptions' own

class Run {
 public:
  Run(const Plan& plan, bool print, Tally& tally)
      : plan_(plan), tally_(tally), log_(print), world_(plan, log_), bugs_(bug_count()) {}

  // What was still to happen does not any more.
  ~Run() {
    over_ = true;
    world_.on_frame = {};
    static_cast<void>(world_.cluster.run_until([this] { return pending_ == 0; }, kMostOfAll));
  }
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  Outcome go() {
    schedule_plan();
    run_phases();
    if (failure_.empty() && bug_count() > bugs_) {
      failure_ = "a BATON_BUG was reported";
    }
    log_.add(now(), failure_.empty() ? "well" : "FAILED: " + failure_);
    count();
    return {failure_, log_.digest()};
  }

 private:
  using State = Client::State;

  [[nodiscard]] TimePoint now() const { return world_.cluster.clock.now(); }
  void fail(const std::string& why) {
    if (failure_.empty()) {
      failure_ = why;
    }
  }

  // ---- time ----------------------------------------------------------------------------------

  // Between two handlers of the cluster's, when it is time.
  void at(TimePoint when, std::function<void()> what) {
    ++pending_;
    asio::co_spawn(world_.cluster.context, wait_and_do(when, std::move(what)),
                   [this](const std::exception_ptr& failure) {
                     BATON_CHECK(failure == nullptr, "an event of the plan threw");
                     --pending_;
                   });
  }
  asio::awaitable<void> wait_and_do(TimePoint when, std::function<void()> what) {
    co_await world_.cluster.clock.sleep_until(when);
    if (!over_) {
      what();
    }
  }

  void redial() {
    world_.dial();
    at(now() + kRedial, [this] { redial(); });
  }

  // Until done, a failure, or so much virtual time: false.
  bool run_until(const std::function<bool()>& done, Duration at_most) {
    const bool over = world_.cluster.run_until(
        [&] {
          observe();
          return !failure_.empty() || done();
        },
        at_most);
    return over && failure_.empty();
  }
  void run_for(Duration time) {
    run_until([] { return false; }, time);
  }

  // ---- the plan ------------------------------------------------------------------------------

  void schedule_plan() {
    redial();
    run_for(milliseconds(60));
    const TimePoint begin = now();
    for (const RequestPlan& request : plan_.requests) {
      add_client(request, begin + request.at);
    }
    for (const FaultPlan& fault : plan_.faults) {
      if (fault.at_frame == 0) {
        at(begin + fault.at, [this, &fault] { strike(fault); });
      }
    }
    // In the midst of what the frame is part of, as a network and a process would.
    world_.on_frame = [this](std::uint64_t frame) {
      for (const FaultPlan& fault : plan_.faults) {
        if (fault.at_frame == frame) {
          asio::post(world_.cluster.context, [this, &fault] { strike(fault); });
        }
      }
    };
  }

  void add_client(const RequestPlan& request, TimePoint when) {
    std::vector<std::vector<message::Token>> cold;
    for (std::uint32_t choice = 0; choice < static_cast<std::uint32_t>(request.choices); ++choice) {
      message::Submit submit = request.submit;
      submit.key.choice = Choice{choice};
      cold.push_back(cold_run(first_engine().setup, std::move(submit)));
    }
    clients_.push_back(std::make_unique<Client>(request, std::move(cold)));
    Client* const client = clients_.back().get();
    at(when, [this, client] { send(*client); });
    if (request.cancel_after >= Duration{}) {
      at(when + request.cancel_after, [this, client] { leave(*client); });
    }
  }

  [[nodiscard]] const NodePlan& first_engine() const {
    return *std::find_if(plan_.nodes.begin(), plan_.nodes.end(), [](const NodePlan& node) {
      return node.role != message::NodeRole::kRouter;
    });
  }

  void strike(const FaultPlan& fault) {
    if (faults_over_) {
      return;
    }
    ++tally_.faults;
    ++faults_under_way_;
    world_.begin(fault);
    at(now() + fault.lasts, [this, &fault] {
      world_.end(fault);
      --faults_under_way_;
    });
  }

  // ---- clients -------------------------------------------------------------------------------

  void send(Client& client) {
    const RequestPlan& request = client.plan();
    auto stream = client.start(world_.cluster.context.get_executor());
    app::OwnerLoop* const router = world_.router(request.router);
    log_.add(now(), fmt::format("request {} to {}{}", name(client), request.router,
                                router == nullptr ? ", which is dead" : ""));
    if (router == nullptr) {
      client.cut();
      return;
    }
    std::vector<message::Submit> choices(static_cast<std::size_t>(request.choices), request.submit);
    for (std::size_t choice = 0; choice < choices.size(); ++choice) {
      choices[choice].key.choice = Choice{static_cast<std::uint32_t>(choice)};
    }
    router->start(std::move(choices), {}, std::move(stream));
  }

  void leave(Client& client) {
    app::OwnerLoop* const router = world_.router(client.plan().router);
    if (client.state() == State::kRunning && router != nullptr) {
      log_.add(now(), fmt::format("client {} leaves", name(client)));
      router->client_gone(client.id());
      client.leave();
    }
  }

  // Every turn: at no moment may a client see what the cold run would not show.
  void observe() {
    for (const std::string& dead : world_.take_dead_routers()) {
      for (const auto& client : clients_) {
        if (client->plan().router == dead && client->state() == State::kRunning) {
          client->cut();
        }
      }
    }
    for (const auto& each : clients_) {
      observe(*each);
    }
  }
  void observe(Client& client) {
    const State before = client.state();
    const std::size_t tokens = client.tokens();
    if (const std::string broken = client.look(); !broken.empty()) {
      fail(broken);
    }
    if (client.tokens() != tokens) {
      log_.add(now(), fmt::format("client {} has {} tokens", name(client), client.tokens()));
    }
    if (client.state() == State::kCompleted && before != State::kCompleted) {
      log_.add(now(), fmt::format("client {} has all", name(client)));
    }
    if (client.state() == State::kFailed && before != State::kFailed) {
      log_.add(now(),
               fmt::format("client {} has an error: {}", name(client), client.error()->message));
      begin_judging(client);
    }
    app::OwnerLoop* const router = world_.router(client.plan().router);
    if (router != nullptr && client.wants_stop()) {
      router->stop_choice(client.id(), Choice{0});
    }
    if (client.wants_to_leave()) {
      leave(client);
    }
  }

  static std::string name(const Client& client) { return to_string(client.id()).substr(0, 8); }

  // ---- errors --------------------------------------------------------------------------------

  // An error is honest when the router's own time line of the request says so.
  void begin_judging(const Client& client) {
    app::OwnerLoop* const router = world_.router(client.plan().router);
    if (router == nullptr) {
      return;
    }
    ++judging_;
    asio::co_spawn(world_.cluster.context, router->view(),
                   [this, &client](const std::exception_ptr&, const app::OwnerView& view) {
                     --judging_;
                     judge(client, view);
                   });
  }

  static std::uint32_t attempts_of(const Client& client, Choice choice,
                                   const router::RequestHistory& history) {
    const auto tokens = static_cast<std::int32_t>(client.tokens(choice));
    return static_cast<std::uint32_t>(std::count_if(
        history.events.begin(), history.events.end(), [&](const router::HistoryEvent& event) {
          return event.kind == router::EventKind::kSent && event.choice == choice &&
                 event.tokens == tokens;
        }));
  }

  void judge(const Client& client, const app::OwnerView& view) {
    const Error& error = *client.error();
    const auto history =
        std::find_if(view.requests.begin(), view.requests.end(),
                     [&](const router::RequestHistory& each) { return each.id == client.id(); });
    const bool calm = plan_.faults.empty() || probing_;
    if (history == view.requests.end()) {
      ++tally_.refused;
      if (calm || error.code != ErrorCode::kUnavailable) {
        fail(fmt::format("{} was turned away: {}", name(client), error.message));
      }
      return;
    }
    std::uint32_t attempts = 0;  // since the last token, of the choice that has most
    for (std::uint32_t choice = 0; choice < static_cast<std::uint32_t>(client.plan().choices);
         ++choice) {
      attempts = std::max(attempts, attempts_of(client, Choice{choice}, *history));
    }
    if (error.code == ErrorCode::kOverloaded && client.tokens() == 0 && attempts >= 2) {
      ++tally_.refused;  // 429: a node that had no room has none again
    } else if (!calm && attempts >= kMaxAttempts) {
      ++tally_.lost;
    } else {
      fail(fmt::format("{} was lost after {} tokens and {} attempts: {}", name(client),
                       client.tokens(), attempts, error.message));
    }
  }

  // ---- phases --------------------------------------------------------------------------------

  [[nodiscard]] bool all_over() const {
    return judging_ == 0 && std::all_of(clients_.begin(), clients_.end(),
                                        [](const auto& client) { return client->over(); });
  }

  void run_phases() {
    if (!run_until([this] { return all_over() && faults_under_way_ == 0; }, kMostOfAll)) {
      fail("hangs: " + describe_open());
      return;
    }
    faults_over_ = true;
    if (plan_.faults.empty()) {
      check_calm();
    }
    if (!run_until([this] { return world_.connected(); }, kMostToReconnect)) {
      fail("the nodes do not find together again");
    }
    if (!run_until([this] { return world_.leftovers(false).empty(); }, kMostToBeIdle)) {
      fail("something is left: " + world_.leftovers(false));
    }
    probe();
    if (!run_until([this] { return world_.leftovers(false).empty(); }, kMostToBeIdle)) {
      fail("something is left of the probes: " + world_.leftovers(false));
    }
    forget();
    if (failure_.empty()) {
      over_ = true;  // nobody dials any more
      tally_.virtual_time += now().time_since_epoch() - milliseconds(handoff::kTombstoneMs);
      fail_if(world_.stop());
    }
  }
  void fail_if(const std::string& why) {
    if (!why.empty()) {
      fail(why);
    }
  }

  [[nodiscard]] std::string describe_open() const {
    std::string text;
    for (const auto& client : clients_) {
      if (!client->over()) {
        text += fmt::format("{} has {} tokens; ", name(*client), client->tokens());
      }
    }
    return text + world_.cluster.leftovers();
  }

  // Without a fault nothing is tried twice but for want of room, nobody breaks the protocol, and
  // what is over, or was left by its client, is gone everywhere at once.
  void check_calm() {
    if (!run_until([this] { return world_.leftovers(false).empty(); }, kMostToBeFree)) {
      fail("not free in time: " + world_.leftovers(false));
    }
    if (world_.totals().protocol_errors > 0) {
      fail("a protocol error without a fault");
    }
    for (const NodePlan& node : plan_.nodes) {
      if (app::OwnerLoop* router = world_.router(node.id)) {
        ++judging_;
        asio::co_spawn(world_.cluster.context, router->view(),
                       [this](const std::exception_ptr&, const app::OwnerView& view) {
                         --judging_;
                         judge_calm(view);
                       });
      }
    }
    run_until([this] { return judging_ == 0; }, seconds(1));
  }
  void judge_calm(const app::OwnerView& view) {
    for (const router::RequestHistory& request : view.requests) {
      for (const router::HistoryEvent& event : request.events) {
        if (event.kind == router::EventKind::kLost && !is_about_room(event.reason)) {
          fail(fmt::format("{} lost an attempt without a fault: {}",
                           to_string(request.id).substr(0, 8), event.reason));
        }
      }
    }
  }

  static bool is_about_room(const std::string& reason) {
    const auto says = [&](const char* what) { return reason.find(what) != std::string::npos; };
    return says("no room") || says("needed its room") || says("full") || says("too many") ||
           says("wait already");
  }

  // Each router serves one more, at the first attempt; one after the other, once nothing is left of
  // the one before: the smallest engine's mailbox holds no more.
  void probe() {
    run_for(milliseconds(400));  // Beats say who is not draining any more
    probing_ = true;
    const World::Totals before = world_.totals();
    for (const NodePlan& node : plan_.nodes) {
      if (node.role == message::NodeRole::kRouter) {
        RequestPlan request;
        request.submit = draw_probe(plan_.seed, clients_.size());
        request.router = node.id;
        add_client(request, now());
        if (!run_until([this] { return all_over() && world_.leftovers(false).empty(); },
                       kMostOfProbe)) {
          fail("a probe hangs: " + describe_open());
        }
      }
    }
    const World::Totals after = world_.totals();
    if (after.retries + after.replays != before.retries + before.replays) {
      fail("a probe took more than one attempt");
    }
  }

  // The time of a tombstone goes by at once.
  void forget() {
    run_for(seconds(1));  // nothing is on its way any more
    check_heard();
    if (failure_.empty()) {
      world_.cluster.clock.advance(milliseconds(handoff::kTombstoneMs + 1'000));
      run_for(milliseconds(200));
      fail_if(world_.leftovers(true));
    }
  }

  // What routers were told change by change is what they are told when all is told anew.
  void check_heard() {
    const auto heard = [this] {
      std::map<std::string, std::uint64_t> names;
      for (const NodePlan& node : plan_.nodes) {
        if (app::OwnerLoop* router = world_.router(node.id)) {
          names[node.id] = router->stats().prefixes_reported;
        }
      }
      return names;
    };
    if (!plan_.options.hear_cached || !failure_.empty()) {
      return;
    }
    const auto by_changes = heard();
    for (auto& [id, node] : world_.cluster.nodes) {
      if (node->engine) {
        node->posted = node->engine->post(message::WatchPrefixes{});
      }
    }
    run_for(seconds(1));
    for (const auto& [id, names] : heard()) {
      if (names != by_changes.at(id)) {
        fail(fmt::format("{} had heard of {} tiles of {}", id, by_changes.at(id), names));
      }
      tally_.heard += names;
    }
  }

  void count() {
    ++tally_.runs;
    tally_.calm_runs += plan_.faults.empty() ? 1 : 0;
    const World::Totals totals = world_.totals();
    tally_.world.handoffs += totals.handoffs;
    tally_.world.preemptions += totals.preemptions;
    tally_.world.cached_tokens += totals.cached_tokens;
    tally_.world.retries += totals.retries;
    tally_.world.replays += totals.replays;
    tally_.world.local += totals.local;
    tally_.world.frames += totals.frames;
    if (totals.mismatches > 0) {
      fail("two nodes disagreed about a token");
    }
    for (const auto& client : clients_) {
      ++tally_.requests;
      tally_.tokens += client->tokens();
      tally_.completed += client->state() == State::kCompleted ? 1 : 0;
      tally_.left += client->state() == State::kLeft ? 1 : 0;
      tally_.cut += client->state() == State::kCut ? 1 : 0;
    }
  }

  const Plan& plan_;
  Tally& tally_;
  EventLog log_;
  World world_;
  const std::uint64_t bugs_;
  std::vector<std::unique_ptr<Client>> clients_;
  std::string failure_;
  int faults_under_way_ = 0;
  int judging_ = 0;
  int pending_ = 0;    // events that have not come yet
  bool over_ = false;  // and will not
  bool faults_over_ = false;
  bool probing_ = false;
};

}  // namespace

std::string describe(const Tally& tally) {
  return fmt::format(
      "{} runs ({} without a fault), {:.0f} s of virtual time, {} faults; {} requests: {} "
      "complete, {} left, {} cut with their router, {} refused, {} lost; {} tokens, {} prompt rows "
      "cached, {} handoff ends, {} on one node, {} retries, {} replays, {} preemptions, {} frames, "
      "{} tiles heard of",
      tally.runs, tally.calm_runs, std::chrono::duration<double>(tally.virtual_time).count(),
      tally.faults, tally.requests, tally.completed, tally.left, tally.cut, tally.refused,
      tally.lost, tally.tokens, tally.world.cached_tokens, tally.world.handoffs, tally.world.local,
      tally.world.retries, tally.world.replays, tally.world.preemptions, tally.world.frames,
      tally.heard);
}

Outcome run_plan(const Plan& plan, bool print, Tally& tally) {
  return Run(plan, print, tally).go();
}

}  // namespace baton::simulation
