#include "baton/net/event_loop.h"

#include "baton/base/check.h"

#include <pthread.h>

namespace baton::net {

EventLoop::EventLoop(std::string name) : work_(asio::make_work_guard(context_)) {
  thread_ = std::thread([this, name = std::move(name)] {
    pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
    context_.run();
  });
}

EventLoop::~EventLoop() { stop(); }

void EventLoop::stop() {
  BATON_CHECK(std::this_thread::get_id() != thread_.get_id(), "a loop cannot join itself");
  context_.stop();
  if (thread_.joinable()) {
    thread_.join();
  }
}

IoPool::IoPool(std::size_t threads, const std::string& name) {
  BATON_CHECK(threads > 0);
  for (std::size_t i = 0; i < threads; ++i) {
    loops_.push_back(std::make_unique<EventLoop>(name + std::to_string(i)));
  }
}

void IoPool::stop() {
  for (auto& loop : loops_) {
    loop->stop();
  }
}

}  // namespace baton::net
