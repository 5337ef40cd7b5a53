// The load over real loopback sockets, against a server whose answers are written here.
#include "bench/serving/load.h"

#include "baton/http/routes.h"
#include "baton/http/server.h"
#include "baton/net/async_clock.h"
#include "baton/net/async_event.h"
#include "baton/net/event_loop.h"

#include <boost/asio/use_future.hpp>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/resource.h>

#include "bench/serving/summary.h"
#include <future>
#include <memory>
#include <set>

namespace baton::serving {
namespace {

using http::HttpRequest;
using http::HttpResponse;
using http::ResponseWriter;

HttpResponse page(const Error& error) {
  HttpResponse response;
  response.status = error.code == ErrorCode::kNotFound ? 404 : 400;
  response.body = R"({"error":{"message":")" + error.message + "\"}}";
  return response;
}

std::string chunk(int token) {
  std::string out;
  http::append_event(out,
                     R"({"choices":[{"text":"x","token_ids":[)" + std::to_string(token) + "]}]}");
  return out;
}
std::string last_chunks(std::size_t prompt_tokens, int tokens) {
  std::string out;
  http::append_event(out, R"({"choices":[],"usage":{"prompt_tokens":)" +
                              std::to_string(prompt_tokens) + R"(,"completion_tokens":)" +
                              std::to_string(tokens) + "}}");
  http::append_event(out, "[DONE]");
  return out;
}

// Answers as many tokens as asked for, but for some requests that go wrong in one way.
class ServerOf {
 public:
  enum Fault { kNone, kRefuse, kCut, kShort, kErrorEvent, kNothing };

  explicit ServerOf(std::size_t wait_for = 0) : wait_for_(wait_for) {
    http::Routes routes;
    routes.add("POST", "/v1/completions", [this](HttpRequest request, ResponseWriter& writer) {
      return answer(std::move(request), writer);
    });
    routes.add("GET", "/v1/models", [](HttpRequest request, ResponseWriter& writer) {
      return models(std::move(request), writer);
    });
    http::ServerOptions options;
    options.error_page = page;
    server_ = std::make_unique<http::HttpServer>(
        std::vector<asio::any_io_executor>{control_.executor()}, options, routes.handler(page));
    const Status listening = server_->listen();
    EXPECT_TRUE(listening.has_value()) << listening.error().message;
  }
  ~ServerOf() {
    asio::co_spawn(drainer_.executor(), server_->drain(std::chrono::seconds(10)), asio::use_future)
        .get();
    server_.reset();
    control_.stop();
    drainer_.stop();
  }

  [[nodiscard]] std::string url() const {
    return "http://127.0.0.1:" + std::to_string(server_->port());
  }
  [[nodiscard]] LoadOptions options() const {
    LoadOptions load;
    load.target = *parse_base_url(url());
    load.model = "m";
    return load;
  }

  Fault fault = kNone;
  std::set<std::size_t> faulty;  // which requests, in order of arrival; the rest go well
  Duration pause{};              // before each answer
  std::vector<nlohmann::json> bodies;
  std::size_t most_at_once = 0;

 private:
  static asio::awaitable<void> models(HttpRequest request, ResponseWriter& writer) {
    HttpResponse response;
    if (request.header("authorization") != "Bearer key") {
      response.status = 401;
    }
    response.body = R"({"data":[{"id":"the-model"}]})";
    (void)co_await writer.send(std::move(response));
  }

  asio::awaitable<void> answer(HttpRequest request, ResponseWriter& writer) {
    const std::size_t number = bodies.size();
    bodies.push_back(nlohmann::json::parse(request.body));
    const nlohmann::json body = bodies.back();
    most_at_once = std::max(most_at_once, ++here_);
    if (number + 1 < wait_for_ && !gave_up_) {
      waiting_.push_back(std::make_unique<net::AsyncEvent>(writer.executor()));
      net::AsyncEvent* const mine = waiting_.back().get();
      const bool woken = co_await mine->wait_for(std::chrono::seconds(20));
      gave_up_ = gave_up_ || !woken;
    } else {
      for (const auto& other : waiting_) {
        other->set();
      }
    }
    if (pause > Duration::zero()) {
      net::SystemAsyncClock clock;
      co_await clock.sleep_for(pause);
    }
    const Fault how = faulty.contains(number) ? fault : kNone;
    co_await stream(body, how, writer);
    --here_;
  }

  static asio::awaitable<void> stream(const nlohmann::json& body, Fault how,
                                      ResponseWriter& writer) {
    HttpResponse head;
    if (how == kRefuse) {
      head.status = 429;
      head.body = R"({"error":{"message":"full","code":"overloaded"}})";
      (void)co_await writer.send(std::move(head));
      co_return;
    }
    head.content_type = "text/event-stream";
    (void)co_await writer.start_stream(std::move(head));
    const int tokens = how == kNothing ? 0 : body["max_tokens"].get<int>();
    for (int token = 0; token < tokens; ++token) {
      (void)co_await writer.write(chunk(token));
      if (how == kCut) {
        co_return;  // the server cuts a stream that is left unfinished
      }
    }
    if (how == kErrorEvent) {
      (void)co_await writer.write("data: {\"error\":{\"message\":\"died\",\"code\":\"gone\"}}\n\n");
    } else if (how != kShort) {
      (void)co_await writer.write(last_chunks(body["prompt"].size(), tokens));
    }
    (void)co_await writer.finish();
  }

  std::size_t wait_for_;  // nobody is answered before that many have come, or 20 s have passed
  bool gave_up_ = false;
  std::size_t here_ = 0;
  net::EventLoop control_{"server"};
  net::EventLoop drainer_{"drain"};
  std::vector<std::unique_ptr<net::AsyncEvent>> waiting_;  // timers of control_
  std::unique_ptr<http::HttpServer> server_;
};

std::vector<PlannedRequest> plan_of(std::int32_t count, std::int32_t output_tokens = 3) {
  WorkloadOptions options;
  options.num_prompts = count;
  options.random_input_tokens = 20;
  options.random_output_tokens = output_tokens;
  return *plan_workload(options);
}

TEST(load, every_request_is_asked_and_counted) {
  ServerOf server;
  LoadOptions options = server.options();
  options.keep_ids = true;
  options.ignore_eos = true;
  const LoadResult result = run_load(options, plan_of(20));
  const Summary summary = summarize(result, {99}, {});
  EXPECT_EQ(summary.completed, 20);
  EXPECT_EQ(summary.failed, 0);
  EXPECT_EQ(summary.input_tokens, 400);
  EXPECT_EQ(summary.output_tokens, 60);
  EXPECT_EQ(summary.miscounted, 0);
  EXPECT_EQ(summary.metrics.at(Metric::kTtst).count, 20U);
  EXPECT_EQ(summary.metrics.at(Metric::kItl).count, 40U);
  std::set<std::string> prompts;
  for (const nlohmann::json& body : server.bodies) {
    EXPECT_EQ(body["model"], "m");
    EXPECT_EQ(body["stream"], true);
    EXPECT_EQ(body["ignore_eos"], true);
    EXPECT_EQ(body["return_token_ids"], true);
    EXPECT_EQ(body["stream_options"]["include_usage"], true);
    EXPECT_EQ(body["prompt"].size(), 20U);
    prompts.insert(body["prompt"].dump());
  }
  EXPECT_EQ(prompts.size(), 20U);
  for (const RequestRecord& record : result.records) {
    EXPECT_EQ(record.token_ids, (std::vector<TokenId>{0, 1, 2}));
    EXPECT_LE(record.scheduled, record.sent);
    EXPECT_LE(record.sent, record.arrivals.front().at);
    EXPECT_LE(record.arrivals.back().at, record.ended);
    EXPECT_LE(record.ended, result.ended);
  }
}

// The server answers nobody before all have come: a closed loop would never get there.
TEST(load, nobody_waits_for_an_answer) {
  ServerOf server(30);
  const LoadResult result = run_load(server.options(), plan_of(30));
  EXPECT_EQ(summarize(result, {}, {}).completed, 30);
  EXPECT_EQ(server.most_at_once, 30U);
}

TEST(load, the_soft_limit_of_descriptors_is_no_limit) {
  ServerOf server(100);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  ASSERT_GT(before.rlim_max, 1000U);
  const rlimit few{64, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  const LoadResult result = run_load(server.options(), plan_of(100));
  EXPECT_EQ(summarize(result, {}, {}).completed, 100);
  setrlimit(RLIMIT_NOFILE, &before);
}

TEST(load, the_bound_on_concurrency_holds) {
  ServerOf server;
  server.pause = std::chrono::milliseconds(5);  // so that three are away when the fourth is due
  LoadOptions options = server.options();
  options.max_concurrency = 3;
  const Summary summary = summarize(run_load(options, plan_of(30)), {}, {});
  EXPECT_EQ(summary.completed, 30);
  EXPECT_LE(server.most_at_once, 3U);
  EXPECT_LE(summary.peak_concurrency, 3);
  EXPECT_GT(summary.held_ms.count, 0U);
}

TEST(load, failures_are_counted_by_kind) {
  const std::pair<ServerOf::Fault, std::string> kinds[] = {
      {ServerOf::kRefuse, "http_429"},
      {ServerOf::kCut, "connection_lost"},
      {ServerOf::kShort, "short_stream"},
      {ServerOf::kErrorEvent, "stream_error:gone"},
      {ServerOf::kNothing, "no_token"}};
  for (const auto& [fault, kind] : kinds) {
    ServerOf server;
    server.fault = fault;
    server.faulty = {1, 3};
    const Summary summary = summarize(run_load(server.options(), plan_of(5)), {}, {});
    EXPECT_EQ(summary.completed, 3) << kind;
    ASSERT_EQ(summary.failures.size(), 1U) << kind;
    ASSERT_TRUE(summary.failures.contains(kind)) << summary.failures.begin()->first;
    EXPECT_EQ(summary.failures.at(kind).count, 2);
    EXPECT_FALSE(summary.failures.at(kind).example.empty());
  }
}

TEST(load, nobody_listens) {
  LoadOptions options;
  {
    ServerOf server;
    options = server.options();
  }
  const Summary summary = summarize(run_load(options, plan_of(2)), {}, {});
  EXPECT_EQ(summary.failures.at("connect").count, 2);
  const auto model = ask_for_model(options.target);
  ASSERT_FALSE(model.has_value());
  EXPECT_EQ(model.error().message.rfind("--base-url: cannot connect to 127.0.0.1:", 0), 0U)
      << model.error().message;
}

TEST(load, the_model_is_asked_for) {
  ServerOf server;
  LoadOptions options = server.options();
  EXPECT_EQ(ask_for_model(options.target).error().message.rfind("--api-key: ", 0), 0U);
  options.target.api_key = "key";
  EXPECT_EQ(*ask_for_model(options.target), "the-model");
}

TEST(load, chats_are_text) {
  LoadOptions options;
  options.endpoint = "/v1/chat/completions";
  const auto body = nlohmann::json::parse(request_body(options, plan_of(1)[0]));
  EXPECT_FALSE(body.contains("prompt"));
  EXPECT_EQ(body["messages"][0]["role"], "user");
  EXPECT_GT(body["messages"][0]["content"].get<std::string>().size(), 40U);
  options.endpoint = "/v1/completions";
  options.format = PromptFormat::kText;
  EXPECT_TRUE(nlohmann::json::parse(request_body(options, plan_of(1)[0]))["prompt"].is_string());
}

TEST(load, base_urls) {
  const auto target = parse_base_url("http://node-1:8000/v1/");
  ASSERT_TRUE(target.has_value());
  EXPECT_EQ(target->address, (net::HostPort{"node-1", 8000}));
  EXPECT_EQ(target->host, "node-1:8000");
  EXPECT_EQ(target->prefix, "");
  EXPECT_EQ(parse_base_url("http://x/api")->prefix, "/api");
  EXPECT_EQ(parse_base_url("http://x")->address.port, 80);
  EXPECT_EQ(parse_base_url("http://[::1]:9")->address, (net::HostPort{"::1", 9}));
  EXPECT_EQ(parse_base_url("http://[::1]")->address, (net::HostPort{"::1", 80}));
  for (const char* bad : {"https://x:1", "x:1", "", "http://", "http://x:0", "http://x:y",
                          "http://u:p@x:1", "http://x:1/a b"}) {
    const auto parsed = parse_base_url(bad);
    ASSERT_FALSE(parsed.has_value()) << bad;
    EXPECT_EQ(parsed.error().message.rfind("--base-url: ", 0), 0U);
  }
}

}  // namespace
}  // namespace baton::serving
