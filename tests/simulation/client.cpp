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

bool Client::wants_stop() {
  if (state_ != State::kRunning || stopped_ || plan_.stop_at < 0 ||
      tokens_ <= static_cast<std::size_t>(plan_.stop_at)) {
    return false;
  }
  stopped_ = true;
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
  if (token.index != static_cast<std::int32_t>(tokens_)) {
    return fmt::format("index {} came, {} is next", token.index, tokens_);
  }
  if (tokens_ >= cold_.size()) {
    return fmt::format("token {} came after the last one", token.index);
  }
  const message::Token& cold = cold_[tokens_++];
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
  const bool whole = tokens_ == cold_.size();
  if (!whole && !stopped_) {
    return fmt::format("the stream ended after {} of {} tokens and looks complete", tokens_,
                       cold_.size());
  }
  return {};
}

}  // namespace baton::simulation
