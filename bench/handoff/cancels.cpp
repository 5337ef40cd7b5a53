// How long KV blocks stay taken once a client has left: by looking at both nodes' /metrics in turn.
#include "baton/net/event_loop.h"
#include "baton/net/task_group.h"

#include <boost/asio/use_future.hpp>
#include <fmt/format.h>

#include "bench/handoff/measure.h"
#include "bench/handoff/stop.h"
#include "bench/serving/load.h"
#include "bench/serving/stream_reader.h"
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <utility>

namespace baton::bench_handoff {

namespace {

constexpr int kTimes = 5;  // of each phase
constexpr Duration kPatience = std::chrono::minutes(1);
constexpr Duration kIntoPrefill = std::chrono::milliseconds(300);  // some chunks are under way
constexpr std::size_t kIntoDecode = 20;                            // tokens
constexpr std::int32_t kLongPrompt = 4096;                         // seconds of prefill
constexpr std::int32_t kShortPrompt = 256;
constexpr std::int32_t kLongAnswer = 512;
constexpr std::uint64_t kFirstSeed = 9'000;

// A request whose client can leave at any moment.
class OpenRequest {
 public:
  OpenRequest(http::HttpTarget target, std::string body)
      : target_(std::move(target)),
        body_(std::move(body)),
        loop_("bench-leaver"),
        tasks_(loop_.executor()) {
    asio::co_spawn(loop_.executor(), start(), asio::use_future).get();
  }
  ~OpenRequest() {
    leave();
    loop_.stop();
  }
  OpenRequest(const OpenRequest&) = delete;
  OpenRequest& operator=(const OpenRequest&) = delete;

  [[nodiscard]] std::size_t tokens() const { return tokens_; }
  [[nodiscard]] bool ended() const { return ended_; }
  // Closes the connection.
  void leave() { asio::co_spawn(loop_.executor(), stop(), asio::use_future).get(); }

 private:
  asio::awaitable<void> start() {
    tasks_.spawn(request());
    co_return;
  }
  asio::awaitable<void> stop() {
    tasks_.stop();
    co_await tasks_.wait_empty();
  }
  asio::awaitable<void> request() {
    serving::StreamReader reader(&record_, false);
    http::OnBytes on_bytes = [&](std::string_view bytes, TimePoint at) {
      const bool more = reader.feed(bytes, at);
      tokens_ = record_.arrivals.size();
      return more;
    };
    std::string method = "POST";
    std::string path = "/v1/completions";
    static_cast<void>(co_await http::fetch(&target_, std::move(method), std::move(path),
                                           std::move(body_), std::move(on_bytes)));
    ended_ = true;
  }

  http::HttpTarget target_;
  std::string body_;
  serving::RequestRecord record_;  // of the loop's thread
  std::atomic<std::size_t> tokens_{0};
  std::atomic<bool> ended_{false};
  net::EventLoop loop_;
  net::TaskGroup tasks_;
};

std::string body_of(const Setup& setup, std::int32_t prompt_tokens, std::uint64_t seed) {
  const std::int32_t context = setup.model.max_model_len;
  serving::PlannedRequest request;
  request.output_tokens = std::min(kLongAnswer, context / 2);
  request.prompt = {{1, std::min(prompt_tokens, context - request.output_tokens)}};
  serving::LoadOptions load;
  load.model = setup.model.name;
  load.ignore_eos = true;
  load.seed = seed;
  return serving::request_body(load, request);
}

Status wait_blocks_free(const Setup& setup, const Server& server) {
  const TimePoint end = SystemClock().now() + kPatience;
  for (const http::HttpTarget& node : {*server.prefill, *server.decode}) {
    while (true) {
      BATON_TRY_VOID(still_wanted(setup.stop));
      BATON_TRY(const MetricsText page, scrape(node));
      BATON_TRY(const bool free, idle(page));
      if (free) {
        break;
      }
      if (SystemClock().now() > end) {
        return fail(
            ErrorCode::kDeadlineExceeded,
            fmt::format("{}: blocks are still in use a minute after the client left", node.host));
      }
    }
  }
  return {};
}

// Waits for the moment at which the client is to leave. Errors: as measure_cancels.
Status wait_for_phase(const Setup& setup, const OpenRequest& request, bool prefill) {
  const Server& server = setup.servers.at(Shape::kSplit);
  bool reached = false;
  static_cast<void>(wait_until(setup.stop, kPatience, [&] {
    if (prefill) {
      const auto page = scrape(*server.prefill);
      const auto owned = page ? owned_blocks(*page) : 0.0;
      reached = owned && *owned > 0;
    } else {
      reached = request.tokens() > kIntoDecode;
    }
    return reached || request.ended();
  }));
  if (reached && prefill) {
    std::this_thread::sleep_for(kIntoPrefill);
  }
  BATON_TRY_VOID(still_wanted(setup.stop));
  if (!reached || request.ended()) {
    return fail(ErrorCode::kUnavailable,
                fmt::format("{}: the request whose client was to leave during {} {}", server.name,
                            prefill ? "prefill" : "decode",
                            reached ? "ended before" : "did not come that far"));
  }
  return {};
}

Result<double> cancel_ms(const Setup& setup, bool prefill, std::uint64_t seed) {
  const Server& server = setup.servers.at(Shape::kSplit);
  OpenRequest request(server.front, body_of(setup, prefill ? kLongPrompt : kShortPrompt, seed));
  BATON_TRY_VOID(wait_for_phase(setup, request, prefill));
  const TimePoint left = SystemClock().now();
  request.leave();
  BATON_TRY_VOID(wait_blocks_free(setup, server));
  return std::chrono::duration<double, std::milli>(SystemClock().now() - left).count();
}

}  // namespace

Status measure_cancels(const Setup& setup, CancelTimes& times) {
  for (const bool prefill : {true, false}) {
    std::vector<double>& values = prefill ? times.prefill_ms : times.decode_ms;
    for (int time = 0; time < kTimes; ++time) {
      const auto seed = kFirstSeed + (prefill ? 0U : 100U) + static_cast<std::uint64_t>(time);
      BATON_TRY(values.emplace_back(), cancel_ms(setup, prefill, seed));
    }
  }
  return {};
}

}  // namespace baton::bench_handoff
