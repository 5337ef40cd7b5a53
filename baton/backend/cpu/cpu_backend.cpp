#include "baton/backend/cpu/cpu_backend.h"

#include "baton/backend/cpu/forward.h"
#include "baton/backend/cpu/kv_memory.h"
#include "baton/backend/cpu/memory_plan.h"
#include "baton/backend/cpu/numerics_version.h"
#include "baton/backend/cpu/weights.h"
#include "baton/base/check.h"
#include "baton/base/cpu_features.h"
#include "baton/base/float_mode.h"
#include "baton/base/thread_pool.h"
#include "baton/kernels/kernels.h"
#include "baton/sample/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <unordered_map>

namespace baton::backend {

namespace {

// All that a CPU's logits depend on besides the request, see docs/exactness.md.
std::string exactness_tag(const model::ModelConfig& config, const files::Sha256Digest& digest,
                          kv::KvDtype kv_dtype) {
  std::string tag = fmt::format(
      "numerics={};backend=cpu;tp=1;model={};kv={};rope={},base={},factor={},tables={}",
      kCpuNumericsVersion, files::to_hex(digest), kv::kv_dtype_name(kv_dtype),
      config.rope.kind == model::RopeKind::kAdjacent ? "adjacent" : "halves", config.rope.base,
      config.rope.linear_factor, config.rope.frequency_divisors.empty() ? "none" : "file");
  if (config.window_tokens > 0) {
    tag += fmt::format(";window={},base={},factor={}", config.window_tokens,
                       config.window_rope.base, config.window_rope.linear_factor);
  }
  return tag;
}

class CpuBackend final : public Backend {
 public:
  static Result<std::unique_ptr<Backend>> make(
      const CpuBackendOptions& options, const LoadProgress& progress,
      const std::function<void(const MemoryPlan&)>& on_plan);

  [[nodiscard]] const BackendInfo& info() const override { return info_; }
  Ticket launch(const StepPlan& plan) override;
  StepResult collect(Ticket ticket) override;
  std::span<std::byte> block_bytes(std::size_t group, kv::BlockId block) override {
    return memory_.block(group, block);
  }

 private:
  explicit CpuBackend(int threads) : pool_(threads), scratch_(static_cast<std::size_t>(threads)) {}

  void check(const StepPlan& plan) const;
  void check_table(std::size_t group, std::span<const kv::BlockId> table, std::int32_t start,
                   std::size_t end) const;
  void sample_all(const StepPlan& plan, StepResult& result);

  BackendInfo info_;
  SystemClock clock_;
  ThreadPool pool_;
  model::ModelConfig config_;
  CpuWeights weights_;
  KvMemory memory_;
  std::unique_ptr<Forward> forward_;
  std::vector<sample::Scratch> scratch_;  // one per thread
  std::int32_t max_num_seqs_ = 0;
  std::uint64_t last_ticket_ = 0;
  std::unordered_map<std::uint64_t, StepResult> results_;  // launched and not yet collected
};

Status check_options(const CpuBackendOptions& options, const model::ModelConfig& config) {
  constexpr std::int32_t kMaxStepTokens = 65536;  // scratch memory grows with it
  constexpr std::int32_t kMaxNumSeqs = 4096;
  const auto invalid = [](std::string message, std::string flag) {
    return fail(ErrorCode::kInvalidArgument, std::move(message), std::move(flag));
  };
  if (options.threads < 0 || options.threads > ThreadPool::kMaxThreads) {
    return invalid(fmt::format("{} threads are not possible; 1 to {} are, 0 = all", options.threads,
                               ThreadPool::kMaxThreads),
                   "threads");
  }
  if (options.max_step_tokens < kv::kTileTokens || options.max_step_tokens > kMaxStepTokens) {
    return invalid(fmt::format("a step of {} tokens is not possible; {} to {} are",
                               options.max_step_tokens, kv::kTileTokens, kMaxStepTokens),
                   "max-step-tokens");
  }
  if (options.max_num_seqs < 1 || options.max_num_seqs > kMaxNumSeqs) {
    return invalid(fmt::format("{} sequences in a step are not possible; 1 to {} are",
                               options.max_num_seqs, kMaxNumSeqs),
                   "max-num-seqs");
  }
  if (options.max_context_tokens < 0 || options.max_context_tokens > config.context_tokens) {
    return invalid(fmt::format("a context of {} tokens is not possible; the model has {}",
                               options.max_context_tokens, config.context_tokens),
                   "ctx-size");
  }
  return {};
}

// The longest sequence that the pools can hold, up to `context`.
std::int32_t pool_context(const BackendInfo& info, std::int32_t context,
                          std::int32_t max_step_tokens) {
  std::int64_t tokens = context;
  for (std::size_t group = 0; group < info.group_blocks.size(); ++group) {
    const std::int64_t blocks = info.group_blocks[group];
    if (blocks < info.layout.blocks_held(group, context, max_step_tokens)) {
      tokens = std::min(tokens, blocks * info.layout.block_tokens);
    }
  }
  return static_cast<std::int32_t>(tokens);
}

Result<std::unique_ptr<Backend>> CpuBackend::make(
    const CpuBackendOptions& options, const LoadProgress& progress,
    const std::function<void(const MemoryPlan&)>& on_plan) {
  BATON_TRY(const files::GgufFile file,
            options.dummy ? files::make_dummy_model(*options.dummy, files::DummyValues::kRandom)
                          : files::GgufFile::open(options.model_path));
  BATON_TRY(const model::ModelDescription description, model::describe_model(file));
  const model::ModelConfig& config = description.config;
  BATON_TRY_VOID(check_options(options, config));
  BATON_TRY(const kernels::Isa isa, kernels::parse_isa(options.isa));
  BATON_TRY(const kernels::KernelTable* table, kernels::pick_kernels(isa));
  BATON_TRY(kv::KvLayout layout, make_kv_layout(config, options.kv_dtype, options.block_tokens));

  const int threads = options.threads > 0 ? options.threads : available_cpus();
  const std::int32_t context =
      options.max_context_tokens > 0 ? options.max_context_tokens : config.context_tokens;
  const ForwardLimits limits{options.max_step_tokens,
                             std::min(options.max_num_seqs, options.max_step_tokens), context};
  MemoryPlan plan;
  BATON_TRY(plan.weight_bytes, packed_weight_bytes(file, description));
  plan.scratch_bytes = Forward::scratch_bytes(config, limits, threads);
  BATON_TRY_VOID(plan_kv_memory(options, layout, context, available_memory_bytes(), plan));
  if (on_plan) {
    on_plan(plan);
  }

  ScopedFloatMode float_mode;
  std::unique_ptr<CpuBackend> backend(new CpuBackend(threads));
  backend->config_ = config;
  backend->max_num_seqs_ = options.max_num_seqs;
  BATON_TRY(backend->weights_, load_weights(file, description, backend->pool_, progress));
  BackendInfo& info = backend->info_;
  info.layout = std::move(layout);
  for (const MemoryPlan::Group& group : plan.groups) {
    info.group_blocks.push_back(group.blocks);
  }
  info.vocabulary = config.vocabulary;
  info.max_context_tokens = pool_context(info, context, options.max_step_tokens);
  info.max_step_tokens = options.max_step_tokens;
  info.end_tokens = config.end_tokens;
  info.model_digest = files::to_hex(backend->weights_.model_digest);
  info.exactness_tag = exactness_tag(config, backend->weights_.model_digest, options.kv_dtype);
  BATON_TRY(backend->memory_, KvMemory::allocate(info.layout, info.group_blocks));
  BATON_TRY(backend->forward_,
            Forward::make(backend->config_, backend->weights_, *table, info.layout,
                          backend->memory_, backend->pool_, limits));
  return std::unique_ptr<Backend>(std::move(backend));
}

// Of what the queries at [start, end) see, no block may be missing.
void CpuBackend::check_table(std::size_t group, std::span<const kv::BlockId> table,
                             std::int32_t start, std::size_t end) const {
  const auto block_tokens = static_cast<std::size_t>(info_.layout.block_tokens);
  BATON_CHECK(table.size() * block_tokens >= end, "a table of {} blocks for {} tokens",
              table.size(), end);
  const auto first =
      static_cast<std::size_t>(info_.layout.groups[group].first_visible(start)) / block_tokens;
  for (std::size_t block = first; block * block_tokens < end; ++block) {
    BATON_CHECK(table[block] != kv::kNoBlock, "block {} of group {} is needed from {} on", block,
                group, start);
  }
}

// The engine validates requests; a plan that breaks these is our bug.
void CpuBackend::check(const StepPlan& plan) const {
  std::size_t rows = 0;
  std::int32_t logit_rows = 0;
  for (const SequencePlan& sequence : plan.sequences) {
    const std::size_t end = static_cast<std::size_t>(sequence.start) + sequence.tokens.size();
    BATON_CHECK(!sequence.tokens.empty() && sequence.start >= 0);
    BATON_CHECK(end <= static_cast<std::size_t>(info_.max_context_tokens), "position {} of {}", end,
                info_.max_context_tokens);
    BATON_CHECK(sequence.tables.size() == info_.layout.groups.size());
    for (std::size_t group = 0; group < sequence.tables.size(); ++group) {
      check_table(group, sequence.tables[group], sequence.start, end);
    }
    BATON_CHECK(
        sequence.logit_rows == 0 ||
            (sequence.sampling != nullptr && (sequence.logit_rows == 1 || sequence.keep_logits) &&
             static_cast<std::size_t>(sequence.logit_rows) <= sequence.tokens.size()),
        "{} logit rows of {} tokens", sequence.logit_rows, sequence.tokens.size());
    for (const TokenId token : sequence.tokens) {
      BATON_CHECK(token >= 0 && token < info_.vocabulary, "token {} of {}", token,
                  info_.vocabulary);
    }
    rows += sequence.tokens.size();
    logit_rows += sequence.logit_rows;
  }
  BATON_CHECK(rows > 0 && rows <= static_cast<std::size_t>(info_.max_step_tokens), "{} rows of {}",
              rows, info_.max_step_tokens);
  BATON_CHECK(logit_rows <= max_num_seqs_, "{} logit rows of {}", logit_rows, max_num_seqs_);
}

void CpuBackend::sample_all(const StepPlan& plan, StepResult& result) {
  for (std::size_t index = 0; index < plan.sequences.size(); ++index) {
    if (plan.sequences[index].logit_rows > 0) {
      result.tokens.push_back({index, 0, 0.0F, {}, {}});
    }
  }
  const auto vocabulary = static_cast<std::size_t>(info_.vocabulary);
  const auto draw = [&](std::int64_t first, std::int64_t last, int thread) {
    for (auto i = static_cast<std::size_t>(first); i < static_cast<std::size_t>(last); ++i) {
      SampledToken& token = result.tokens[i];
      const SequencePlan& sequence = plan.sequences[token.sequence];
      const std::span<const float> logits = forward_->logits(i);
      sample::SampleInput input;
      input.params = sequence.sampling;
      input.prompt = sequence.prompt;
      input.emitted = sequence.emitted;
      input.barred = sequence.barred;
      input.choice = sequence.key.choice;
      sample::SampledToken drawn = sample::sample(input, logits.last(vocabulary),
                                                  scratch_[static_cast<std::size_t>(thread)]);
      token.token = drawn.token;
      token.logprob = drawn.logprob;
      token.top = std::move(drawn.top);
      if (sequence.keep_logits) {
        token.logits.assign(logits.begin(), logits.end());
      }
    }
  };
  pool_.parallel_for(static_cast<std::int64_t>(result.tokens.size()), 1, draw);
}

Ticket CpuBackend::launch(const StepPlan& plan) {
  check(plan);
  const ScopedFloatMode float_mode;
  const TimePoint begin = clock_.now();
  StepResult result;
  if (forward_->run(plan)) {
    sample_all(plan, result);
  } else {
    result.stopped = true;
  }
  result.elapsed = clock_.now() - begin;
  const Ticket ticket{++last_ticket_};
  results_.emplace(ticket.value, std::move(result));
  return ticket;
}

StepResult CpuBackend::collect(Ticket ticket) {
  auto found = results_.extract(ticket.value);
  BATON_CHECK(!found.empty(), "ticket {} was collected or never launched", ticket.value);
  return std::move(found.mapped());
}

}  // namespace

Result<std::unique_ptr<Backend>> make_cpu_backend(
    const CpuBackendOptions& options, const LoadProgress& progress,
    const std::function<void(const MemoryPlan&)>& on_plan) {
  return CpuBackend::make(options, progress, on_plan);
}

}  // namespace baton::backend
