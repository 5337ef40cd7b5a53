// Event loops: an io_context with one thread each, so that what runs on one loop needs no lock. The
// control loop carries role loops, leases and heartbeats; the I/O pool carries bulk connections,
// HTTP and JSON. Stop and destroy loops only after everything that runs on them has ended
// (TaskGroup).
#pragma once

#include "baton/net/asio.h"

#include <atomic>
#include <cstddef>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace baton::net {

class EventLoop {
 public:
  // Starts the thread. `name` (at most 15 characters) is what top -H shows.
  explicit EventLoop(std::string name);
  ~EventLoop();  // stop()
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  [[nodiscard]] asio::io_context& context() { return context_; }
  [[nodiscard]] asio::any_io_executor executor() { return context_.get_executor(); }

  // Drops what is left unfinished and joins. Idempotent. Thread: any but the loop's own.
  void stop();

 private:
  asio::io_context context_{1};
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  std::thread thread_;
};

// Several loops; a connection is given one of them for its whole life.
class IoPool {
 public:
  explicit IoPool(std::size_t threads, const std::string& name = "baton-io");

  [[nodiscard]] std::size_t size() const { return loops_.size(); }
  [[nodiscard]] asio::any_io_executor executor(std::size_t index) {
    return loops_[index]->executor();
  }
  // The loops in turn. Thread: any.
  [[nodiscard]] std::size_t pick() { return next_.fetch_add(1) % loops_.size(); }
  void stop();

 private:
  std::vector<std::unique_ptr<EventLoop>> loops_;
  std::atomic<std::size_t> next_{0};
};

}  // namespace baton::net
