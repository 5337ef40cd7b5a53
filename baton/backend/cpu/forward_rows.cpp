// The row-block way through a layer: one thread, some rows, all row-wise operations in sequence.
#include "baton/backend/cpu/forward.h"

#include <cmath>

namespace baton::backend {

kernels::MatmulArgs Forward::matmul_args(const PackedMatrix& weight, const Work& work, float* out,
                                         std::int64_t out_stride, bool accumulate) const {
  kernels::MatmulArgs args;
  args.dtype = weight.dtype;
  args.packed = weight.packed;
  args.n = weight.n;
  args.k = weight.k;
  args.activations = work.prepared[static_cast<std::size_t>(weight.format())];
  args.out = out;
  args.out_stride = out_stride;
  args.accumulate = accumulate;
  return args;
}

// Rows [first, last) of x, in each format that one of the weights reads.
void Forward::prepare(std::span<const PackedMatrix> weights, const float* x, std::int64_t x_stride,
                      std::int64_t first, std::int64_t last, const Work& work) {
  std::array<bool, kernels::kActivationFormats> done{};
  for (const PackedMatrix& weight : weights) {
    const auto format = static_cast<std::size_t>(weight.format());
    if (!done[format]) {
      done[format] = true;
      const std::size_t row_bytes = kernels::activation_row_bytes(weight.format(), weight.k);
      kernels_.prepare_activations(
          weight.format(), x + first * x_stride, x_stride, last - first, weight.k,
          work.prepared[format] + static_cast<std::size_t>(first) * row_bytes);
    }
  }
}

// Norms of Q and K heads (Qwen3), then rope, for rows [first, last) of qkv_.
void Forward::rotate(const CpuLayer& layer, std::int64_t first, std::int64_t last) {
  float* qkv = qkv_.as<float>().data();
  const std::int64_t head_dim = config_.head_dim;
  if (layer.q_norm != nullptr) {
    for (std::int64_t row = first; row < last; ++row) {
      float* q = qkv + row * qkv_width_;
      float* k = q + q_width_;
      kernels_.rmsnorm(q, head_dim, nullptr, layer.q_norm, config_.rms_eps, config_.heads, head_dim,
                       q, head_dim);
      kernels_.rmsnorm(k, head_dim, nullptr, layer.k_norm, config_.rms_eps, config_.kv_heads,
                       head_dim, k, head_dim);
    }
  }
  // K heads follow Q heads in a row: one call turns both.
  kernels_.rope(rope_table_, rope_style_, positions_.as<std::int32_t>().data() + first,
                last - first, config_.heads + config_.kv_heads, head_dim, qkv + first * qkv_width_,
                qkv_width_);
}

void Forward::project_rows(std::size_t index, std::int64_t first, std::int64_t last,
                           const Work& work) {
  const CpuLayer& layer = weights_.layers[index];
  const std::int64_t rows = last - first;
  float* x = x_.as<float>().data() + first * dim_;
  kernels_.rmsnorm(x, dim_, nullptr, layer.attn_norm, config_.rms_eps, rows, dim_, work.normed,
                   dim_);
  prepare(layer.qkv, work.normed, dim_, 0, rows, work);
  float* out = qkv_.as<float>().data() + first * qkv_width_;
  for (const PackedMatrix& weight : layer.qkv) {
    kernels_.matmul(matmul_args(weight, work, out, qkv_width_, false), 0, weight.panels(), 0, rows);
    out += weight.n;
  }
  rotate(layer, first, last);
}

void Forward::finish_rows(std::size_t index, std::int64_t first, std::int64_t last,
                          const Work& work) {
  const CpuLayer& layer = weights_.layers[index];
  const std::int64_t rows = last - first;
  const std::int64_t ffn = config_.ffn_dim;
  float* x = x_.as<float>().data() + first * dim_;
  const float* attended = attended_.as<float>().data() + first * q_width_;
  prepare({&layer.attn_output, 1}, attended, q_width_, 0, rows, work);
  kernels_.matmul(matmul_args(layer.attn_output, work, x, dim_, true), 0,
                  layer.attn_output.panels(), 0, rows);
  kernels_.rmsnorm(x, dim_, nullptr, layer.ffn_norm, config_.rms_eps, rows, dim_, work.normed,
                   dim_);
  prepare(layer.gate_up, work.normed, dim_, 0, rows, work);
  kernels_.matmul(matmul_args(layer.gate_up[0], work, work.gate, ffn, false), 0,
                  layer.gate_up[0].panels(), 0, rows);
  kernels_.matmul(matmul_args(layer.gate_up[1], work, work.up, ffn, false), 0,
                  layer.gate_up[1].panels(), 0, rows);
  kernels_.silu_mul(work.gate, work.up, rows * ffn, work.gate);
  prepare({&layer.ffn_down, 1}, work.gate, ffn, 0, rows, work);
  kernels_.matmul(matmul_args(layer.ffn_down, work, x, dim_, true), 0, layer.ffn_down.panels(), 0,
                  rows);
}

void Forward::project_row_blocks(std::size_t layer) {
  pool_.parallel_for(rows_, block_rows(rows_),
                     [&](std::int64_t first, std::int64_t last, int thread) {
                       const Work& work = work_[static_cast<std::size_t>(thread)];
                       if (layer > 0) {
                         finish_rows(layer - 1, first, last, work);
                       }
                       project_rows(layer, first, last, work);
                     });
}

void Forward::finish_row_blocks(std::size_t layer) {
  pool_.parallel_for(rows_, block_rows(rows_),
                     [&](std::int64_t first, std::int64_t last, int thread) {
                       finish_rows(layer, first, last, work_[static_cast<std::size_t>(thread)]);
                     });
}

}  // namespace baton::backend
