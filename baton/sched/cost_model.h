// How long a step takes, learnt from the steps that ran: sizes prefill chunks. It never changes
// what is computed, only how it is cut, so its floating point needs no care.
#pragma once

#include "baton/base/clock.h"

#include <cstdint>

namespace baton::sched {

class CostModel {
 public:
  // A chunk of `tokens` rows at positions [start, start + tokens) took part in a step. Its work is
  // tokens (matmuls) and tokens x mean position (attention).
  struct PrefillWork {
    double tokens = 0;
    double token_positions = 0;
    void add(std::int32_t start, std::int32_t rows);
  };

  void observe(std::int32_t decode_rows, const PrefillWork& work, Duration elapsed);

  // The time a step may take: max(max_step, 2 x the last decode-only step); 2 x max_step without
  // decodes.
  [[nodiscard]] Duration step_budget(Duration max_step, bool has_decodes) const;
  // What the decode rows of a mixed step are expected to cost.
  [[nodiscard]] Duration decode_cost(bool has_decodes) const;
  // Largest number of rows from `start` that `available` is expected to cover; may be 0.
  [[nodiscard]] std::int32_t rows_within(Duration available, std::int32_t start) const;
  [[nodiscard]] Duration prefill_cost(const PrefillWork& work) const;

 private:
  [[nodiscard]] bool measured() const { return tokens_squared_ > 0; }
  void solve();

  Duration last_decode_only_{};
  // Normal equations of elapsed = a x tokens + b x token_positions, older steps fading.
  double tokens_squared_ = 0;
  double tokens_positions_ = 0;
  double positions_squared_ = 0;
  double tokens_elapsed_ = 0;
  double positions_elapsed_ = 0;
  double nanoseconds_per_token_ = 0;
  double nanoseconds_per_token_position_ = 0;
};

}  // namespace baton::sched
