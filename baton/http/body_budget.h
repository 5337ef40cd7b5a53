// What the bodies of all requests in a server may take together. A room is taken before a body is
// read and goes with its HttpRequest, so it is given back where the bytes are.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>

namespace baton::http {

// Thread: any.
class BodyBudget : public std::enable_shared_from_this<BodyBudget> {
 public:
  explicit BodyBudget(std::size_t bytes) : limit_(bytes) {}

  class Room {
   public:
    Room(std::shared_ptr<BodyBudget> budget, std::size_t bytes)
        : budget_(std::move(budget)), bytes_(bytes) {}
    ~Room() { budget_->taken_ -= bytes_; }
    Room(const Room&) = delete;
    Room& operator=(const Room&) = delete;
    // The body became smaller than was feared. Thread: one.
    void shrink_to(std::size_t bytes);

   private:
    std::shared_ptr<BodyBudget> budget_;
    std::size_t bytes_;
  };

  // Null when so many bytes are not free.
  [[nodiscard]] std::shared_ptr<Room> take(std::size_t bytes);
  [[nodiscard]] std::size_t limit() const { return limit_; }
  [[nodiscard]] std::size_t taken() const { return taken_.load(); }

 private:
  const std::size_t limit_;
  std::atomic<std::size_t> taken_ = 0;
};

}  // namespace baton::http
