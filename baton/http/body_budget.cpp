#include "baton/http/body_budget.h"

namespace baton::http {

bool BodyBudget::Room::hold(std::size_t bytes) {
  std::atomic<std::size_t>& all = budget_->taken_;
  if (bytes <= bytes_) {
    all -= bytes_ - bytes;
    bytes_ = bytes;
    return true;
  }
  const std::size_t more = bytes - bytes_;
  std::size_t taken = all.load();
  do {
    if (more > budget_->limit_ - taken) {
      return false;
    }
  } while (!all.compare_exchange_weak(taken, taken + more));
  bytes_ = bytes;
  return true;
}

}  // namespace baton::http
