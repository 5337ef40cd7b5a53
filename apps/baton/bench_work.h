// How much a model computes and reads for some tokens: what tokens per second mean for the machine.
// Counted from the shapes, the least that any implementation must do. Thread: any.
#pragma once

#include "baton/base/result.h"
#include "baton/kv/layout.h"
#include "baton/model/model.h"

#include "bench/limits/limits.h"
#include <cstdint>

namespace baton::app {

struct Work {
  // Multiply-accumulates, by what they are multiplied with.
  double int8_macs = 0;  // weights in blocks of integers
  double bf16_macs = 0;  // bf16 weights; attention over a bf16 cache
  double fp32_macs = 0;  // f16 and f32 weights; attention over other caches
  double bytes = 0;      // weights once per step, the visible K and V once per step and sequence

  Work& operator+=(const Work& other);
  [[nodiscard]] double macs() const { return int8_macs + bf16_macs + fp32_macs; }
  // Seconds that the machine needs at its limits; 0 when they are not known.
  [[nodiscard]] double compute_seconds(const bench::Limits& limits) const;
  [[nodiscard]] double read_seconds(const bench::Limits& limits) const;
};

class WorkCounter {
 public:
  WorkCounter(const model::ModelDescription& description, kv::KvDtype kv_dtype);

  [[nodiscard]] double weight_bytes() const { return layer_bytes_ + head_bytes_; }
  // One step: `sequences` sequences, each with tokens at positions [start, start + tokens) of which
  // the last `logit_rows` go through the head.
  [[nodiscard]] Work step(std::int64_t sequences, std::int64_t start, std::int64_t tokens,
                          std::int64_t logit_rows) const;

 private:
  // Products of one row with weights of one kind.
  struct Macs {
    double int8 = 0;
    double bf16 = 0;
    double fp32 = 0;
  };
  void add_matrix(const model::TensorRef& ref, Macs& macs, double& bytes) const;

  Macs every_row_;  // per token: all layers, less what the last one does for logit rows only
  Macs logit_row_;  // the rest of the last layer, and the head
  double layer_bytes_ = 0;
  double head_bytes_ = 0;
  // Products of queries with keys in one layer: those at positions start + [first, last).
  [[nodiscard]] double pairs(bool window_layer, std::int64_t start, std::int64_t first,
                             std::int64_t last) const;

  std::int64_t full_layers_ = 0;
  std::int64_t window_layers_ = 0;
  std::int64_t window_tokens_ = 0;
  bool last_is_window_ = false;
  std::int64_t query_width_ = 0;   // heads * head_dim
  double kv_bytes_per_token_ = 0;  // of one layer
  bool bf16_attention_ = false;
};

}  // namespace baton::app
