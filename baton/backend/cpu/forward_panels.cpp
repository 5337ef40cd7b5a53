// The panel way through a layer: few rows, all threads on ranges of weight panels. Row-wise
// operations of up to kSerialRows rows run on the calling thread: handing them over costs more.
#include "baton/backend/cpu/forward.h"

#include <algorithm>

namespace baton::backend {

namespace {
constexpr std::int64_t kSerialRows = 4;
// Ranges per thread and matmul: enough to even out a busy core, few enough to stream.
constexpr std::int64_t kRangesPerThread = 4;
}  // namespace

void Forward::norm_and_prepare(std::span<const PackedMatrix> weights, float* x, const float* norm) {
  const Work& work = work_[0];
  pool_.parallel_for(rows_, kSerialRows, [&](std::int64_t first, std::int64_t last, int) {
    kernels_.rmsnorm(x + first * dim_, dim_, nullptr, norm, config_.rms_eps, last - first, dim_,
                     work.normed + first * dim_, dim_);
    prepare(weights, work.normed, dim_, first, last, work);
  });
}

std::int64_t Forward::panel_grain(std::int64_t panels) const {
  const std::int64_t ranges = kRangesPerThread * pool_.threads();
  return pool_.threads() == 1 ? panels : std::max<std::int64_t>(1, (panels + ranges - 1) / ranges);
}

// One parallel region over the panels of several matmuls, side by side.
void Forward::matmul_panels(std::span<const kernels::MatmulArgs> matmuls, std::int64_t rows) {
  std::int64_t panels = 0;
  for (const kernels::MatmulArgs& args : matmuls) {
    panels += kernels::panel_count(args.n);
  }
  pool_.parallel_for(panels, panel_grain(panels), [&](std::int64_t first, std::int64_t last, int) {
    for (const kernels::MatmulArgs& args : matmuls) {
      const std::int64_t count = kernels::panel_count(args.n);
      const std::int64_t from = std::max<std::int64_t>(first, 0);
      const std::int64_t to = std::min(last, count);
      if (from < to) {
        kernels_.matmul(args, from, to, 0, rows);
      }
      first -= count;
      last -= count;
    }
  });
}

void Forward::project_panels(std::size_t index) {
  const CpuLayer& layer = weights_.layers[index];
  norm_and_prepare(layer.qkv, x_.as<float>().data(), layer.attn_norm);
  float* qkv = qkv_.as<float>().data();
  const std::array matmuls = {
      matmul_args(layer.qkv[0], work_[0], qkv, qkv_width_, false),
      matmul_args(layer.qkv[1], work_[0], qkv + q_width_, qkv_width_, false),
      matmul_args(layer.qkv[2], work_[0], qkv + q_width_ + kv_width_, qkv_width_, false)};
  matmul_panels(matmuls, rows_);
  pool_.parallel_for(rows_, kSerialRows, [&](std::int64_t first, std::int64_t last, int) {
    rotate(index, first, last);
  });
}

// x += weight * prepared, normed first where there is a norm for it.
void Forward::project_back(const PackedMatrix& weight, const float* post_norm) {
  const Work& work = work_[0];
  float* x = x_.as<float>().data();
  const bool direct = post_norm == nullptr;
  const std::array matmuls = {matmul_args(weight, work, direct ? x : work.normed, dim_, direct)};
  matmul_panels(matmuls, rows_);
  if (!direct) {
    pool_.parallel_for(rows_, kSerialRows, [&](std::int64_t first, std::int64_t last, int) {
      norm_and_add(post_norm, work.normed + first * dim_, last - first, x + first * dim_);
    });
  }
}

void Forward::finish_panels(std::size_t index) {
  const CpuLayer& layer = weights_.layers[index];
  const Work& work = work_[0];
  float* x = x_.as<float>().data();
  const std::int64_t ffn = config_.ffn_dim;
  const auto prepare_all = [&](const PackedMatrix& weight, const float* from, std::int64_t width) {
    pool_.parallel_for(rows_, kSerialRows, [&](std::int64_t first, std::int64_t last, int) {
      prepare({&weight, 1}, from, width, first, last, work);
    });
  };

  prepare_all(layer.attn_output, attended_.as<float>().data(), q_width_);
  project_back(layer.attn_output, layer.post_attention_norm);

  norm_and_prepare(layer.gate_up, x, layer.ffn_norm);
  const kernels::MatmulArgs gate = matmul_args(layer.gate_up[0], work, work.gate, ffn, false);
  const kernels::MatmulArgs up = matmul_args(layer.gate_up[1], work, work.up, ffn, false);
  const std::int64_t panels = layer.gate_up[0].panels();
  pool_.parallel_for(panels, panel_grain(panels), [&](std::int64_t first, std::int64_t last, int) {
    kernels_.matmul(gate, first, last, 0, rows_);
    kernels_.matmul(up, first, last, 0, rows_);
    const std::int64_t from = first * kernels::kPanelOutputs;
    const std::int64_t to = std::min(last * kernels::kPanelOutputs, ffn);
    for (std::int64_t row = 0; row < rows_; ++row) {
      float* out = work.gate + row * ffn + from;
      gate_by(out, work.up + row * ffn + from, to - from);
    }
  });

  prepare_all(layer.ffn_down, work.gate, ffn);
  project_back(layer.ffn_down, layer.post_ffn_norm);
}

}  // namespace baton::backend
