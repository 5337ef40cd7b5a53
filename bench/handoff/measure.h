// The measuring itself: the same cold prompts to all three servers, one request at a time, and the
// raw socket beside them; then clients that leave.
#pragma once

#include "baton/base/result.h"

#include "bench/handoff/ask.h"
#include "bench/handoff/options.h"
#include "bench/handoff/raw_socket.h"
#include "bench/handoff/samples.h"
#include "bench/handoff/servers.h"
#include <stop_token>
#include <vector>

namespace baton::bench_handoff {

// What the measuring needs; all of it outlives the calls.
struct Setup {
  const Plan& plan;
  const Servers& servers;
  RawSocket& raw;
  ServedModel model;
  std::stop_token stop;
};

// Warms everything up, then fills `lengths` round by round; what is there at an error is good.
// Progress goes to stderr. Errors: kInternal when the answers to one prompt differ, kProtocol when
// a request was not what it should be (cold, of 16 tokens, across two nodes), kUnavailable when it
// failed, kIo, kCancelled. Thread: Servers'.
Status measure_rounds(const Setup& setup, std::vector<LengthRounds>& lengths);

// Clients that leave the split server in mid-prefill and in mid-decode. Errors: kUnavailable when a
// request ends by itself, kDeadlineExceeded when blocks are not free a minute later, kCancelled.
Status measure_cancels(const Setup& setup, CancelTimes& times);

}  // namespace baton::bench_handoff
