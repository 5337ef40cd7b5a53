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

// Norms of Q and K heads (Qwen3, Gemma 3), then rope, for rows [first, last) of qkv_.
void Forward::rotate(std::size_t index, std::int64_t first, std::int64_t last) {
  const CpuLayer& layer = weights_.layers[index];
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
  kernels_.rope(config_.is_window_layer(index) ? window_rope_table_ : rope_table_, rope_style_,
                positions_.as<std::int32_t>().data() + first, last - first,
                config_.heads + config_.kv_heads, head_dim, qkv + first * qkv_width_, qkv_width_);
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
  rotate(index, first, last);
}

// Of rows [0, rows): x += norm(added), in place of `added`.
void Forward::norm_and_add(const float* norm, float* added, std::int64_t rows, float* x) {
  kernels_.rmsnorm(added, dim_, nullptr, norm, config_.rms_eps, rows, dim_, added, dim_);
  kernels_.add(x, added, rows * dim_);
}

void Forward::gate_by(float* gate, const float* up, std::int64_t n) const {
  const auto gate_mul =
      config_.activation == model::Activation::kGelu ? kernels_.gelu_mul : kernels_.silu_mul;
  gate_mul(gate, up, n, gate);
}

void Forward::finish_rows(std::size_t index, std::int64_t first, std::int64_t last,
                          const Work& work) {
  const CpuLayer& layer = weights_.layers[index];
  const std::int64_t rows = last - first;
  const std::int64_t ffn = config_.ffn_dim;
  float* x = x_.as<float>().data() + first * dim_;
  const float* attended = attended_.as<float>().data() + first * q_width_;
  // What is added to x is either summed into it at once, or normed first in the buffer for norms.
  const auto add_to_x = [&](const PackedMatrix& weight, const float* post_norm) {
    const bool direct = post_norm == nullptr;
    kernels_.matmul(matmul_args(weight, work, direct ? x : work.normed, dim_, direct), 0,
                    weight.panels(), 0, rows);
    if (!direct) {
      norm_and_add(post_norm, work.normed, rows, x);
    }
  };
  prepare({&layer.attn_output, 1}, attended, q_width_, 0, rows, work);
  add_to_x(layer.attn_output, layer.post_attention_norm);
  kernels_.rmsnorm(x, dim_, nullptr, layer.ffn_norm, config_.rms_eps, rows, dim_, work.normed,
                   dim_);
  prepare(layer.gate_up, work.normed, dim_, 0, rows, work);
  kernels_.matmul(matmul_args(layer.gate_up[0], work, work.gate, ffn, false), 0,
                  layer.gate_up[0].panels(), 0, rows);
  kernels_.matmul(matmul_args(layer.gate_up[1], work, work.up, ffn, false), 0,
                  layer.gate_up[1].panels(), 0, rows);
  gate_by(work.gate, work.up, rows * ffn);
  prepare({&layer.ffn_down, 1}, work.gate, ffn, 0, rows, work);
  add_to_x(layer.ffn_down, layer.post_ffn_norm);
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
