// Runs a schedule on real engines and CPU backends, in one thread and on virtual time, and compares
// every stream with a cold run of its request alone.
#pragma once

#include "tests/property/models.h"
#include "tests/property/schedule.h"
#include <cstdint>
#include <string>
#include <vector>

namespace baton::property {

// What happened in the schedules that were run; a suite that never preempts proves nothing.
struct Tally {
  std::uint64_t schedules = 0;
  std::uint64_t streams = 0;
  std::uint64_t tokens = 0;
  std::uint64_t cached_tokens = 0;
  std::uint64_t computed_tokens = 0;
  std::uint64_t preemptions = 0;
  std::uint64_t handoffs = 0;
  std::uint64_t sent_away = 0;  // prefills asked for again, as they gave their room to others
  std::uint64_t cancelled = 0;
  std::uint64_t replays = 0;
  std::uint64_t three_parts = 0;  // streams with keys in three parts or more
};

// bf16 and f32, and what else the backend has for heads of this size.
std::vector<kv::KvDtype> supported_kv_dtypes(const TestModel& model);

// The first difference in words, or empty.
std::string run_schedule(const Schedule& schedule, const std::vector<TestModel>& models,
                         Tally& tally);

}  // namespace baton::property
