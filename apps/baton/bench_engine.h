// `baton bench engine`: what llama-bench prints, for this engine. It drives a Backend directly: no
// scheduler, no HTTP. Tests are named as there: pp512 (prefill 512 tokens), tg128 (decode 128
// tokens), with `-d` pp512 @ d1024. Beside tokens/s it says what the machine did: GMAC/s, GB/s, and
// their shares of limits that it measures itself at start. Thread: main.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace baton::app {

enum class BenchFormat : std::uint8_t { kTable, kJson, kCsv };
enum class BenchLoadFormat : std::uint8_t { kFile, kDummy };

struct BenchEngineOptions {
  std::string model_path;  // -m
  BenchLoadFormat load_format = BenchLoadFormat::kFile;
  std::string shape;                                // --shape, with kDummy
  std::string dtype = "q4_0";                       // --dtype, with kDummy
  bool measure_limits = true;                       // --no-limits: shares are not known then
  std::vector<std::int32_t> prompt_tokens{512};     // -p; 0 = none
  std::vector<std::int32_t> generated_tokens{128};  // -n; 0 = none
  std::vector<std::int32_t> batch_sequences{1};     // -b: sequences decoded side by side
  std::vector<std::int32_t> threads{0};             // -t; 0 = as many as this process may use
  std::vector<std::int32_t> depths{0};              // -d: tokens already in the cache
  std::int32_t repetitions = 5;                     // -r
  BenchFormat format = BenchFormat::kTable;         // -o
  std::string isa = "auto";                         // --isa
  std::string kv_dtype = "bf16";                    // --kv-dtype
  std::int32_t step_tokens = 512;                   // -ub: rows of one prefill step
};

// Prints to stdout. Returns the process's exit code; errors are one line on stderr.
int run_bench_engine(const BenchEngineOptions& options);

}  // namespace baton::app
