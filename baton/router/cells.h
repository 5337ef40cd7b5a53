// The table of states and events of a sequence in the router, for baton/base/cells.h. Thread: any.
#pragma once

#include "baton/base/cells.h"

#include <cstdint>

namespace baton::router::cells {

enum class State : std::uint8_t {
  kNone,  // the request is not known: it has ended, or was left
  kHeld,
  kWaiting,
  kAsked,      // an attempt runs and has given no token yet
  kAnswering,  // and has given some
  kElsewhere,  // an attempt runs, and the event is of an earlier one or of a node without a part in
               // it
  kEnded,      // other choices of the request go on
};

enum class Event : std::uint8_t {
  kNextToken,
  kTokenAhead,
  kTokenAgain,
  kLastToken,
  kOtherToken,  // not the one that was given already, or beyond the limit
  kRefusedLater,
  kRefusedNever,
  kGivenUp,  // finished by the node, which another attempt may not meet
  kFailed,   // finished by the node, and about the request
  kNodeDown,
  kNodeUp,
  kClientGone,
  kStopped,   // its stop string is complete
  kWaitOver,  // by tick(), as the next two
  kRetryDue,
  kSilent,
};

CellTable& table();

}  // namespace baton::router::cells
