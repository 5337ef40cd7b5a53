// What a simulation does, drawn from one seed: the cluster, its requests, its faults. Data only;
// the same seed gives the same plan everywhere.
#pragma once

#include "baton/base/clock.h"
#include "baton/handoff/options.h"
#include "baton/message/node.h"
#include "baton/message/request.h"
#include "baton/router/policy.h"

#include "tests/handoff/cluster.h"
#include <cstdint>
#include <string>
#include <vector>

namespace baton::simulation {

struct NodePlan {
  std::string id;
  message::NodeRole role = message::NodeRole::kRouter;
  testing::NodeSetup setup;  // of an engine node
};

struct RequestPlan {
  message::Submit submit;
  std::int32_t choices = 1;
  std::string router;
  Duration at{};
  std::int32_t cancel_after_tokens = -1;  // the client leaves; -1: it stays
  Duration cancel_after{-1};              // the same, by time; < 0: it stays
  std::int32_t stop_at = -1;              // the first choice's stop string is complete there
};

enum class FaultKind : std::uint8_t {
  kKill,       // a vanishes, and is back, empty, when the fault ends
  kDrain,      // a takes nothing new; at the end it is stopped and started again
  kFreeze,     // a's engine stands still
  kReset,      // the control connection of a and b breaks
  kHalfClose,  // from the next frame on nothing arrives from a at b, which sees the connection end
  kPartition,  // between a and b, both ways
  kOneWay,     // from a to b
  kSlow,       // frames from a to b take `delay` more
  kCut,        // the connection breaks inside the next bulk frame from a to b
  kLose,       // the next bulk frame is lost with its connection, and a does not hear of it
  kCorrupt,    // a bit of the next frame from a to b flips
};

struct FaultPlan {
  FaultKind kind = FaultKind::kReset;
  std::string a;
  std::string b;
  Duration at{};
  std::uint64_t at_frame =
      0;  // > 0: when so many frames other than Beats were sent, instead of `at`
  Duration lasts{};
  Duration delay{};
};

struct Plan {
  std::uint64_t seed = 0;
  handoff::CoordinatorOptions options;  // self is not set
  std::vector<NodePlan> nodes;          // routers first
  std::vector<RequestPlan> requests;
  std::vector<FaultPlan> faults;
  router::PolicyKind policy = router::PolicyKind::kLeastLoaded;
  bool slices = false;    // handlers and engines interleave at random, not only when all is quiet
  Duration link_delay{};  // the most that a link always takes
  Duration bulk_time{};   // the most that a bulk frame takes to leave, and to land
  std::uint64_t run_seed{};  // of what is drawn while it runs
};

Plan draw_plan(std::uint64_t seed);
std::string describe(const Plan& plan);  // several lines, for a failure's message
std::string fault_name(FaultKind kind);

// A request as those of the plan, for a probe after the faults.
message::Submit draw_probe(std::uint64_t seed, std::uint64_t number);

}  // namespace baton::simulation
