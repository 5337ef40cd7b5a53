// The cluster of a simulation, and what can happen to it: nodes come, go and stand still, links
// break, slow down and are cut off. Everything in one thread on virtual time.
#pragma once

#include "apps/baton/owner_loop.h"
#include "tests/handoff/cluster.h"
#include "tests/simulation/plan.h"
#include "tests/support/draw.h"
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace baton::simulation {

// All that happened, as a digest: two runs of one seed have the same. Printed when wanted.
class EventLog {
 public:
  explicit EventLog(bool print) : print_(print) {}
  void add(TimePoint now, const std::string& line);
  void add(std::uint64_t value);  // in the digest only
  [[nodiscard]] bool printed() const { return print_; }
  [[nodiscard]] std::uint64_t digest() const { return digest_; }

 private:
  bool print_;
  std::uint64_t digest_ = 14695981039346656037ULL;
};

// A router's control loop beside its coordinator; it outlives the router's death by a tick.
struct RouterHost {
  std::unique_ptr<app::OwnerLoop> loop;
  int running = 0;  // its coroutines
};

class World {
 public:
  World(const Plan& plan, EventLog& log);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  // As the nodes' diallers: every pair that should be connected, is not, and can be.
  void dial();
  [[nodiscard]] bool connected() const;  // all of them, from both ends

  void begin(const FaultPlan& fault);
  void end(const FaultPlan& fault);
  void heal();  // whatever is still wrong

  // Null while it is dead.
  [[nodiscard]] app::OwnerLoop* router(const std::string& id) const;
  // The names of routers that died and were not taken yet: their clients are cut off.
  std::vector<std::string> take_dead_routers() { return std::exchange(dead_routers_, {}); }
  // Handoffs, preemptions, retries of nodes that are gone are counted too.
  struct Totals {
    std::uint64_t handoffs = 0;
    std::uint64_t preemptions = 0;
    std::uint64_t cached_tokens = 0;
    std::uint64_t retries = 0;
    std::uint64_t replays = 0;
    std::uint64_t local = 0;
    std::uint64_t mismatches = 0;
    std::uint64_t protocol_errors = 0;
    std::uint64_t frames = 0;
  };
  [[nodiscard]] Totals totals() const;
  // What must be nothing when all requests have ended, in words; with `for_long` also what may be
  // remembered for a while.
  [[nodiscard]] std::string leftovers(bool for_long) const;
  // Stops every node politely. The reason why it does not end, or empty.
  std::string stop();

  // Called when so many frames other than Beats were sent.
  std::function<void(std::uint64_t)> on_frame;
  testing::Cluster cluster;

 private:
  using Direction = std::pair<std::string, std::string>;
  struct Armed {  // for the next frame of a direction
    FaultKind kind;
    Direction direction;
  };

  const NodePlan& plan_of(const std::string& id) const;
  [[nodiscard]] bool alive(const std::string& id) const { return cluster.nodes.contains(id); }
  void start(const std::string& id);
  void start_router(const std::string& id);
  void kill(const std::string& id, bool politely);
  void block(const Direction& direction, int by);
  void disarm(const FaultPlan& fault);
  std::optional<handoff::FaultAction> on_send(const NodeId& from, const NodeId& to,
                                              const wire::FrameHeader& header);
  Duration draw_time(Duration most);
  void count(const testing::Node& node, Totals& totals) const;
  void count(const app::OwnerLoop& loop, Totals& totals) const;

  const Plan& plan_;
  EventLog& log_;
  testing::Draw draw_;
  std::map<std::string, std::shared_ptr<RouterHost>> routers_;
  std::vector<std::shared_ptr<RouterHost>> old_routers_;
  std::vector<std::string> dead_routers_;
  std::map<std::string, int> lives_;
  std::vector<Direction> pairs_;                     // (who dials, whom)
  std::map<Direction, std::pair<int, int>> joined_;  // the lives that were connected last
  std::map<Direction, int> blocked_;
  std::map<Direction, Duration> delays_;  // of a link in good health
  std::vector<Armed> armed_;
  Totals gone_;
};

}  // namespace baton::simulation
