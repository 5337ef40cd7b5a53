// The forward pass of one step: rows of many sequences go through the layers together, each row
// with the bits it would have alone. Two ways to spread the work, same bits: many rows are cut into
// row blocks that one thread carries through all row-wise operations of a layer (no barriers,
// buffers that stay in its L2); few rows are computed by all threads, each on a range of weight
// panels. Attention is cut into (sequence, kv head, query rows[, part]). Thread: the pool's owner.
#pragma once

#include "baton/backend/backend.h"
#include "baton/backend/cpu/kv_memory.h"
#include "baton/backend/cpu/weights.h"
#include "baton/base/result.h"
#include "baton/base/thread_pool.h"
#include "baton/kernels/kernels.h"
#include "baton/model/model.h"
#include "baton/tensor/buffer.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace baton::backend {

struct ForwardLimits {
  std::int32_t step_rows = 0;   // tokens of one step
  std::int32_t logit_rows = 0;  // rows of one step that go through the head
  std::int32_t positions = 0;   // the largest context
};

class Forward {
 public:
  // All references are borrowed and outlive the Forward. Errors: kOverloaded (no memory).
  static Result<std::unique_ptr<Forward>> make(const model::ModelConfig& config,
                                               const CpuWeights& weights,
                                               const kernels::KernelTable& kernels,
                                               const kv::KvLayout& layout, KvMemory& memory,
                                               ThreadPool& pool, const ForwardLimits& limits);
  static std::uint64_t scratch_bytes(const model::ModelConfig& config, const ForwardLimits& limits,
                                     int threads);

  // False when plan.all_aborted stopped it. Else logits(i) is filled for the i-th sequence with
  // logit_rows > 0, in the plan's order, until the next run.
  bool run(const StepPlan& plan);
  // [logit_rows][vocabulary]
  [[nodiscard]] std::span<const float> logits(std::size_t index) const;

 private:
  // Consecutive rows of one sequence.
  struct Span {
    std::int64_t first_row = 0;
    std::int64_t tokens = 0;
    std::int32_t start = 0;  // position of the first one
    std::size_t sequence = 0;
  };
  // Tokens of a span inside one KV tile.
  struct TileSpan {
    std::int64_t first_row = 0;
    std::int64_t tokens = 0;
    std::int32_t position = 0;
    std::size_t sequence = 0;
  };
  // Query rows [first, last) of a span and one kv head; one part of the keys when part >= 0.
  struct AttentionTask {
    std::size_t span = 0;
    std::int64_t head = 0;
    std::int64_t first = 0;
    std::int64_t last = 0;
    std::int64_t part = -1;  // absolute
    std::int64_t first_part = 0;
    std::int64_t parts = 0;
    float* partials = nullptr;  // of this (span, head): [parts][rows][stride]
  };
  // The attention of a step in the layers of one KV group: they see the same keys.
  struct GroupTasks {
    std::vector<AttentionTask> tasks;
    std::vector<AttentionTask> merges;
  };
  // Where a layer's KV is.
  struct LayerPlace {
    std::size_t group = 0;
    std::int32_t index = 0;  // of the layer within the group
  };
  // Work buffers of the rows that one thread (row blocks) or all threads (panels) work on.
  struct Work {
    float* normed = nullptr;  // [rows][dim]
    std::array<std::byte*, kernels::kActivationFormats>
        prepared{};         // by ActivationFormat: [rows][activation_row_bytes]
    float* gate = nullptr;  // [rows][ffn_dim]
    float* up = nullptr;    // [rows][ffn_dim]
  };

  Forward(const model::ModelConfig& config, const CpuWeights& weights,
          const kernels::KernelTable& kernels, const kv::KvLayout& layout, KvMemory& memory,
          ThreadPool& pool, const ForwardLimits& limits);
  Status allocate();

  // forward.cpp: the step
  void lay_out(const StepPlan& plan);
  void lay_out_tiles(const SequencePlan& part, std::size_t sequence);
  void embed(const StepPlan& plan);
  void keep_logit_rows();
  void head();
  [[nodiscard]] bool by_row_blocks(std::int64_t rows) const;
  [[nodiscard]] std::int64_t block_rows(std::int64_t rows) const;

  // forward_rows.cpp: one thread, rows [first, last)
  void project_row_blocks(std::size_t layer);  // finish(layer - 1) and project(layer), all rows
  void finish_row_blocks(std::size_t layer);
  void project_rows(std::size_t index, std::int64_t first, std::int64_t last, const Work& work);
  void finish_rows(std::size_t index, std::int64_t first, std::int64_t last, const Work& work);
  void rotate(std::size_t index, std::int64_t first, std::int64_t last);
  void norm_and_add(const float* norm, float* added, std::int64_t rows, float* x);
  void gate_by(float* gate, const float* up, std::int64_t n) const;
  void prepare(std::span<const PackedMatrix> weights, const float* x, std::int64_t x_stride,
               std::int64_t first, std::int64_t last, const Work& work);
  [[nodiscard]] kernels::MatmulArgs matmul_args(const PackedMatrix& weight, const Work& work,
                                                float* out, std::int64_t out_stride,
                                                bool accumulate) const;

  // forward_panels.cpp: all threads, all rows
  void project_panels(std::size_t index);
  void finish_panels(std::size_t index);
  void norm_and_prepare(std::span<const PackedMatrix> weights, float* x, const float* norm);
  void project_back(const PackedMatrix& weight, const float* post_norm);
  void matmul_panels(std::span<const kernels::MatmulArgs> matmuls, std::int64_t rows);
  [[nodiscard]] std::int64_t panel_grain(std::int64_t panels) const;

  // forward_attention.cpp
  void lay_out_attention(std::span<const Span> spans);
  void lay_out_attention(std::size_t group);
  void add_split_tasks(GroupTasks& tasks, std::size_t index, std::int64_t first_part,
                       std::int64_t parts, std::int64_t& partial_rows);
  void write_kv(std::size_t layer);
  void attend(std::size_t layer);
  void run_attention(const AttentionTask& task, std::size_t layer, int thread, bool merge);
  [[nodiscard]] std::size_t head_offset(LayerPlace place, std::int64_t head) const;

  const model::ModelConfig& config_;
  const CpuWeights& weights_;
  const kernels::KernelTable& kernels_;
  const kv::KvLayout& layout_;
  KvMemory& memory_;
  ThreadPool& pool_;
  const ForwardLimits limits_;
  kernels::RopeTable rope_table_;
  kernels::RopeTable window_rope_table_;  // of window layers, if there are any
  kernels::RopeStyle rope_style_ = kernels::RopeStyle::kInterleaved;

  // Sizes, in elements.
  std::int64_t dim_ = 0;
  std::int64_t q_width_ = 0;    // heads * head_dim
  std::int64_t kv_width_ = 0;   // kv_heads * head_dim
  std::int64_t qkv_width_ = 0;  // one row of qkv_
  std::int64_t group_ = 0;      // query heads per kv head

  std::vector<LayerPlace> places_;  // [layer]

  // Scratch, allocated once. rows: limits_.step_rows.
  tensor::Buffer x_;                   // f32 [rows][dim]: the residual stream
  tensor::Buffer qkv_;                 // f32 [rows][qkv_width]: q heads, k heads, v heads
  tensor::Buffer attended_;            // f32 [rows][q_width]
  tensor::Buffer logits_;              // f32 [logit rows][vocabulary]
  tensor::Buffer positions_;           // int32 [rows]
  tensor::Buffer normed_, gate_, up_;  // f32 [work rows][dim or ffn_dim]
  std::array<tensor::Buffer, kernels::kActivationFormats>
      prepared_;                      // by ActivationFormat; empty when no weight wants it
  tensor::Buffer attention_scratch_;  // [threads][attention_scratch_bytes]
  tensor::Buffer tile_pointers_;      // [threads][tiles of the largest context]
  tensor::Buffer partials_;           // f32, see add_split_tasks
  std::size_t scratch_stride_ = 0;    // bytes of attention_scratch_ per thread
  std::int64_t most_tiles_ = 0;
  std::vector<Work> work_;  // [threads]; work_[0] also holds the panel path's rows

  // The step being run; vectors keep their capacity.
  std::vector<Span> spans_;
  std::vector<Span> logit_spans_;  // rows with logits, in the plan's order
  std::vector<TileSpan> tile_spans_;
  std::vector<GroupTasks> tasks_;  // [group]
  std::span<const Span> attention_spans_;
  // [group][sequence][position / 32] at the group's layer 0, head 0; null where a window group has
  // given its block back.
  std::vector<std::vector<std::vector<std::byte*>>> tiles_;
  std::int64_t rows_ = 0;
};

}  // namespace baton::backend
