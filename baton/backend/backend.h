// The seam between the engine and whatever computes: a plan goes in, tokens come out. A backend
// owns the bytes of weights and KV; the engine owns the block ids. Called from the engine thread
// only. A missing backend is a folder (no_cuda/), not an #ifdef.
#pragma once

#include "baton/base/clock.h"
#include "baton/base/ids.h"
#include "baton/base/result.h"
#include "baton/kv/layout.h"
#include "baton/sample/params.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace baton::backend {

// One sequence's share of a step.
struct SequencePlan {
  SequenceKey key;
  std::span<const TokenId> tokens;  // input ids at positions [start, start + tokens.size())
  std::int32_t start = 0;
  // One block table per group; covers positions [0, start + tokens.size()).
  std::vector<std::span<const kv::BlockId>> tables;

  // Rows from the end of `tokens` whose logits are needed: 0 (a chunk inside a prompt), 1, or more
  // with keep_logits (perplexity). Only the last row is sampled.
  std::int32_t logit_rows = 0;
  // What sampling needs when logit_rows > 0. The token drawn has index emitted.size().
  const sample::SamplingParams* sampling = nullptr;
  std::span<const TokenId> prompt;
  std::span<const TokenId> emitted;
  std::span<const TokenId> barred;  // never drawn (end tokens below min_tokens)
  bool keep_logits = false;         // copy the raw logits into the result (tests, perplexity)
};

// (sequence, group, layer) whose KV of this step is complete; pushed while the step still runs.
struct LayerDone {
  SequenceKey key;
  std::uint32_t group = 0;
  std::uint32_t layer = 0;  // index within the group
};
class ProgressQueue {
 public:
  virtual ~ProgressQueue() = default;
  virtual void push(const LayerDone& done) = 0;  // Thread: one of the backend's; must not block
};

struct StepPlan {
  std::vector<SequencePlan> sequences;
  // Set by another thread when no sequence of this step is wanted any more: the backend may stop
  // between layers, and then returns stopped = true and no tokens. May be null.
  const std::atomic<bool>* all_aborted = nullptr;
  ProgressQueue* progress = nullptr;  // may be null
};

struct SampledToken {
  std::size_t sequence = 0;  // index into StepPlan::sequences
  TokenId token = 0;
  float logprob = 0.0F;                        // log-softmax of the raw logits
  std::vector<std::pair<TokenId, float>> top;  // sampling->top_logprobs entries
  std::vector<float> logits;                   // [logit_rows][vocabulary], when keep_logits
};

struct StepResult {
  std::vector<SampledToken> tokens;  // in the order of the plan's sequences
  bool stopped = false;
  Duration elapsed{};  // of the computation
};

// Fixed when the backend is made.
struct BackendInfo {
  kv::KvLayout layout;
  std::vector<std::uint32_t> group_blocks;  // pool size of each group, in blocks
  std::int32_t vocabulary = 0;
  std::int32_t max_context_tokens = 0;  // of the model
  std::int32_t max_step_tokens = 0;     // rows that one plan may hold in all
  std::vector<TokenId> end_tokens;      // EOS, EOT: a sequence ends on them unless ignore_eos
  std::string exactness_tag;            // see docs/exactness.md
  std::string model_digest;             // hex; nodes pair only with equal ones
};

struct Ticket {
  std::uint64_t value = 0;
};

class Backend {
 public:
  virtual ~Backend() = default;
  [[nodiscard]] virtual const BackendInfo& info() const = 0;
  // The plan's spans must stay valid until collect. The CPU backend computes inside launch.
  virtual Ticket launch(const StepPlan& plan) = 0;
  virtual StepResult collect(Ticket ticket) = 0;
  // The block's bytes in KvLayout's order. Thread: engine; the span may be read or filled by others
  // while the block is leased to them.
  virtual std::span<std::byte> block_bytes(std::size_t group, kv::BlockId block) = 0;
};

}  // namespace baton::backend
