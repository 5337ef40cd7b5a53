// Which cells of the tables of states and events the runs have met: printed, and judged against
// what a run of that many seeds must meet.
#pragma once

#include <string>

namespace baton::simulation {

// The four tables, with what each letter in them means.
std::string describe_cells();

// The cells that should have been met and were not, and those that were although they cannot be:
// one line each. Empty when all is as it is said to be.
std::string missing_cells();

}  // namespace baton::simulation
