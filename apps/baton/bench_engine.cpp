#include "apps/baton/bench_engine.h"

#include "baton/backend/cpu/cpu_backend.h"
#include "baton/backend/fixed_tables.h"
#include "baton/base/clock.h"
#include "baton/base/cpu_features.h"

#include <fmt/format.h>

#include "apps/baton/bench_report.h"
#include "apps/baton/bench_work.h"
#include "bench/limits/limits.h"
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <random>

namespace baton::app {

namespace {

// Sequences of random tokens with blocks of their own, run through one backend.
class Bench {
 public:
  Bench(backend::Backend& backend, std::int32_t batch, std::int32_t tokens_each)
      : backend_(backend),
        batch_(batch),
        tables_(backend.info(), tokens_each),
        current_(static_cast<std::size_t>(batch)) {
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
    auto& tables = current_[static_cast<std::size_t>(sequence)];
    tables = tables_.at(sequence, start, start + static_cast<std::int64_t>(tokens.size()));
    plan.tables = backend::FixedTables::spans(tables);
    plan.logit_rows = logits ? 1 : 0;
    plan.sampling = &greedy_;
    return plan;
  }

  backend::Backend& backend_;
  std::int32_t batch_;
  backend::FixedTables tables_;
  std::vector<std::vector<std::vector<kv::BlockId>>> current_;  // [sequence][group], of the step
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

// Of a sequence, at most.
std::int32_t tokens_each(const BenchEngineOptions& options) {
  return largest(options.depths) +
         std::max({largest(options.prompt_tokens), largest(options.generated_tokens), 1});
}

std::optional<files::DummyModel> dummy_of(const BenchEngineOptions& options) {
  if (options.load_format == BenchLoadFormat::kFile) {
    return std::nullopt;
  }
  return files::DummyModel{options.shape, options.dtype};
}

Result<std::unique_ptr<backend::Backend>> make_backend(const BenchEngineOptions& options,
                                                       std::int32_t threads) {
  BATON_TRY(const kv::KvDtype dtype, kv::parse_kv_dtype(options.kv_dtype));
  backend::CpuBackendOptions cpu;
  cpu.model_path = options.model_path;
  cpu.dummy = dummy_of(options);
  cpu.isa = options.isa;
  cpu.threads = threads;
  cpu.kv_dtype = dtype;
  cpu.max_context_tokens = tokens_each(options);
  cpu.max_num_seqs = std::max(1, largest(options.batch_sequences));
  cpu.max_step_tokens = std::max({options.step_tokens, cpu.max_num_seqs, kv::kTileTokens});
  return backend::make_cpu_backend(cpu);
}

Result<WorkCounter> make_counter(const BenchEngineOptions& options) {
  BATON_TRY(const kv::KvDtype dtype, kv::parse_kv_dtype(options.kv_dtype));
  const auto dummy = dummy_of(options);
  BATON_TRY(const files::GgufFile file,
            dummy ? files::make_dummy_model(*dummy, files::DummyValues::kNone)
                  : files::GgufFile::open(options.model_path));
  BATON_TRY(const model::ModelDescription description, model::describe_model(file));
  return WorkCounter(description, dtype);
}

Result<bench::Limits> limits_for(const BenchEngineOptions& options, std::int32_t threads,
                                 double weight_bytes) {
  if (!options.measure_limits) {
    return bench::Limits{};
  }
  BATON_TRY(const kernels::Isa isa, kernels::parse_isa(options.isa));
  BATON_TRY(const kernels::KernelTable* table, kernels::pick_kernels(isa));
  // Of the model's size, so that caches help as much or as little; 1 GB is past all of them.
  const auto read_bytes = static_cast<std::size_t>(std::clamp(weight_bytes, 16e6, 1e9));
  return bench::measure_limits(table->isa, threads, read_bytes);
}

// Runs once uncounted (pages are touched, caches filled), then as often as asked.
template <class Run>
std::vector<double> time_runs(std::int32_t repetitions, Run&& run) {
  const SystemClock clock;
  std::vector<double> seconds;
  run();
  for (std::int32_t repetition = 0; repetition < repetitions; ++repetition) {
    const TimePoint begin = clock.now();
    run();
    seconds.push_back(std::chrono::duration<double>(clock.now() - begin).count());
  }
  std::ranges::sort(seconds);
  return seconds;
}

Status check_fits(const backend::BackendInfo& info, std::int32_t batch, std::int32_t tokens_each) {
  if (tokens_each > info.max_context_tokens ||
      !backend::FixedTables(info, tokens_each).fit(batch)) {
    return fail(
        ErrorCode::kContextTooLong,
        fmt::format("{} sequences of {} tokens do not fit: the context is {} tokens, the KV "
                    "pool {} blocks of {}",
                    batch, tokens_each, info.max_context_tokens, info.group_blocks[0],
                    info.layout.block_tokens));
  }
  return {};
}

// What Bench::prefill and Bench::decode have to compute.
Work prefill_work(const WorkCounter& counter, std::int32_t batch, std::int32_t depth,
                  std::int32_t tokens, std::int32_t step_tokens) {
  Work work;
  for (std::int32_t done = 0; done < tokens;) {
    const std::int32_t rows = std::min(tokens - done, step_tokens);
    for (std::int32_t sequence = 0; sequence < batch; ++sequence) {
      work += counter.step(1, depth + done, rows, done + rows == tokens ? 1 : 0);
    }
    done += rows;
  }
  return work;
}

Work decode_work(const WorkCounter& counter, std::int32_t batch, std::int32_t depth,
                 std::int32_t tokens) {
  Work work;
  for (std::int32_t step = 0; step < tokens; ++step) {
    work += counter.step(batch, depth + step, 1, 1);
  }
  return work;
}

Status run_all(const BenchEngineOptions& options, std::int32_t threads,
               std::vector<Measurement>& out) {
  BATON_TRY(const WorkCounter counter, make_counter(options));
  BATON_TRY(const bench::Limits limits, limits_for(options, threads, counter.weight_bytes()));
  BATON_TRY(const std::unique_ptr<backend::Backend> backend, make_backend(options, threads));
  const std::int32_t step_tokens = backend->info().max_step_tokens;
  for (const std::int32_t batch : options.batch_sequences) {
    BATON_TRY_VOID(check_fits(backend->info(), batch, tokens_each(options)));
    for (const std::int32_t depth : options.depths) {
      Bench bench(*backend, batch, tokens_each(options));
      bench.prefill(0, depth);
      const auto add = [&](const char* kind, std::int32_t tokens, std::vector<double> seconds,
                           const Work& work) {
        out.push_back({test_name(kind, tokens, depth), batch, threads, depth, tokens * batch,
                       std::move(seconds), work, limits});
      };
      for (const std::int32_t tokens : options.prompt_tokens) {
        if (tokens > 0) {
          add("pp", tokens, time_runs(options.repetitions, [&] { bench.prefill(depth, tokens); }),
              prefill_work(counter, batch, depth, tokens, step_tokens));
        }
      }
      for (const std::int32_t tokens : options.generated_tokens) {
        if (tokens > 0) {
          add("tg", tokens, time_runs(options.repetitions, [&] { bench.decode(depth, tokens); }),
              decode_work(counter, batch, depth, tokens));
        }
      }
    }
  }
  return {};
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
  const bool dummy = options.load_format == BenchLoadFormat::kDummy;
  if (dummy ? !options.model_path.empty() || options.shape.empty()
            : options.model_path.empty() || !options.shape.empty()) {
    return fail(ErrorCode::kInvalidArgument,
                "give either -m FILE, or --load-format dummy with --shape NAME");
  }
  return {};
}

std::string model_name(const BenchEngineOptions& options) {
  return options.load_format == BenchLoadFormat::kDummy
             ? fmt::format("{}.{}.dummy", options.shape, options.dtype)
             : std::filesystem::path(options.model_path).stem().string();
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
  print_measurements(options, model_name(options), measurements);
  return 0;
}

}  // namespace baton::app
