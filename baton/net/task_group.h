// Every spawned coroutine belongs to a TaskGroup: a gate that can be closed, cancels all, and is
// waited for. A task ends by returning or by its cancellation (operation_aborted, which is no
// error); any other exception that leaves it is a bug of ours: logged, counted, and only that task
// ends.
#pragma once

#include "baton/net/asio.h"
#include "baton/net/async_event.h"

#include <cstdint>
#include <memory>
#include <unordered_map>

namespace baton::net {

struct TaskId {
  std::uint64_t value = 0;  // 0: none
  auto operator<=>(const TaskId&) const = default;
};

// Thread: all of it on `executor`, which must be serial.
class TaskGroup {
 public:
  explicit TaskGroup(asio::any_io_executor executor);
  ~TaskGroup();  // BATON_CHECKs that no task is left
  TaskGroup(const TaskGroup&) = delete;
  TaskGroup& operator=(const TaskGroup&) = delete;

  // Starts a task on the group's executor (it runs after this call returns). After stop() nothing
  // is started and the id is 0. The task must not outlive what it refers to: wait for the group
  // first.
  TaskId spawn(asio::awaitable<void> task);
  // Cancels one task (terminal). Unknown ids are ignored.
  void cancel(TaskId id);
  // Closes the gate and cancels every task. Idempotent.
  void stop();
  // After stop(): completes when the last task has ended. One waiter. Not from a task of this
  // group.
  asio::awaitable<void> wait_empty();

  [[nodiscard]] std::size_t size() const { return tasks_.size(); }
  [[nodiscard]] bool stopped() const { return stopped_; }
  [[nodiscard]] const asio::any_io_executor& executor() const { return executor_; }

 private:
  void leave(TaskId id);

  asio::any_io_executor executor_;
  std::unordered_map<std::uint64_t, std::unique_ptr<asio::cancellation_signal>> tasks_;
  std::uint64_t last_id_ = 0;
  bool stopped_ = false;
  AsyncEvent empty_;
};

}  // namespace baton::net
