// Flags of `baton bench handoff`.
#include "apps/baton/flags.h"
#include "apps/baton/options.h"
#include "bench/handoff/options.h"

namespace baton::app {

void add_bench_flags(CLI::App& app, BenchHandoffOptions& options) {
  options.masks = bench_handoff::default_masks(bench_handoff::available_cpu_list());
  flag(app, "-m,--model", options.model_path, "GGUF file");
  flag(app, "--lengths", options.lengths,
       "tokens of the prompts; short ones several times a round");
  flag(app, "--rounds", options.rounds, "counted ones; one more warms up")
      ->check(CLI::Range(1, 10'000));
  flag(app, "--masks", options.masks,
       "CPUs of the prefill and the decode node, two hex masks; the single node has the first");
  flag(app, "--kv-memory", options.kv_memory, "KV pool of each node in bytes (K, M, G)");
  flag(app, "--link", options.link,
       "shape the loopback of a network namespace to this rate: 1gbit, 200mbit, ... (root; needs "
       "iproute2)");
  app.add_flag("!--no-cancel", options.cancels, "leave clients that leave out");
  flag(app, "--json", options.json_path, "file for everything measured");
}

}  // namespace baton::app
