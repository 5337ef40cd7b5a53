#include "tests/simulation/client.h"

#include "baton/base/check.h"
#include "baton/engine/batch_scheduler.h"

#include <fmt/format.h>

#include <bit>
#include <utility>

namespace baton::simulation {

std::vector<message::Token> cold_run(const testing::NodeSetup& setup, message::Submit submit) {
  testing::NodeSetup alone = setup;
  alone.engine.prefix_cache = false;
  alone.backend.block_tokens = 32;
  alone.backend.max_step_tokens = 512;
  for (testing::FakeGroup& group : alone.backend.groups) {
    group.blocks = 64;
  }
  testing::FakeBackend backend(alone.backend);
  const ManualClock clock;
  engine::EventQueue events(1U << 16U);
  engine::BatchScheduler engine(backend, clock, alone.engine, events);
  BATON_CHECK(engine.post(message::RunLocally{std::move(submit)}));
  while (engine.run_once()) {
  }
  std::vector<message::Token> tokens;
  for (message::EngineEvent& event : events.drain()) {
    auto* step = std::get_if<message::StepTokens>(&event);
    BATON_CHECK(step != nullptr, "a cold run was refused");
    std::move(step->tokens.begin(), step->tokens.end(), std::back_inserter(tokens));
  }
  BATON_CHECK(!tokens.empty() && tokens.back().finish != message::FinishReason::kNone);
  return tokens;
}

std::shared_ptr<app::RequestStream> Client::start(const asio::any_io_executor& executor) {
  stream_ = std::make_shared<app::RequestStream>(executor, 1U << 16U);
  state_ = State::kRunning;
  return stream_;
}

Client::Client(RequestPlan plan, std::vector<std::vector<message::Token>> cold)
    : plan_(std::move(plan)) {
  for (std::vector<message::Token>& tokens : cold) {
    choices_.push_back({std::move(tokens), 0, false});
  }
}

std::size_t Client::tokens() const {
  std::size_t count = 0;
  for (const ChoiceState& choice : choices_) {
    count += choice.tokens;
  }
  return count;
}

bool Client::wants_stop() {
  ChoiceState& choice = choices_.front();
  if (state_ != State::kRunning || choice.stopped || plan_.stop_at < 0 ||
      choice.tokens <= static_cast<std::size_t>(plan_.stop_at)) {
    return false;
  }
  choice.stopped = true;
  return true;
}

std::string Client::look() {
  if (!stream_ || state_ == State::kLeft || state_ == State::kCut) {
    return {};  // nobody reads any more
  }
  while (auto event = stream_->try_pop()) {
    std::string broken;
    if (over()) {
      broken = "something came after the end";
    } else if (const auto* delivered = std::get_if<app::Delivered>(&*event)) {
      broken = take(delivered->token);
    } else if (std::holds_alternative<app::Completed>(*event)) {
      broken = take_end();
    } else if (auto* failed = std::get_if<app::Failed>(&*event)) {
      state_ = State::kFailed;
      error_ = std::move(failed->error);
    }
    if (!broken.empty()) {
      return to_string(id()).substr(0, 8) + ": " + broken;
    }
  }
  return {};
}

std::string Client::take(const message::Token& token) {
  const auto bits = [](float value) { return std::bit_cast<std::uint32_t>(value); };
  if (token.key.choice.value >= choices_.size()) {
    return fmt::format("a token of choice {} came", token.key.choice.value);
  }
  ChoiceState& choice = choices_[token.key.choice.value];
  if (token.index != static_cast<std::int32_t>(choice.tokens)) {
    return fmt::format("index {} came, {} is next", token.index, choice.tokens);
  }
  if (choice.tokens >= choice.cold.size()) {
    return fmt::format("token {} came after the last one", token.index);
  }
  const message::Token& cold = choice.cold[choice.tokens++];
  if (token.token != cold.token || bits(token.logprob) != bits(cold.logprob) ||
      token.finish != cold.finish || token.top.size() != cold.top.size()) {
    return fmt::format("index {}: token {} logprob {:08x} finish {}; cold: {} {:08x} {}",
                       token.index, token.token, bits(token.logprob),
                       static_cast<int>(token.finish), cold.token, bits(cold.logprob),
                       static_cast<int>(cold.finish));
  }
  for (std::size_t i = 0; i < cold.top.size(); ++i) {
    if (token.top[i].token != cold.top[i].token ||
        bits(token.top[i].logprob) != bits(cold.top[i].logprob)) {
      return fmt::format("index {}: other top logprobs", token.index);
    }
  }
  return {};
}

std::string Client::take_end() {
  state_ = State::kCompleted;
  for (const ChoiceState& choice : choices_) {
    if (choice.tokens != choice.cold.size() && !choice.stopped) {
      return fmt::format("the stream ended after {} of {} tokens and looks complete", choice.tokens,
                         choice.cold.size());
    }
  }
  return {};
}

}  // namespace baton::simulation
