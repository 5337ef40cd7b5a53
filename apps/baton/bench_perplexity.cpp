#include "apps/baton/bench_perplexity.h"

#include "baton/backend/cpu/cpu_backend.h"
#include "baton/backend/fixed_tables.h"
#include "baton/base/cpu_features.h"
#include "baton/files/gguf.h"
#include "baton/model/model.h"
#include "baton/text/gguf_tokenizer.h"

#include <fmt/format.h>
#include <fmt/os.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <memory>
#include <optional>
#include <span>

namespace baton::app {

namespace {

struct Scored {
  TokenId token = 0;
  double logprob = 0;
  TokenId likeliest = 0;
  double margin = 0;  // between the two largest logits
};

Scored score(std::span<const float> logits, TokenId token) {
  const auto top = std::ranges::max_element(logits);
  double sum = 0;
  float second = -std::numeric_limits<float>::infinity();
  for (auto at = logits.begin(); at != logits.end(); ++at) {
    sum += std::exp(static_cast<double>(*at) - static_cast<double>(*top));
    if (at != top) {
      second = std::max(second, *at);
    }
  }
  return {token,
          static_cast<double>(logits[static_cast<std::size_t>(token)]) - static_cast<double>(*top) -
              std::log(sum),
          static_cast<TokenId>(top - logits.begin()),
          static_cast<double>(*top) - static_cast<double>(second)};
}

Result<std::vector<TokenId>> read_tokens(const BenchPerplexityOptions& options) {
  std::ifstream stream(options.text_path, std::ios::binary);
  if (!stream) {
    return fail(ErrorCode::kNotFound, fmt::format("cannot read {}", options.text_path));
  }
  const std::string text{std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
  BATON_TRY(const files::GgufFile file, files::GgufFile::open(options.model_path));
  BATON_TRY(const text::Tokenizer tokenizer, text::load_gguf_tokenizer(file));
  std::vector<TokenId> tokens = tokenizer.encode_plain(text);
  if (tokens.size() < static_cast<std::size_t>(options.context_tokens)) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{} holds {} tokens, a window of {} is needed", options.text_path,
                            tokens.size(), options.context_tokens));
  }
  return tokens;
}

Result<std::unique_ptr<backend::Backend>> make_backend(const BenchPerplexityOptions& options,
                                                       const std::string& kv_dtype) {
  backend::CpuBackendOptions cpu;
  cpu.model_path = options.model_path;
  cpu.isa = options.isa;
  cpu.threads = options.threads == 0 ? available_cpus() : options.threads;
  BATON_TRY(cpu.kv_dtype, kv::parse_kv_dtype(kv_dtype));
  cpu.block_tokens = kv::kTileTokens;
  cpu.max_context_tokens = options.context_tokens;
  cpu.max_step_tokens = options.context_tokens;
  cpu.max_num_seqs = options.context_tokens / 2;  // rows of logits in one step
  // One window; whatever its dtype, no value is wider than f32.
  BATON_TRY(const files::GgufFile file, files::GgufFile::open(options.model_path));
  BATON_TRY(const model::ModelDescription description, model::describe_model(file));
  const model::ModelConfig& config = description.config;
  cpu.kv_memory_bytes = std::uint64_t{2} * sizeof(float) *
                        static_cast<std::uint64_t>(config.layers) *
                        static_cast<std::uint64_t>(config.kv_heads * config.head_dim) *
                        static_cast<std::uint64_t>(options.context_tokens + kv::kTileTokens);
  return backend::make_cpu_backend(cpu);
}

// The second half of a window: tokens [context / 2 + 1, context), each from the logits before it.
std::vector<Scored> score_window(backend::Backend& backend, std::span<const TokenId> window) {
  const auto rows = static_cast<std::int32_t>(window.size());
  const auto tables = backend::FixedTables(backend.info(), rows).at(0, 0, rows);
  sample::SamplingParams greedy;
  greedy.temperature = 0.0F;
  const std::size_t first = window.size() / 2;
  backend::SequencePlan part;
  part.tokens = window.first(window.size() - 1);
  part.tables = backend::FixedTables::spans(tables);
  part.logit_rows = static_cast<std::int32_t>(part.tokens.size() - first);
  part.sampling = &greedy;
  part.keep_logits = true;
  backend::StepPlan plan;
  plan.sequences.push_back(part);
  const backend::StepResult result = backend.collect(backend.launch(plan));
  const std::span<const float> logits = result.tokens[0].logits;
  const auto vocabulary = static_cast<std::size_t>(backend.info().vocabulary);
  std::vector<Scored> scored;
  for (std::size_t at = first; at + 1 < window.size(); ++at) {
    scored.push_back(score(logits.subspan((at - first) * vocabulary, vocabulary), window[at + 1]));
  }
  return scored;
}

Result<nlohmann::ordered_json> run_one(const BenchPerplexityOptions& options,
                                       std::span<const TokenId> tokens,
                                       const std::string& kv_dtype) {
  BATON_TRY(const std::unique_ptr<backend::Backend> backend, make_backend(options, kv_dtype));
  std::optional<fmt::ostream> lines;
  if (!options.per_token_path.empty()) {
    lines.emplace(fmt::output_file(options.per_token_path));
  }
  const auto context = static_cast<std::size_t>(options.context_tokens);
  double sum = 0;
  double squares = 0;
  double count = 0;
  for (std::size_t start = 0; start + context <= tokens.size(); start += context) {
    std::size_t position = start + context / 2 + 1;
    for (const Scored& one : score_window(*backend, tokens.subspan(start, context))) {
      sum -= one.logprob;
      squares += one.logprob * one.logprob;
      count += 1;
      if (lines) {
        lines->print("{} {} {:.6f} {} {:.6f}\n", position, one.token, one.logprob, one.likeliest,
                     one.margin);
      }
      ++position;
    }
  }
  const double mean = sum / count;
  const double error = std::sqrt(std::max(0.0, squares / count - mean * mean) / count);
  return nlohmann::ordered_json{
      {"model", std::filesystem::path(options.model_path).stem().string()},
      {"text", std::filesystem::path(options.text_path).filename().string()},
      {"text_tokens", tokens.size()},
      {"scored_tokens", static_cast<std::int64_t>(count)},
      {"context", options.context_tokens},
      {"kv_dtype", kv_dtype},
      {"perplexity", std::exp(mean)},
      {"perplexity_error", std::exp(mean) * error},
      {"nll", mean}};
}

Status run_all(const BenchPerplexityOptions& options, nlohmann::ordered_json& out) {
  if (options.context_tokens < 64 || options.context_tokens % 2 != 0) {
    return fail(ErrorCode::kInvalidArgument, "-c must be even and at least 64");
  }
  if (!options.per_token_path.empty() && options.kv_dtypes.size() != 1) {
    return fail(ErrorCode::kInvalidArgument, "--per-token goes with one --kv-dtype");
  }
  BATON_TRY(const std::vector<TokenId> tokens, read_tokens(options));
  for (const std::string& kv_dtype : options.kv_dtypes) {
    BATON_TRY(nlohmann::ordered_json one, run_one(options, tokens, kv_dtype));
    out.push_back(std::move(one));
  }
  return {};
}

}  // namespace

int run_bench_perplexity(const BenchPerplexityOptions& options) {
  nlohmann::ordered_json results = nlohmann::ordered_json::array();
  const Status status = run_all(options, results);
  if (!status) {
    fmt::print(stderr, "baton bench perplexity: {}\n", status.error().message);
    return 1;
  }
  std::puts(results.dump(2).c_str());
  return 0;
}

}  // namespace baton::app
