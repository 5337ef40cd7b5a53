#include "apps/baton/bench_engine.h"

#include "baton/backend/cpu/cpu_backend.h"
#include "baton/base/clock.h"
#include "baton/base/cpu_features.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <numeric>
#include <random>

namespace baton::app {

namespace {

struct Measurement {
  std::string test;
  std::int32_t batch = 0;
  std::int32_t threads = 0;
  std::int32_t depth = 0;
  std::vector<double> tokens_per_second;  // one per repetition, ascending

  [[nodiscard]] double median() const {
    const std::size_t middle = tokens_per_second.size() / 2;
    return tokens_per_second.size() % 2 == 1
               ? tokens_per_second[middle]
               : (tokens_per_second[middle - 1] + tokens_per_second[middle]) / 2;
  }
  [[nodiscard]] double deviation() const {
    const double count = static_cast<double>(tokens_per_second.size());
    const double mean =
        std::accumulate(tokens_per_second.begin(), tokens_per_second.end(), 0.0) / count;
    double sum = 0;
    for (const double value : tokens_per_second) {
      sum += (value - mean) * (value - mean);
    }
    return count > 1 ? std::sqrt(sum / (count - 1)) : 0.0;
  }
};

// Sequences of random tokens with blocks of their own, run through one backend.
class Bench {
 public:
  Bench(backend::Backend& backend, std::int32_t batch, std::int32_t tokens_each)
      : backend_(backend), batch_(batch) {
    const std::int32_t blocks = backend.info().layout.blocks_for(tokens_each);
    for (std::int32_t sequence = 0; sequence < batch; ++sequence) {
      std::vector<kv::BlockId> table;
      for (std::int32_t block = 0; block < blocks; ++block) {
        table.push_back({static_cast<std::uint32_t>(sequence * blocks + block)});
      }
      tables_.push_back(std::move(table));
    }
    std::mt19937 random(1);
    tokens_.resize(static_cast<std::size_t>(tokens_each));
    for (TokenId& token : tokens_) {
      token =
          static_cast<TokenId>(random() % static_cast<std::uint32_t>(backend.info().vocabulary));
    }
    greedy_.temperature = 0.0F;
  }

  // Positions [start, start + count) of every sequence, in steps of at most max_step_tokens.
  void prefill(std::int32_t start, std::int32_t count) {
    for (std::int32_t sequence = 0; sequence < batch_; ++sequence) {
      for (std::int32_t done = 0; done < count;) {
        const std::int32_t rows = std::min(count - done, backend_.info().max_step_tokens);
        backend::StepPlan plan;
        plan.sequences.push_back(
            part(sequence, start + done,
                 std::span(tokens_).subspan(static_cast<std::size_t>(start + done),
                                            static_cast<std::size_t>(rows)),
                 done + rows == count));
        backend_.collect(backend_.launch(plan));
        done += rows;
      }
    }
  }

  // `count` steps of one token for every sequence, each step fed with what the last one drew.
  void decode(std::int32_t start, std::int32_t count) {
    std::vector<TokenId> next(static_cast<std::size_t>(batch_), tokens_[0]);
    for (std::int32_t step = 0; step < count; ++step) {
      backend::StepPlan plan;
      for (std::int32_t sequence = 0; sequence < batch_; ++sequence) {
        plan.sequences.push_back(
            part(sequence, start + step, {&next[static_cast<std::size_t>(sequence)], 1}, true));
      }
      const backend::StepResult result = backend_.collect(backend_.launch(plan));
      for (std::size_t sequence = 0; sequence < next.size(); ++sequence) {
        next[sequence] = result.tokens[sequence].token;
      }
    }
  }

 private:
  backend::SequencePlan part(std::int32_t sequence, std::int32_t start,
                             std::span<const TokenId> tokens, bool logits) {
    backend::SequencePlan plan;
    plan.tokens = tokens;
    plan.start = start;
    plan.tables = {tables_[static_cast<std::size_t>(sequence)]};
    plan.logit_rows = logits ? 1 : 0;
    plan.sampling = &greedy_;
    return plan;
  }

  backend::Backend& backend_;
  std::int32_t batch_;
  std::vector<std::vector<kv::BlockId>> tables_;
  std::vector<TokenId> tokens_;
  sample::SamplingParams greedy_;
};

std::string test_name(const char* kind, std::int32_t tokens, std::int32_t depth) {
  return depth == 0 ? fmt::format("{}{}", kind, tokens)
                    : fmt::format("{}{} @ d{}", kind, tokens, depth);
}

std::int32_t largest(const std::vector<std::int32_t>& values) {
  return values.empty() ? 0 : *std::ranges::max_element(values);
}

Result<std::unique_ptr<backend::Backend>> make_backend(const BenchEngineOptions& options,
                                                       std::int32_t threads) {
  BATON_TRY(const kv::KvDtype dtype, kv::parse_kv_dtype(options.kv_dtype));
  backend::CpuBackendOptions cpu;
  cpu.model_path = options.model_path;
  cpu.isa = options.isa;
  cpu.threads = threads;
  cpu.kv_dtype = dtype;
  cpu.max_num_seqs = std::max(1, largest(options.batch_sequences));
  cpu.max_step_tokens = std::max({options.step_tokens, cpu.max_num_seqs, kv::kTileTokens});
  return backend::make_cpu_backend(cpu);
}

template <class Run>
Measurement measure(const BenchEngineOptions& options, std::string test, std::int32_t batch,
                    std::int32_t depth, std::int32_t tokens, Run&& run) {
  const SystemClock clock;
  Measurement measurement{std::move(test), batch, 0, depth, {}};
  run();  // not counted: pages are touched, caches filled
  for (std::int32_t repetition = 0; repetition < options.repetitions; ++repetition) {
    const TimePoint begin = clock.now();
    run();
    const double seconds = std::chrono::duration<double>(clock.now() - begin).count();
    measurement.tokens_per_second.push_back(tokens / seconds);
  }
  std::ranges::sort(measurement.tokens_per_second);
  return measurement;
}

Status check_fits(const backend::BackendInfo& info, std::int32_t batch, std::int32_t tokens_each) {
  const std::int64_t blocks = std::int64_t{info.layout.blocks_for(tokens_each)} * batch;
  if (tokens_each > info.max_context_tokens || blocks > info.group_blocks[0]) {
    return fail(
        ErrorCode::kContextTooLong,
        fmt::format("{} sequences of {} tokens do not fit: the context is {} tokens, the KV "
                    "pool {} blocks of {}",
                    batch, tokens_each, info.max_context_tokens, info.group_blocks[0],
                    info.layout.block_tokens));
  }
  return {};
}

Status run_all(const BenchEngineOptions& options, std::int32_t threads,
               std::vector<Measurement>& out) {
  BATON_TRY(const std::unique_ptr<backend::Backend> backend, make_backend(options, threads));
  for (const std::int32_t batch : options.batch_sequences) {
    for (const std::int32_t depth : options.depths) {
      const std::int32_t tokens_each =
          depth + std::max({largest(options.prompt_tokens), largest(options.generated_tokens), 1});
      BATON_TRY_VOID(check_fits(backend->info(), batch, tokens_each));
      Bench bench(*backend, batch, tokens_each);
      bench.prefill(0, depth);
      const auto add = [&](Measurement measurement) {
        measurement.threads = threads;
        out.push_back(std::move(measurement));
      };
      for (const std::int32_t tokens : options.prompt_tokens) {
        if (tokens > 0) {
          add(measure(options, test_name("pp", tokens, depth), batch, depth, tokens * batch,
                      [&] { bench.prefill(depth, tokens); }));
        }
      }
      for (const std::int32_t tokens : options.generated_tokens) {
        if (tokens > 0) {
          add(measure(options, test_name("tg", tokens, depth), batch, depth, tokens * batch,
                      [&] { bench.decode(depth, tokens); }));
        }
      }
    }
  }
  return {};
}

void print(const BenchEngineOptions& options, const std::vector<Measurement>& measurements) {
  const std::string model = std::filesystem::path(options.model_path).stem().string();
  if (options.format == BenchFormat::kJson) {
    nlohmann::ordered_json all = nlohmann::ordered_json::array();
    for (const Measurement& one : measurements) {
      all.push_back({{"model", model},
                     {"test", one.test},
                     {"batch", one.batch},
                     {"threads", one.threads},
                     {"depth", one.depth},
                     {"isa", options.isa},
                     {"kv_dtype", options.kv_dtype},
                     {"tokens_per_second", one.median()},
                     {"min", one.tokens_per_second.front()},
                     {"max", one.tokens_per_second.back()},
                     {"stddev", one.deviation()},
                     {"repetitions", one.tokens_per_second.size()}});
    }
    std::puts(all.dump(2).c_str());
    return;
  }
  const bool csv = options.format == BenchFormat::kCsv;
  if (csv) {
    std::puts("model,test,batch,threads,depth,isa,kv_dtype,tokens_per_second,min,max,stddev");
  } else {
    std::puts("| model | test | batch | threads | t/s (median) | min .. max |");
    std::puts("| --- | --- | ---: | ---: | ---: | ---: |");
  }
  for (const Measurement& one : measurements) {
    const double low = one.tokens_per_second.front();
    const double high = one.tokens_per_second.back();
    const std::string line =
        csv ? fmt::format("{},{},{},{},{},{},{},{:.3f},{:.3f},{:.3f},{:.3f}", model, one.test,
                          one.batch, one.threads, one.depth, options.isa, options.kv_dtype,
                          one.median(), low, high, one.deviation())
            : fmt::format("| {} | {} | {} | {} | {:.2f} | {:.2f} .. {:.2f} |", model, one.test,
                          one.batch, one.threads, one.median(), low, high);
    std::puts(line.c_str());
  }
}

Status check_options(const BenchEngineOptions& options) {
  const auto all_at_least = [](const std::vector<std::int32_t>& values, std::int32_t least) {
    return std::ranges::all_of(values, [least](std::int32_t value) { return value >= least; });
  };
  if (options.repetitions < 1 || !all_at_least(options.batch_sequences, 1) ||
      !all_at_least(options.prompt_tokens, 0) || !all_at_least(options.generated_tokens, 0) ||
      !all_at_least(options.depths, 0) || !all_at_least(options.threads, 0)) {
    return fail(ErrorCode::kInvalidArgument,
                "-r and -b must be at least 1; -p, -n, -d and -t at least 0");
  }
  return {};
}

}  // namespace

int run_bench_engine(const BenchEngineOptions& options) {
  std::vector<Measurement> measurements;
  Status status = check_options(options);
  for (const std::int32_t threads : options.threads) {
    if (status) {
      status = run_all(options, threads == 0 ? available_cpus() : threads, measurements);
    }
  }
  if (!status) {
    fmt::print(stderr, "baton bench engine: {}\n", status.error().message);
    return 1;
  }
  print(options, measurements);
  return 0;
}

}  // namespace baton::app
