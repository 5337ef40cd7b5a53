#include "baton/sched/cost_model.h"

#include <algorithm>
#include <cmath>

namespace baton::sched {

namespace {

// Before anything was measured: two tiles, short on every machine.
constexpr std::int32_t kUnmeasuredRows = 64;
// A step's weight halves about every 7 steps: follows a change of load within a second.
constexpr double kFading = 0.9;
// A mixed step's prefill part is at least this share of its time, however noisy the decode
// estimate.
constexpr double kLeastPrefillShare = 0.1;
// Below it the two columns are parallel (all chunks alike) and only the sum can be known.
constexpr double kLeastDeterminant = 1e-6;

double nanoseconds(Duration duration) { return static_cast<double>(duration.count()); }

}  // namespace

void CostModel::PrefillWork::add(std::int32_t start, std::int32_t rows) {
  tokens += rows;
  token_positions += static_cast<double>(rows) * (start + rows / 2.0);
}

void CostModel::observe(std::int32_t decode_rows, const PrefillWork& work, Duration elapsed) {
  if (work.tokens <= 0) {
    if (decode_rows > 0) {
      last_decode_only_ = elapsed;
    }
    return;
  }
  const double prefill = std::max(nanoseconds(elapsed) - nanoseconds(decode_cost(decode_rows > 0)),
                                  nanoseconds(elapsed) * kLeastPrefillShare);
  tokens_squared_ = kFading * tokens_squared_ + work.tokens * work.tokens;
  tokens_positions_ = kFading * tokens_positions_ + work.tokens * work.token_positions;
  positions_squared_ = kFading * positions_squared_ + work.token_positions * work.token_positions;
  tokens_elapsed_ = kFading * tokens_elapsed_ + work.tokens * prefill;
  positions_elapsed_ = kFading * positions_elapsed_ + work.token_positions * prefill;
  solve();
}

void CostModel::solve() {
  const double determinant =
      tokens_squared_ * positions_squared_ - tokens_positions_ * tokens_positions_;
  double per_token = 0;
  double per_position = 0;
  if (determinant > kLeastDeterminant * tokens_squared_ * positions_squared_) {
    per_token = (tokens_elapsed_ * positions_squared_ - positions_elapsed_ * tokens_positions_) /
                determinant;
    per_position =
        (positions_elapsed_ * tokens_squared_ - tokens_elapsed_ * tokens_positions_) / determinant;
  }
  if (per_token <= 0 || per_position < 0) {
    per_token = tokens_elapsed_ / tokens_squared_;
    per_position = 0;
  }
  nanoseconds_per_token_ = per_token;
  nanoseconds_per_token_position_ = per_position;
}

Duration CostModel::step_budget(Duration max_step, bool has_decodes) const {
  return has_decodes ? std::max(max_step, 2 * last_decode_only_) : 2 * max_step;
}

Duration CostModel::decode_cost(bool has_decodes) const {
  return has_decodes ? last_decode_only_ : Duration::zero();
}

Duration CostModel::prefill_cost(const PrefillWork& work) const {
  return Duration(std::llround(work.tokens * nanoseconds_per_token_ +
                               work.token_positions * nanoseconds_per_token_position_));
}

std::int32_t CostModel::rows_within(Duration available, std::int32_t start) const {
  if (available <= Duration::zero()) {
    return 0;
  }
  if (!measured()) {
    return kUnmeasuredRows;
  }
  // per_position / 2 n^2 + (per_token + per_position start) n = available, in the form that does
  // not cancel when per_position is small.
  const double linear =
      std::max(nanoseconds_per_token_ + nanoseconds_per_token_position_ * start, 1e-3);
  const double root =
      std::sqrt(linear * linear + 2.0 * nanoseconds_per_token_position_ * nanoseconds(available));
  const double rows = 2.0 * nanoseconds(available) / (linear + root);
  return static_cast<std::int32_t>(std::min(rows, 1e9));
}

}  // namespace baton::sched
