#include "bench/serving/load.h"

#include "baton/net/async_clock.h"
#include "baton/net/event_loop.h"
#include "baton/net/task_group.h"

#include <boost/asio/use_future.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sys/resource.h>

#include "bench/serving/stream_reader.h"
#include <chrono>
#include <utility>

namespace baton::serving {

namespace {

constexpr Duration kWakeInterval = std::chrono::milliseconds(10);

bool is_chat(const LoadOptions& options) {
  return options.endpoint.find("chat/completions") != std::string::npos;
}

std::string failure_kind(const Error& error) {
  switch (error.code) {
    case ErrorCode::kUnavailable:
      return "connect";
    case ErrorCode::kDeadlineExceeded:
      return "timeout";
    case ErrorCode::kProtocol:
      return "bad_http";
    default:
      return "connection_lost";
  }
}

// Each request under way is a descriptor; the usual soft limit of 1,024 is soon reached.
void raise_descriptor_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);  // refused: requests that find none are counted as such
  }
}

// One run. Everything but run() on the loop's thread.
class Load {
 public:
  Load(const LoadOptions& options, const std::vector<PlannedRequest>& plan)
      : options_(options),
        plan_(plan),
        loop_("bench-load"),
        tasks_(loop_.executor()),
        slot_free_(loop_.executor()) {}

  LoadResult run() {
    result_.records.resize(plan_.size());
    asio::co_spawn(loop_.executor(), drive(), asio::use_future).get();
    loop_.stop();
    return std::move(result_);
  }

 private:
  asio::awaitable<void> drive() {
    result_.started = clock_.now();
    result_.started_unix_s =
        std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
    tasks_.spawn(watch_wake_ups());
    co_await send_all();
    while (active_ > 0) {
      co_await slot_free_.wait();
    }
    result_.ended = result_.started;
    for (const RequestRecord& record : result_.records) {
      result_.ended = std::max(result_.ended, record.ended);
    }
    tasks_.stop();
    co_await tasks_.wait_empty();
  }

  asio::awaitable<void> send_all() {
    for (std::size_t index = 0; index < plan_.size(); ++index) {
      // Made before its time has come: writing 100 kB of ids must not delay the sending.
      std::string body = request_body(options_, plan_[index]);
      RequestRecord& record = result_.records[index];
      record.scheduled = result_.started + plan_[index].at;
      record.planned_prompt_tokens = static_cast<std::int32_t>(token_count(plan_[index].prompt));
      record.planned_output_tokens = plan_[index].output_tokens;
      co_await clock_.sleep_until(record.scheduled);
      record.released = record.scheduled;
      while (options_.max_concurrency > 0 && active_ >= options_.max_concurrency) {
        co_await slot_free_.wait();
        record.released = clock_.now();
      }
      ++active_;
      tasks_.spawn(one(&record, std::move(body)));
      // Where many leave at once, each does before the next body is made.
      co_await asio::post(loop_.executor(), asio::use_awaitable);
    }
  }

  asio::awaitable<void> one(RequestRecord* record, std::string body) {
    record->sent = clock_.now();
    StreamReader reader(record, options_.keep_ids);
    http::OnBytes on_bytes = [&reader](std::string_view bytes, TimePoint at) {
      return reader.feed(bytes, at);
    };
    std::string method = "POST";
    std::string path = options_.endpoint;
    auto answer = co_await http::fetch(&options_.target, std::move(method), std::move(path),
                                       std::move(body), std::move(on_bytes));
    record->ended = clock_.now();
    if (!answer) {
      reader.finish(&answer.error());
      if (!record->whole && record->arrivals.empty()) {  // nothing had come: say what happened
        record->failure = failure_kind(answer.error());
      }
    } else if (answer->status != 200) {
      fail_by_status(*record, answer->status, answer->body);
    } else {
      reader.finish(nullptr);
    }
    if (record->ok() && record->arrivals.empty()) {
      record->failure = "no_token";
      record->failure_message = "the stream was whole and brought no token";
    }
    --active_;
    slot_free_.set();
  }

  // How late this thread is when its time comes: what is read then is stamped that much too late.
  asio::awaitable<void> watch_wake_ups() {
    while (true) {
      const TimePoint due = clock_.now() + kWakeInterval;
      co_await clock_.sleep_until(due);
      const Duration late = clock_.now() - due;
      if (late < Duration{}) {
        co_return;  // the end of the load, not of the sleep
      }
      result_.wake_ups.push_back(late);
    }
  }

  const LoadOptions& options_;
  const std::vector<PlannedRequest>& plan_;
  net::SystemAsyncClock clock_;
  net::EventLoop loop_;
  net::TaskGroup tasks_;
  net::AsyncEvent slot_free_;
  std::size_t active_ = 0;
  LoadResult result_;
};

asio::awaitable<Result<http::HttpAnswer>> get_models(const http::HttpTarget* target) {
  std::string method = "GET";
  std::string path = "/v1/models";
  std::string body;
  http::OnBytes keep_all;
  co_return co_await http::fetch(target, std::move(method), std::move(path), std::move(body),
                                 std::move(keep_all));
}

}  // namespace

Result<http::HttpTarget> parse_base_url(std::string_view url) {
  auto target = http::parse_http_url(url, "--base-url");
  if (target && target->prefix.ends_with("/v1")) {
    target->prefix.resize(target->prefix.size() - 3);
  }
  return target;
}

std::string request_body(const LoadOptions& options, const PlannedRequest& request) {
  nlohmann::ordered_json body = {{"model", options.model}};
  if (is_chat(options)) {
    const nlohmann::ordered_json message = {
        {"role", "user"}, {"content", prompt_text(request.prompt, options.seed, options.ids)}};
    body["messages"] = nlohmann::ordered_json::array({message});
  } else if (options.format == PromptFormat::kText) {
    body["prompt"] = prompt_text(request.prompt, options.seed, options.ids);
  } else {
    body["prompt"] = prompt_ids(request.prompt, options.seed, options.ids);
  }
  body["max_tokens"] = request.output_tokens;
  body["temperature"] = options.temperature;
  body["stream"] = true;
  body["stream_options"] = {{"include_usage", true}};
  if (options.ignore_eos) {
    body["ignore_eos"] = true;
  }
  if (options.ask_for_ids) {
    body["return_token_ids"] = true;
  }
  return body.dump();
}

LoadResult run_load(const LoadOptions& options, const std::vector<PlannedRequest>& plan) {
  raise_descriptor_limit();
  return Load(options, plan).run();
}

Result<std::string> ask_for_model(const http::HttpTarget& target) {
  asio::io_context context;
  auto asked = asio::co_spawn(context, get_models(&target), asio::use_future);
  context.run();
  auto answer = asked.get();
  const auto failed = [](std::string what) {
    return fail(ErrorCode::kInvalidArgument, std::move(what));
  };
  if (!answer) {
    return failed("--base-url: " + answer.error().message);
  }
  if (answer->status == 401 || answer->status == 403) {
    return failed(
        fmt::format("--api-key: the server answers {}: set OPENAI_API_KEY", answer->status));
  }
  const auto page = nlohmann::json::parse(answer->body, nullptr, false);
  const nlohmann::json::json_pointer first("/data/0/id");
  if (answer->status != 200 || !page.is_object() || !page.contains(first) ||
      !page[first].is_string()) {
    return failed(fmt::format("--model: /v1/models answers {} and names no model: give its name",
                              answer->status));
  }
  return page[first].get<std::string>();
}

}  // namespace baton::serving
