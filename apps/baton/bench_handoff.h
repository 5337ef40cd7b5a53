// `baton bench handoff`: what the split costs a client, and what the transfer of KV reaches of a
// plain socket, by length of the prompt, from processes that it starts itself (bench/handoff has
// the measuring). Thread: main.
#pragma once

#include <cstdint>
#include <string>

namespace baton::app {

struct BenchHandoffOptions {
  std::string model_path;                              // -m
  std::string lengths = "16,256,1024,2048,4096,8128";  // the last: SmolLM2's context less an answer
  std::int32_t rounds = 3;                             // counted ones
  std::string masks;                                   // --masks; empty: the first two CPUs
  std::string kv_memory = "512M";                      // of each engine node
  std::string link;                                    // a rate of tc; empty: plain loopback
  std::string json_path;                               // empty: none
  bool cancels = true;
};

// Prints to stdout, progress to stderr. Returns the process's exit code: 0; 2 for flags that are
// wrong (one line on stderr that names the flag), 1 when something failed; after Ctrl-C or SIGTERM
// what has been measured is printed, and the code is 128 + the signal's number. In any case no
// process is left.
int run_bench_handoff(const BenchHandoffOptions& options);

}  // namespace baton::app
