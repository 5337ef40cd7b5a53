#include "baton/http/body_budget.h"

#include <utility>

namespace baton::http {

void BodyBudget::Room::shrink_to(std::size_t bytes) {
  if (bytes < bytes_) {
    budget_->taken_ -= bytes_ - std::exchange(bytes_, bytes);
  }
}

std::shared_ptr<BodyBudget::Room> BodyBudget::take(std::size_t bytes) {
  std::size_t taken = taken_.load();
  do {
    if (bytes > limit_ - taken) {
      return nullptr;
    }
  } while (!taken_.compare_exchange_weak(taken, taken + bytes));
  return std::make_shared<Room>(shared_from_this(), bytes);
}

}  // namespace baton::http
