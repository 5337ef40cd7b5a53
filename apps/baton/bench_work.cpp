#include "apps/baton/bench_work.h"

#include "baton/files/tensor_type.h"

#include <algorithm>

namespace baton::app {

namespace {

double seconds_at(double amount, double limit) { return limit > 0 ? amount / (limit * 1e9) : 0.0; }

double kv_bytes_per_value(kv::KvDtype dtype) {
  switch (dtype) {
    case kv::KvDtype::kF32:
      return 4.0;
    case kv::KvDtype::kF16:
    case kv::KvDtype::kBf16:
      return 2.0;
    case kv::KvDtype::kQ8_0:
      return 34.0 / 32.0;
  }
  return 0.0;
}

}  // namespace

Work& Work::operator+=(const Work& other) {
  int8_macs += other.int8_macs;
  bf16_macs += other.bf16_macs;
  fp32_macs += other.fp32_macs;
  bytes += other.bytes;
  return *this;
}

double Work::compute_seconds(const bench::Limits& limits) const {
  return seconds_at(int8_macs, limits.int8_gmac) + seconds_at(bf16_macs, limits.bf16_gmac) +
         seconds_at(fp32_macs, limits.fp32_gmac);
}

double Work::read_seconds(const bench::Limits& limits) const {
  return seconds_at(bytes, limits.read_gb);
}

WorkCounter::WorkCounter(const model::ModelDescription& description, kv::KvDtype kv_dtype)
    : layers_(description.config.layers),
      query_width_(std::int64_t{description.config.heads} * description.config.head_dim),
      kv_bytes_per_token_(2.0 * description.config.layers * description.config.kv_heads *
                          description.config.head_dim * kv_bytes_per_value(kv_dtype)),
      bf16_attention_(kv_dtype == kv::KvDtype::kBf16) {
  for (std::size_t index = 0; index < description.layers.size(); ++index) {
    const model::LayerWeights& layer = description.layers[index];
    for (const model::TensorRef* ref : {&layer.attn_q, &layer.attn_k, &layer.attn_v}) {
      add_matrix(*ref, every_row_, layer_bytes_);
    }
    const bool last = index + 1 == description.layers.size();
    for (const model::TensorRef* ref :
         {&layer.attn_output, &layer.ffn_gate, &layer.ffn_up, &layer.ffn_down}) {
      add_matrix(*ref, last ? logit_row_ : every_row_, layer_bytes_);
    }
  }
  add_matrix(description.output, logit_row_, head_bytes_);
}

void WorkCounter::add_matrix(const model::TensorRef& ref, Macs& macs, double& bytes) const {
  const double values = static_cast<double>(ref.rows) * ref.columns;
  bytes += values / static_cast<double>(files::tensor_type_block_elements(ref.type)) *
           static_cast<double>(files::tensor_type_block_bytes(ref.type));
  if (ref.type == files::TensorType::kBf16) {
    macs.bf16 += values;
  } else if (ref.type == files::TensorType::kF16 || ref.type == files::TensorType::kF32) {
    macs.fp32 += values;
  } else {
    macs.int8 += values;
  }
}

Work WorkCounter::step(std::int64_t sequences, std::int64_t start, std::int64_t tokens,
                       std::int64_t logit_rows) const {
  const auto rows = static_cast<double>(sequences * tokens);
  const auto heads_rows = static_cast<double>(sequences * logit_rows);
  Work work;
  work.int8_macs = rows * every_row_.int8 + heads_rows * logit_row_.int8;
  work.bf16_macs = rows * every_row_.bf16 + heads_rows * logit_row_.bf16;
  work.fp32_macs = rows * every_row_.fp32 + heads_rows * logit_row_.fp32;
  // A query at position p sees p + 1 keys; the last layer attends for the logit rows only.
  const auto visible = [start](std::int64_t first, std::int64_t last) {
    return static_cast<double>(last - first) *
           (static_cast<double>(start) + static_cast<double>(first + last + 1) / 2.0);
  };
  const double pairs =
      static_cast<double>(layers_ - 1) * visible(0, tokens) + visible(tokens - logit_rows, tokens);
  const double attention = 2.0 * static_cast<double>(sequences * query_width_) * pairs;
  (bf16_attention_ ? work.bf16_macs : work.fp32_macs) += attention;
  work.bytes = layer_bytes_ + (logit_rows > 0 ? head_bytes_ : 0.0) +
               static_cast<double>(sequences * (start + tokens)) * kv_bytes_per_token_;
  return work;
}

}  // namespace baton::app
