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
    : window_tokens_(description.config.window_tokens),
      query_width_(std::int64_t{description.config.heads} * description.config.head_dim),
      kv_bytes_per_token_(2.0 * description.config.kv_heads * description.config.head_dim *
                          kv_bytes_per_value(kv_dtype)),
      bf16_attention_(kv_dtype == kv::KvDtype::kBf16) {
  for (std::size_t index = 0; index < description.layers.size(); ++index) {
    const model::LayerWeights& layer = description.layers[index];
    last_is_window_ = description.config.is_window_layer(index);
    ++(last_is_window_ ? window_layers_ : full_layers_);
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

// A query at position p sees p + 1 keys, in a window layer at most the window.
double WorkCounter::pairs(bool window_layer, std::int64_t start, std::int64_t first,
                          std::int64_t last) const {
  const std::int64_t cut = window_layer ? std::clamp(window_tokens_ - start, first, last) : last;
  return static_cast<double>(cut - first) *
             (static_cast<double>(start) + static_cast<double>(first + cut + 1) / 2.0) +
         static_cast<double>(last - cut) * static_cast<double>(window_tokens_);
}

Work WorkCounter::step(std::int64_t sequences, std::int64_t start, std::int64_t tokens,
                       std::int64_t logit_rows) const {
  const auto rows = static_cast<double>(sequences * tokens);
  const auto heads_rows = static_cast<double>(sequences * logit_rows);
  Work work;
  work.int8_macs = rows * every_row_.int8 + heads_rows * logit_row_.int8;
  work.bf16_macs = rows * every_row_.bf16 + heads_rows * logit_row_.bf16;
  work.fp32_macs = rows * every_row_.fp32 + heads_rows * logit_row_.fp32;
  // The last layer attends for the logit rows only.
  const double all_pairs = static_cast<double>(full_layers_) * pairs(false, start, 0, tokens) +
                           static_cast<double>(window_layers_) * pairs(true, start, 0, tokens) -
                           pairs(last_is_window_, start, 0, tokens) +
                           pairs(last_is_window_, start, tokens - logit_rows, tokens);
  const double attention = 2.0 * static_cast<double>(sequences * query_width_) * all_pairs;
  (bf16_attention_ ? work.bf16_macs : work.fp32_macs) += attention;
  const std::int64_t in_window = std::min(start, std::max<std::int64_t>(0, window_tokens_ - 1));
  const std::int64_t read_rows =
      full_layers_ * (start + tokens) + window_layers_ * (in_window + tokens);
  work.bytes = layer_bytes_ + (logit_rows > 0 ? head_bytes_ : 0.0) +
               static_cast<double>(sequences * read_rows) * kv_bytes_per_token_;
  return work;
}

}  // namespace baton::app
