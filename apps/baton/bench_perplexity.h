// `baton bench perplexity`: how well the model, as this engine computes it, predicts a text. As
// llama.cpp's tool does it: the text is cut into windows of the context's length, each starts with
// an empty cache, and tokens of its second half are scored. Thread: main.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace baton::app {

struct BenchPerplexityOptions {
  std::string model_path;                      // -m
  std::string text_path;                       // -f: UTF-8
  std::int32_t context_tokens = 512;           // -c
  std::int32_t threads = 0;                    // -t; 0 = as many as this process may use
  std::string isa = "auto";                    // --isa
  std::vector<std::string> kv_dtypes{"bf16"};  // --kv-dtype
  // --per-token: one line per scored token (position in the text, token, its log probability, the
  // likeliest token, logit margin of that to the next), for comparisons. Empty: none. Only with
  // one KV dtype.
  std::string per_token_path;
};

// Prints one JSON array to stdout: an object per KV dtype. Returns the process's exit code; errors
// are one line on stderr.
int run_bench_perplexity(const BenchPerplexityOptions& options);

}  // namespace baton::app
