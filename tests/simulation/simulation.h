// Runs a plan and judges it. The promises: each stream is, token by token as it comes, that of the
// cold run, and ends whole or with an error that the faults allow; when the faults are over
// everything is connected again, serves as if nothing had been, and holds nothing; and all of it in
// bounded (virtual) time.
#pragma once

#include "tests/simulation/plan.h"
#include "tests/simulation/world.h"
#include <cstdint>
#include <string>

namespace baton::simulation {

// What happened in the runs; a suite in which nothing happens proves nothing.
struct Tally {
  std::uint64_t runs = 0;
  std::uint64_t calm_runs = 0;  // without a fault
  std::uint64_t requests = 0;
  std::uint64_t completed = 0;
  std::uint64_t refused = 0;  // 429 and 503 before the first token
  std::uint64_t lost = 0;     // as many attempts as one may lose, in a row
  std::uint64_t left = 0;
  std::uint64_t cut = 0;  // with their router
  std::uint64_t tokens = 0;
  std::uint64_t faults = 0;
  Duration virtual_time{};
  std::uint64_t heard = 0;  // tiles that routers knew of in nodes' caches at the end
  World::Totals world;
};
std::string describe(const Tally& tally);

struct Outcome {
  std::string failure;  // the first broken promise in words, or empty
  std::uint64_t digest = 0;
};

// print: every event as it happens.
Outcome run_plan(const Plan& plan, bool print, Tally& tally);

}  // namespace baton::simulation
