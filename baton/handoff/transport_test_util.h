// For tests of transports: a node with its events collected, a sink with bounded memory, messages.
// The control loop runs on a thread of its own; a test acts on it by on_loop() and waits for
// events.
#pragma once

#include "baton/handoff/handshake.h"
#include "baton/handoff/transport.h"
#include "baton/net/event_loop.h"
#include "baton/net/task_group.h"

#include <gtest/gtest.h>

#include "tests/support/on_loop.h"
#include "tests/support/pieces.h"
#include <algorithm>
#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <map>
#include <mutex>
#include <vector>

namespace baton::handoff::test {

inline wire::pb::Hello hello(const std::string& id, message::NodeRole role) {
  message::NodeInfo info;
  info.id = NodeId{id};
  info.role = role;
  info.exactness_tag = "tag-1";
  info.max_context_tokens = 8192;
  info.pool_tokens = 1 << 16;
  kv::KvLayout layout;
  layout.groups.push_back(
      kv::KvGroup{kv::GroupKind::kFull, 0, {0, 1, 2, 3}, 3, 64, kv::KvDtype::kBf16});
  return make_hello(info, layout, "model-1", "tokenizer-1");
}

inline SequenceKey key_of(std::uint64_t number) {
  return SequenceKey{RequestId{7, number}, Choice{0}, Epoch{1}};
}

inline std::vector<std::byte> pattern(std::size_t bytes, std::uint32_t seed) {
  std::vector<std::byte> data(bytes);
  std::uint32_t state = seed * 2654435761U + 1;
  for (auto& byte : data) {
    state = state * 1664525U + 1013904223U;
    byte = static_cast<std::byte>(state >> 24);
  }
  return data;
}

using testing::pieces;

// Grants every key in `expected` its bytes, refuses others.
class TestSink final : public BulkSink {
 public:
  void expect(const SequenceKey& key, std::size_t bytes, std::size_t piece_bytes = 100'003) {
    std::lock_guard lock(mutex_);
    places_[key] = {std::vector<std::byte>(bytes), piece_bytes};
  }
  std::vector<std::byte> bytes(const SequenceKey& key) {
    std::lock_guard lock(mutex_);
    return places_.at(key).first;
  }
  Result<std::vector<std::span<std::byte>>> accept(const NodeId&, const SequenceKey& key,
                                                   const wire::BlocksHeader&) override {
    std::lock_guard lock(mutex_);
    const auto found = places_.find(key);
    if (found == places_.end()) {
      return fail(ErrorCode::kCancelled, "unknown key");
    }
    ++accepted;
    return pieces(std::span<std::byte>(found->second.first), found->second.second);
  }
  void landed(const SequenceKey&, const wire::BlocksHeader&) override {
    std::lock_guard lock(mutex_);
    ++done;
  }
  int accepted = 0;
  int done = 0;

 private:
  std::mutex mutex_;
  std::map<SequenceKey, std::pair<std::vector<std::byte>, std::size_t>> places_;
};

// One node: its transport and everything that next() gave.
class TestNode {
 public:
  TestNode(net::EventLoop* loop, std::unique_ptr<Transport> given)
      : loop_(loop), transport(std::move(given)), tasks_(loop->executor()) {
    transport->set_bulk_sink(&sink);
    on_loop([&] { tasks_.spawn(collect()); });
  }
  ~TestNode() { stop(); }

  void stop() {
    if (!stopped_) {
      stopped_ = true;
      on_loop([&] { transport->shutdown(); });
      wait(end());
      EXPECT_TRUE(ended_);  // next() ended by itself
      EXPECT_EQ(sink.accepted, sink.done);
    }
  }

  template <class Function>
  std::invoke_result_t<Function> on_loop(Function function) {
    return testing::on_loop(*loop_, std::move(function));
  }
  // Runs a coroutine on the loop and waits for its result.
  template <class T>
  T wait(asio::awaitable<T> work) {
    std::promise<T> promise;
    asio::co_spawn(loop_->executor(), std::move(work),
                   [&promise](const std::exception_ptr& failure, T value) {
                     failure ? promise.set_exception(failure) : promise.set_value(std::move(value));
                   });
    return promise.get_future().get();
  }

  // The first event of that type, not yet taken, for which `wanted` holds; fails after 20 s.
  template <class Event>
  Event take(std::function<bool(const Event&)> wanted = [](const Event&) { return true; }) {
    std::unique_lock lock(mutex_);
    std::optional<Event> found;
    const bool in_time = changed_.wait_for(lock, std::chrono::seconds(20), [&] {
      for (auto event = events_.begin(); event != events_.end(); ++event) {
        if (auto* as = std::get_if<Event>(&*event); as != nullptr && wanted(*as)) {
          found = std::move(*as);
          events_.erase(event);
          return true;
        }
      }
      return false;
    });
    EXPECT_TRUE(in_time) << "no such event";
    if (!found) {
      throw std::runtime_error("an expected event did not come");
    }
    return *std::move(found);
  }
  template <class Event>
  std::size_t count() {
    std::lock_guard lock(mutex_);
    std::size_t number = 0;
    for (const auto& event : events_) {
      number += std::holds_alternative<Event>(event) ? 1 : 0;
    }
    return number;
  }

  // True when, of the events not yet taken, the first `Earlier` precedes the first `Later`. Waits
  // for both.
  template <class Earlier, class Later>
  bool in_order() {
    std::unique_lock lock(mutex_);
    std::size_t earlier = 0;
    std::size_t later = 0;
    const bool both = changed_.wait_for(lock, std::chrono::seconds(20), [&] {
      earlier = position<Earlier>();
      later = position<Later>();
      return std::max(earlier, later) < events_.size();
    });
    return both && earlier < later;
  }

  Status control(const std::string& to, const SequenceKey& key, wire::Control message) {
    return on_loop([&] { return transport->send_control(NodeId{to}, key, std::move(message)); });
  }
  Result<BulkSent> blocks(const std::string& to, const SequenceKey& key, std::uint64_t sequence,
                          std::span<const std::byte> data, std::size_t piece_bytes = 65'537) {
    wire::BlocksHeader header{0, 0, 4, 0, 3, 0, 4, 128};
    return wait(
        transport->send_blocks(NodeId{to}, key, header, sequence, pieces(data, piece_bytes)));
  }
  Status commit(const std::string& to, const SequenceKey& key, wire::pb::Commit message) {
    return wait(transport->send_commit(NodeId{to}, key, std::move(message)));
  }

  TestSink sink;

 private:
  asio::awaitable<void> collect() {
    while (true) {
      auto event = co_await transport->next();
      if (!event) {
        co_return;
      }
      std::lock_guard lock(mutex_);
      events_.push_back(*std::move(event));
      changed_.notify_all();
    }
  }
  template <class Event>
  std::size_t position() const {
    std::size_t at = 0;
    while (at < events_.size() && !std::holds_alternative<Event>(events_[at])) {
      ++at;
    }
    return at;
  }
  asio::awaitable<int> end() {
    co_await transport->stopped();
    co_await tasks_.wait_empty();
    ended_ = true;
    co_return 0;
  }

  net::EventLoop* loop_;

 public:
  std::unique_ptr<Transport> transport;

 private:
  net::TaskGroup tasks_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<TransportEvent> events_;
  bool stopped_ = false;
  bool ended_ = false;
};

inline wire::pb::Commit sample_commit() {
  wire::pb::Commit commit;
  commit.set_frames(1);
  commit.set_digest(std::string(16, 'd'));
  commit.set_tokens_digest(std::string(16, 't'));
  commit.set_kv_tokens(5);
  auto* token = commit.add_first();
  token->set_request_high(7);
  token->set_token(3);
  return commit;
}

inline wire::pb::Beat beat(std::uint64_t step) {
  wire::pb::Beat message;
  message.set_step_count(step);
  return message;
}

}  // namespace baton::handoff::test
