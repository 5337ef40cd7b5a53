// What the bodies of all requests in a server may take together. A room goes with its HttpRequest,
// so it is given back where the bytes are.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <utility>

namespace baton::http {

// Thread: any.
class BodyBudget : public std::enable_shared_from_this<BodyBudget> {
 public:
  explicit BodyBudget(std::size_t bytes) : limit_(bytes) {}

  // Thread: one at a time.
  class Room {
   public:
    explicit Room(std::shared_ptr<BodyBudget> budget) : budget_(std::move(budget)) {}
    ~Room() { hold(0); }
    Room(const Room&) = delete;
    Room& operator=(const Room&) = delete;
    // So many bytes from now on. False, and as many as before: they are not free.
    bool hold(std::size_t bytes);

   private:
    std::shared_ptr<BodyBudget> budget_;
    std::size_t bytes_ = 0;
  };

  [[nodiscard]] std::shared_ptr<Room> room() { return std::make_shared<Room>(shared_from_this()); }
  [[nodiscard]] std::size_t limit() const { return limit_; }
  [[nodiscard]] std::size_t taken() const { return taken_.load(); }

 private:
  const std::size_t limit_;
  std::atomic<std::size_t> taken_ = 0;
};

}  // namespace baton::http
