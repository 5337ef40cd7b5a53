// Which cells of a state machine's table (state, event) were met, and how often: so that what tests
// of a table hit is counted, not believed. Filled only with BATON_FAILPOINTS (dev and sanitizer
// builds); otherwise BATON_CELLS(...) is nothing. tests/simulation prints and judges the tables.
//   BATON_CELLS(cells::prefill().hit(state, cells::PrefillEvent::kGrant));
// Thread: any.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace baton {

class CellTable {
 public:
  using Names = std::vector<std::string_view>;

  CellTable(std::string_view name, Names states, Names events)
      : name_(name),
        states_(std::move(states)),
        events_(std::move(events)),
        counts_(states_.size() * events_.size()) {}

  // State and event as numbers or enum values: their places among the names.
  template <class State, class Event>
  void hit(State state, Event event) {
    counts_[place(static_cast<std::size_t>(state), static_cast<std::size_t>(event))].fetch_add(
        1, std::memory_order_relaxed);
  }
  [[nodiscard]] std::uint64_t count(std::size_t state, std::size_t event) const {
    return counts_[place(state, event)].load(std::memory_order_relaxed);
  }

  [[nodiscard]] std::string_view name() const { return name_; }
  [[nodiscard]] const Names& states() const { return states_; }
  [[nodiscard]] const Names& events() const { return events_; }

 private:
  [[nodiscard]] std::size_t place(std::size_t state, std::size_t event) const {
    return state * events_.size() + event;
  }

  std::string_view name_;
  Names states_;
  Names events_;
  std::vector<std::atomic<std::uint64_t>> counts_;  // [state][event]
};

}  // namespace baton

#ifdef BATON_FAILPOINTS
#define BATON_CELLS(...) __VA_ARGS__
#else
#define BATON_CELLS(...) static_cast<void>(0)
#endif
