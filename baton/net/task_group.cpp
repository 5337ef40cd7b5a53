#include "baton/net/task_group.h"

#include "baton/base/check.h"

#include <exception>

namespace baton::net {

namespace {

// The end of a task: cancellation is no error, anything else is our bug.
void report(const std::exception_ptr& failure) {
  if (!failure) {
    return;
  }
  try {
    std::rethrow_exception(failure);
  } catch (const boost::system::system_error& error) {
    if (error.code() != asio::error::operation_aborted) {
      BATON_BUG("a task ended with {}", error.what());
    }
  } catch (const std::exception& error) {
    BATON_BUG("a task ended with {}", error.what());
  }
}

}  // namespace

TaskGroup::TaskGroup(asio::any_io_executor executor)
    : executor_(std::move(executor)), empty_(executor_) {}

TaskGroup::~TaskGroup() {
  BATON_CHECK(tasks_.empty(), "{} tasks left: stop() and wait_empty() first", tasks_.size());
}

TaskId TaskGroup::spawn(asio::awaitable<void> task) {
  if (stopped_) {
    return TaskId{};
  }
  const TaskId id{++last_id_};
  auto signal = std::make_unique<asio::cancellation_signal>();
  const asio::cancellation_slot slot = signal->slot();
  tasks_.emplace(id.value, std::move(signal));
  // The signal must outlive the coroutine's frame, hence the extra turn before leave().
  asio::co_spawn(executor_, std::move(task),
                 asio::bind_cancellation_slot(slot, [this, id](std::exception_ptr failure) {
                   report(failure);
                   asio::post(executor_, [this, id] { leave(id); });
                 }));
  return id;
}

void TaskGroup::cancel(TaskId id) {
  const auto found = tasks_.find(id.value);
  if (found != tasks_.end()) {
    found->second->emit(asio::cancellation_type::terminal);
  }
}

void TaskGroup::stop() {
  if (stopped_) {
    return;
  }
  stopped_ = true;
  for (auto& [id, signal] : tasks_) {
    signal->emit(asio::cancellation_type::terminal);
  }
  empty_.set();
}

void TaskGroup::leave(TaskId id) {
  tasks_.erase(id.value);
  if (tasks_.empty()) {
    empty_.set();
  }
}

asio::awaitable<void> TaskGroup::wait_empty() {
  while (!tasks_.empty()) {
    co_await empty_.wait();
  }
}

}  // namespace baton::net
