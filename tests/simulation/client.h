// A client of the simulation: what it was given of its request, judged as it comes.
#pragma once

#include "baton/message/request.h"

#include "apps/baton/owner_loop.h"
#include "tests/simulation/plan.h"
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace baton::simulation {

// What a node alone, with room for all and nothing cached, answers: the promise.
std::vector<message::Token> cold_run(const testing::NodeSetup& setup, message::Submit submit);

class Client {
 public:
  enum class State {
    kWaiting,    // not sent yet
    kRunning,    // an answer is due
    kCompleted,  // the whole answer came
    kFailed,     // an error came instead of the rest
    kLeft,       // it went away
    kCut,        // its router died
  };

  // cold: what each choice must be.
  Client(RequestPlan plan, std::vector<std::vector<message::Token>> cold);

  [[nodiscard]] const RequestPlan& plan() const { return plan_; }
  [[nodiscard]] RequestId id() const { return plan_.submit.key.request; }
  [[nodiscard]] State state() const { return state_; }
  [[nodiscard]] bool over() const { return state_ != State::kWaiting && state_ != State::kRunning; }
  [[nodiscard]] std::size_t tokens() const;  // of all choices
  [[nodiscard]] std::size_t tokens(Choice choice) const { return choices_[choice.value].tokens; }
  [[nodiscard]] const std::optional<Error>& error() const { return error_; }

  std::shared_ptr<app::RequestStream> start(const asio::any_io_executor& executor);
  // Takes what has come. The first broken promise in words, or empty: a token that is not the next
  // one of the cold run, an end that is none, anything after the end.
  std::string look();
  // The stop string is complete: the choice is to be stopped, once.
  [[nodiscard]] bool wants_stop();
  [[nodiscard]] bool wants_to_leave() const {
    return state_ == State::kRunning && plan_.cancel_after_tokens >= 0 &&
           tokens() >= static_cast<std::size_t>(plan_.cancel_after_tokens);
  }
  void leave() { state_ = State::kLeft; }
  void cut() { state_ = State::kCut; }

 private:
  std::string take(const message::Token& token);
  std::string take_end();

  RequestPlan plan_;
  struct ChoiceState {
    std::vector<message::Token> cold;
    std::size_t tokens = 0;
    bool stopped = false;
  };
  std::vector<ChoiceState> choices_;
  std::shared_ptr<app::RequestStream> stream_;
  State state_ = State::kWaiting;
  std::optional<Error> error_;
};

}  // namespace baton::simulation
