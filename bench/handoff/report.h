// What was measured, for people (a Markdown table and a line for each goal) and for programs. Pure.
// Thread: any.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "bench/handoff/machine.h"
#include "bench/handoff/samples.h"
#include "bench/handoff/summary.h"
#include <string>
#include <vector>

namespace baton::bench_handoff {

[[nodiscard]] std::string machine_line(const Machine& machine);
// A row for each length, and a line for each phase in which clients left.
[[nodiscard]] std::string table(const std::vector<LengthSummary>& lengths,
                                const CancelTimes& cancels);
// One line for each: the goal, what was measured by length, met or not met.
[[nodiscard]] std::string goal_lines(const std::vector<Verdict>& verdicts);

// All of it: table, goals, and what was compared.
[[nodiscard]] std::string report_text(const Machine& machine, const Measured& measured);
[[nodiscard]] nlohmann::ordered_json report_json(const Machine& machine, const Measured& measured,
                                                 bool interrupted);

}  // namespace baton::bench_handoff
