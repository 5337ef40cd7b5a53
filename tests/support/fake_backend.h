// A backend without a model, for tests of the engine and of handoffs. Its KV is real bytes in the
// pool's layout: row i of every (group, layer, head, plane) carries a hash of tokens 0..i, chained
// from the row i - 1 that it READS there, and the logits of a token come from a digest of all rows
// that it reads. Wrong, missing or stale KV therefore gives other tokens. Drawing is the real
// sampler. Deterministic. Thread: as Backend.
#pragma once

#include "baton/backend/backend.h"
#include "baton/sample/sampler.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace baton::testing {

struct FakeGroup {
  std::int32_t layers = 2;
  std::int32_t kv_heads = 2;
  std::int32_t head_dim = 8;  // >= 4
  std::uint32_t blocks = 64;
  std::int32_t window_tokens = 0;  // >= 2; 0 = a full group
};

struct FakeBackendOptions {
  std::vector<FakeGroup> groups = {FakeGroup{}};
  std::int32_t block_tokens = 32;
  std::int32_t vocabulary = 257;
  std::int32_t max_context_tokens = 4096;
  std::int32_t max_step_tokens = 512;
  std::vector<TokenId> end_tokens = {2};
  std::uint64_t model_seed = 1;  // another seed is another model
  std::string exactness_tag = "fake-1";
};

class FakeBackend final : public backend::Backend {
 public:
  explicit FakeBackend(const FakeBackendOptions& options);

  [[nodiscard]] const backend::BackendInfo& info() const override { return info_; }
  backend::Ticket launch(const backend::StepPlan& plan) override;
  backend::StepResult collect(backend::Ticket ticket) override;
  std::span<std::byte> block_bytes(std::size_t group, kv::BlockId block) override;

  // Runs at the start of every launch, on the engine thread: advance a ManualClock, wait for a
  // latch, sleep, count. Set before the engine runs.
  void set_on_launch(std::function<void(const backend::StepPlan&)> hook) {
    on_launch_ = std::move(hook);
  }
  // Runs after a layer was told of, before the next one is written; on the engine thread, and only
  // in steps whose layers somebody wants.
  void set_on_layer(
      std::function<void(const backend::SequencePlan&, const backend::LayerDone&)> hook) {
    on_layer_ = std::move(hook);
  }
  // What StepResult::elapsed says; default 10 us per row.
  void set_cost(std::function<Duration(const backend::StepPlan&)> cost) { cost_ = std::move(cost); }

  // Rows that were read and held a NaN or no hash of ours: 0 in every correct run.
  [[nodiscard]] std::uint64_t bad_rows_read() const { return bad_rows_; }
  [[nodiscard]] std::uint64_t rows_computed() const { return rows_computed_; }

  // The tokens of a cold run of this request on a backend with these options: no engine, no batch.
  static std::vector<TokenId> reference(const FakeBackendOptions& options,
                                        std::span<const TokenId> prompt,
                                        const sample::SamplingParams& sampling, Choice choice,
                                        std::int32_t max_tokens);

 private:
  void write_rows(const backend::SequencePlan& sequence, backend::ProgressQueue* progress);
  void write_row(const backend::SequencePlan& sequence, std::size_t group, std::int32_t layer,
                 std::int32_t position, TokenId token);
  std::uint64_t read_row(const backend::SequencePlan& sequence, std::size_t group,
                         std::int32_t layer, std::int32_t head, std::int32_t position, int plane,
                         std::uint64_t* digest);
  backend::SampledToken draw(const backend::SequencePlan& sequence, std::size_t index);
  float* plane_tile(const backend::SequencePlan& sequence, std::size_t group, std::int32_t layer,
                    std::int32_t head, std::int32_t position, int plane);

  FakeBackendOptions options_;
  backend::BackendInfo info_;
  std::vector<std::vector<std::byte>> pools_;  // [group] of blocks in order of id
  sample::Scratch scratch_;
  std::function<void(const backend::StepPlan&)> on_launch_;
  std::function<void(const backend::SequencePlan&, const backend::LayerDone&)> on_layer_;
  std::function<Duration(const backend::StepPlan&)> cost_;
  backend::StepResult pending_;
  std::uint64_t next_ticket_ = 1;
  std::uint64_t bad_rows_ = 0;
  std::uint64_t rows_computed_ = 0;
};

}  // namespace baton::testing
