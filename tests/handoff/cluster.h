// A whole cluster in one thread on virtual time, for tests: real coordinators, real engines over
// the fake backend, MockTransport between them, and a client on a router's Owner. Nothing waits for
// real; a run is the same each time.
#pragma once

#include "baton/engine/batch_scheduler.h"
#include "baton/handoff/coordinator.h"
#include "baton/handoff/mock_transport.h"
#include "baton/net/async_clock.h"

#include "tests/support/fake_backend.h"
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace baton::testing {

// What a client was given of one attempt.
struct Answer {
  std::vector<message::Token> tokens;  // by index, without duplicates
  bool finished = false;               // a last token came
  std::optional<Error> error;          // or the attempt ended without one
  bool later = false;                  // the error is a Refused(later)
  std::set<std::string> nodes;         // that gave tokens
  std::uint64_t kv_bytes = 0;          // the decode node's count
  int conflicts = 0;                   // an index twice with different tokens, or a gap
  [[nodiscard]] bool ended() const { return finished || error.has_value(); }
};

// (token, logprob bits, finish) of each index: what must be identical everywhere.
std::vector<std::string> canonical(const Answer& answer);

struct NodeSetup {
  FakeBackendOptions backend;
  engine::EngineConfig engine;
};

class Node {
 public:
  Node(class Cluster& cluster, const std::string& id, message::NodeRole role,
       const NodeSetup* setup);

  NodeId id;
  std::unique_ptr<FakeBackend> backend;  // null on a router
  std::unique_ptr<engine::EventQueue> events;
  std::unique_ptr<engine::BatchScheduler> engine;
  std::unique_ptr<handoff::MockTransport> transport;
  std::unique_ptr<handoff::ServingCoordinator> coordinator;
  bool frozen = false;           // as SIGSTOP on its engine thread
  bool ended = false;            // run() came back
  bool posted = true;            // the engine's mailbox may hold something
  bool driven = false;           // a router whose owner events somebody else takes
  std::function<bool()> in_use;  // it must stay, killed, while this says so

  [[nodiscard]] handoff::Owner& owner() const { return coordinator->owner(); }

 private:
  // As the engine's own thread, which looks at its mailbox once a second.
  std::uint64_t turns(TimePoint now);
  std::uint64_t turns_ = 0;
};

class Cluster {
 public:
  Cluster();
  ~Cluster();  // stops all, and audits every pool

  // Intervals used for nodes added later; short, so that faults end soon.
  handoff::CoordinatorOptions options;

  Node& add_engine(const std::string& id, message::NodeRole role, const NodeSetup& setup);
  Node& add_router(const std::string& id = "router");
  void connect_all();  // every pair, again after faults
  // Its process vanishes, or (politely) is stopped: what it still has to say goes out first.
  // Another of its name may be added at once. What is left of it in this process ends by itself and
  // is audited.
  void kill(const std::string& id, bool politely = false);
  [[nodiscard]] std::size_t ending() const { return gone_.size(); }

  // Sends both legs (p empty: d does all; d empty: p does all).
  SequenceKey start(Node& router, message::Submit submit, const std::string& p,
                    const std::string& d);
  Answer& answer(const SequenceKey& key) { return answers_[key]; }
  [[nodiscard]] const std::map<SequenceKey, Answer>& answers() const { return answers_; }
  [[nodiscard]] bool all_ended() const;

  // Turns the crank until done, or that much virtual time went by: false.
  bool run_until(const std::function<bool()>& done, Duration at_most);
  void run_for(Duration time) {
    run_until([] { return false; }, time);
  }
  // Every engine and coordinator has nothing left; pools are audited.
  [[nodiscard]] bool all_idle() const;
  // What each node still has, for messages of failed tests.
  [[nodiscard]] std::string leftovers() const;

  asio::io_context context;
  net::VirtualClock clock;
  handoff::MockNetwork network{context.get_executor(), &clock};
  std::map<std::string, std::unique_ptr<Node>> nodes;
  bool bad_rows_expected = false;  // a test that poisons KV
  // How many handlers run between two looks at the engines; 0, and without it: all that are ready.
  std::function<std::size_t()> slice;

 private:
  bool turn();
  bool turn(Node& node);
  void reap(bool all);
  static void audit(Node& node, bool bad_rows_expected);
  void take(Node& router);

  std::map<SequenceKey, Answer> answers_;
  std::vector<std::unique_ptr<Node>> gone_;  // killed, and not at their end yet
};

// A request with `tokens` prompt ids drawn from `seed`. Greedy when temperature is 0.
message::Submit make_submit(std::uint64_t seed, std::int32_t prompt_tokens, std::int32_t max_tokens,
                            float temperature = 0.0F);

// What a cold single node answers.
std::vector<std::string> single_node_answer(const NodeSetup& setup, const message::Submit& submit);

}  // namespace baton::testing
