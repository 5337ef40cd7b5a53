#include "apps/baton/api_server.h"

#include "baton/api/answer.h"
#include "baton/api/error_body.h"
#include "baton/api/pages.h"
#include "baton/api/prompt.h"
#include "baton/api/resume.h"
#include "baton/base/check.h"
#include "baton/base/failpoints.h"
#include "baton/base/log.h"
#include "baton/files/sha256.h"

#include "apps/baton/cluster_view.h"
#include "apps/baton/page.h"
#include <algorithm>
#include <chrono>
#include <span>
#include <string_view>
#include <utility>

namespace baton::app {
namespace {

// Templates and tokenizing: one thread is enough for 10 MB/s and keeps the streams' threads free.
constexpr std::size_t kTextThreads = 1;

template <class R>
asio::awaitable<R> run_job(std::function<R()> job) {
  co_return job();
}

// Runs `job` on the pool; the caller goes on, on its own executor, with what it returned.
template <class R>
asio::awaitable<R> offload(asio::thread_pool& pool, std::function<R()> job) {
  co_return co_await asio::co_spawn(pool.get_executor(), run_job<R>(std::move(job)),
                                    asio::use_awaitable);
}

// Counts a request while it is in the process. Shares the count: a handler that still waits when
// the process stops is destroyed with its event loop, after the ApiServer.
class Admission {
 public:
  explicit Admission(std::shared_ptr<std::atomic<std::size_t>> count)
      : count_(std::move(count)), position_(++*count_) {}
  ~Admission() { --*count_; }
  Admission(const Admission&) = delete;
  Admission& operator=(const Admission&) = delete;
  [[nodiscard]] std::size_t position() const { return position_; }

 private:
  std::shared_ptr<std::atomic<std::size_t>> count_;
  std::size_t position_;
};

std::int64_t unix_time_s() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// H(secret, key, salt), each with its length, so that no two triples share their bytes.
message::Namespace cache_namespace(std::string_view secret, std::string_view key,
                                   std::string_view salt) {
  files::Sha256 hash;
  for (const std::string_view part : {secret, key, salt}) {
    const std::uint64_t part_bytes = part.size();
    hash.update(std::as_bytes(std::span(&part_bytes, 1)));
    hash.update(std::as_bytes(std::span(part)));
  }
  const files::Sha256Digest digest = hash.finish();
  message::Namespace result{};
  std::copy_n(digest.begin(), result.size(), result.begin());
  return result;
}

asio::awaitable<void> send_page(http::ResponseWriter& writer, http::HttpResponse page) {
  (void)co_await writer.send(std::move(page));
}

api::Served served(const router::Route& route) {
  return {route.prefill_node.value, route.decode_node.value, route.split, route.kv_bytes,
          route.exactness_tag};
}

// The head, with the first events, of a stream.
http::HttpResponse stream_head(std::string first) {
  http::HttpResponse head;
  head.content_type = "text/event-stream";
  head.headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}};
  head.body = std::move(first);
  return head;
}

// What a client can be told: a status before its stream has begun, an event after.
asio::awaitable<void> send_error(http::ResponseWriter& writer, const Error& error, bool streaming) {
  if (!streaming) {
    http::HttpResponse response = api::error_response(error);
    (void)co_await writer.send(std::move(response));
  } else if (co_await writer.write(api::error_event(error))) {
    (void)co_await writer.finish();
  }
}

}  // namespace

struct ApiServer::Prepared {
  RequestId id;
  std::vector<message::Submit> submits;
  api::AnswerOptions answer;
  std::shared_ptr<const text::StopStrings> stop;
  std::string exactness_tag;  // of an answer that was begun elsewhere; empty: begun here

  [[nodiscard]] bool resumed() const { return !exactness_tag.empty(); }
};

ApiServer::ApiServer(asio::any_io_executor io, ApiServerOptions options, api::KeyCheck keys,
                     const ServedModel* model, OwnerLoop* owner, const MetricsPage& metrics,
                     std::function<router::Readiness()> readiness)
    : options_(std::move(options)),
      keys_(std::move(keys)),
      model_(model),
      owner_(owner),
      metrics_(metrics),
      readiness_(std::move(readiness)),
      text_pool_(kTextThreads) {
  options_.http.error_page = api::error_response;
  options_.http.gate = [this](const http::HttpRequest& head) -> std::optional<http::HttpResponse> {
    if (const Status allowed = keys_.check(head); !allowed) {
      return api::error_response(allowed.error());
    }
    return std::nullopt;
  };
  server_ = std::make_unique<http::HttpServer>(std::move(io), options_.http, make_handler());
}

ApiServer::~ApiServer() { text_pool_.join(); }

void ApiServer::add_operator_pages(http::Routes& routes) {
  const auto alive = [](http::HttpRequest, http::ResponseWriter& writer) {
    return send_page(writer, api::health_response());
  };
  routes.add("GET", "/health", alive);
  routes.add("GET", "/live", alive);
  routes.add("GET", "/ready", [this](http::HttpRequest, http::ResponseWriter& writer) {
    const router::Readiness now = readiness_();
    return send_page(writer, api::ready_response(now.ready, now.missing));
  });
  routes.add("GET", "/metrics", [this](http::HttpRequest, http::ResponseWriter& writer) {
    http::HttpResponse page;
    page.content_type = "text/plain; version=0.0.4; charset=utf-8";
    page.body = metrics_.render();
    return send_page(writer, std::move(page));
  });
}

asio::awaitable<void> ApiServer::show_cluster(http::ResponseWriter& writer) {
  ClusterView view;
  view.owner = co_await owner_->view();
  view.started = options_.started;
  view.self = options_.self;
  view.model = model_->name;
  if (options_.local_load) {
    cluster::NodeRecord self;
    self.info = options_.self;
    self.info.address = fmt::format("{}:{}", options_.http.host, port());
    self.load = options_.local_load();
    self.state = cluster::NodeState::kUp;
    self.last_seen = view.owner.now;
    self.assigned = static_cast<std::uint32_t>(owner_->stats().active);
    view.owner.nodes.push_back(std::move(self));
  }
  http::HttpResponse page;
  page.headers = {{"Cache-Control", "no-store"}};
  page.body = cluster_body(view, owner_->stats());
  (void)co_await writer.send(std::move(page));
}

http::Handler ApiServer::make_handler() {
  http::Routes routes;
  add_operator_pages(routes);
  if (owner_ != nullptr) {
    // Made once, here: a page that is not as it must be is found at start.
    routes.add("GET", "/",
               [page = page_response()](http::HttpRequest, http::ResponseWriter& writer) {
                 return send_page(writer, page);
               });
    routes.add("GET", "/cluster", [this](http::HttpRequest, http::ResponseWriter& writer) {
      return show_cluster(writer);
    });
    routes.add("GET", "/v1/models", [this](http::HttpRequest, http::ResponseWriter& writer) {
      http::HttpResponse page;
      page.body = api::models_body({{model_->name, model_->created_s, owner_->context_tokens()}});
      return send_page(writer, std::move(page));
    });
    routes.add("POST", "/v1/chat/completions",
               [this](http::HttpRequest request, http::ResponseWriter& writer) {
                 return generate(api::Endpoint::kChat, std::move(request), writer);
               });
    routes.add("POST", "/v1/completions",
               [this](http::HttpRequest request, http::ResponseWriter& writer) {
                 return generate(api::Endpoint::kCompletions, std::move(request), writer);
               });
  }
  return routes.handler(api::error_response);
}

Result<ApiServer::Prepared> ApiServer::prepare(api::Endpoint endpoint,
                                               const http::HttpRequest& asked) const {
  static_cast<void>(BATON_FAILPOINT("api.prepare"));
  api::ParseLimits limits;
  limits.vocabulary_tokens = model_->tokenizer.vocabulary_tokens();
  limits.max_body_bytes = options_.http.max_body_bytes;
  limits.models = {model_->name};
  BATON_TRY(auto request, endpoint == api::Endpoint::kChat
                              ? api::parse_chat(asked.body, limits)
                              : api::parse_completion(asked.body, limits));
  BATON_TRY(const std::optional<api::EventId> resume, api::last_event_id(asked));
  if (resume) {
    BATON_TRY_VOID(api::resume_from(*resume, request));
  }
  const text::ChatTemplate* chat_template =
      model_->chat_template ? &*model_->chat_template : nullptr;
  const std::int32_t context_tokens = owner_->context_tokens();
  if (context_tokens == 0) {
    return fail(ErrorCode::kUnavailable, "no node can serve now; see /ready");
  }
  BATON_TRY(auto prompt,
            api::prompt_tokens(request, model_->tokenizer, chat_template, context_tokens));
  Prepared prepared;
  prepared.id = random_request_id();  // also of a resumed one: nodes may still hold the first
  api::EventId event_id = resume ? *resume : api::new_event_id(request, prepared.id, unix_time_s());
  BATON_TRY(prepared.submits,
            api::make_submits(
                request, prepared.id, prompt, event_id.seed, context_tokens,
                cache_namespace(options_.secret, api::presented_key(asked), request.cache_salt)));
  if (request.stream) {
    const message::Submit& submit = prepared.submits.front();
    event_id.max_tokens = submit.max_tokens;
    event_id.request_digest =
        api::request_digest(endpoint, asked.body, model_->name, submit, event_id);
  }
  if (resume) {
    BATON_TRY(prepared.exactness_tag,
              api::resumed_tag(*resume, event_id.request_digest, owner_->exactness_tags()));
    log::info("request {} resumes answer {}", to_string(prepared.id), to_string(resume->answer));
  }
  prepared.answer =
      api::answer_options(request, std::move(event_id), model_->name, std::move(prompt));
  prepared.stop = request.stop;
  return prepared;
}

Status ApiServer::admit(std::size_t position) const {
  if (position > options_.max_requests) {
    return fail({ErrorCode::kOverloaded,
                 fmt::format("{} requests are in work here, the most that --max-queue allows; try "
                             "again",
                             options_.max_requests),
                 "", 1'000});
  }
  const router::Readiness now = readiness_();
  if (!now.ready) {
    return fail(
        {ErrorCode::kUnavailable, "not ready to serve; see /ready for the reason", "", 1'000});
  }
  return {};
}

asio::awaitable<void> ApiServer::generate(api::Endpoint endpoint, http::HttpRequest request,
                                          http::ResponseWriter& writer) {
  const Admission admission(requests_);
  BATON_LEAKPOINT();
  if (const Status admitted = admit(admission.position()); !admitted) {
    // Made before the co_await: g++ 12 destroys aggregates made inside of one twice.
    http::HttpResponse refusal = api::error_response(admitted.error());
    (void)co_await writer.send(std::move(refusal));
    co_return;
  }
  // Between two threads, and for both as long as they need it.
  const auto left = std::make_shared<std::atomic<bool>>(false);
  writer.on_client_gone([left] { *left = true; });
  std::function<Result<Prepared>()> job = [this, endpoint, left, asked = std::move(request)] {
    static_cast<void>(BATON_FAILPOINT("api.text"));
    return *left ? fail(ErrorCode::kCancelled, "the client left") : prepare(endpoint, asked);
  };
  Result<Prepared> prepared = co_await offload(text_pool_, std::move(job));
  if (*left) {
    co_return;
  }
  if (!prepared) {
    (void)co_await writer.send(api::error_response(prepared.error()));
    co_return;
  }
  co_await answer(*std::move(prepared), writer);
}

asio::awaitable<void> ApiServer::answer(Prepared prepared, http::ResponseWriter& writer) {
  // The stream is bounded by what the request may generate.
  const auto stream =
      std::make_shared<RequestStream>(writer.executor(), static_cast<std::size_t>(-1));
  writer.on_client_gone([this, id = prepared.id, stream] {
    owner_->client_gone(id);
    stream->push_unbounded(ClientLeft{});
  });
  owner_->start(std::move(prepared.submits), prepared.exactness_tag, stream);
  const bool ended = co_await relay(prepared, *stream, writer);
  if (!ended) {
    owner_->client_gone(prepared.id);
  }
}

// Until the request's end. False when nobody wants the rest: the client left or writing failed.
asio::awaitable<bool> ApiServer::relay(const Prepared& prepared, RequestStream& stream,
                                       http::ResponseWriter& writer) {
  api::Answer answer(prepared.answer, model_->tokenizer, prepared.stop);
  bool streaming = false;
  bool finished = false;  // the answer is complete and written; the router's Completed may follow
  while (!finished) {
    const std::optional<StreamEvent> event = co_await stream.pop();
    if (!event || std::holds_alternative<ClientLeft>(*event)) {
      co_return false;
    }
    if (const auto* failed = std::get_if<Failed>(&*event)) {
      co_await send_error(writer, failed->error, streaming);
      co_return true;
    }
    std::string bytes;
    if (const auto* delivered = std::get_if<Delivered>(&*event)) {
      api::Answer::Step step = answer.on_token(delivered->token, served(delivered->route));
      if (step.stopped) {
        owner_->stop_choice(prepared.id, delivered->token.key.choice);
      }
      finished = step.complete;
      bytes = std::move(step.sse);
    } else if (std::holds_alternative<Ping>(*event)) {
      // A client that resumes may wait long for its next event: its stream begins with comments.
      if (streaming || prepared.resumed()) {
        http::append_comment(bytes, "ping");
      }
    } else if (!answer.complete()) {
      BATON_BUG("request {} completed without its last token", to_string(prepared.id));
      co_return false;
    }
    if (!prepared.answer.stream || bytes.empty()) {
      continue;
    }
    static_cast<void>(BATON_FAILPOINT("api.event"));  // kill: the owner dies between two events
    Status written;
    if (!streaming) {
      streaming = true;
      http::HttpResponse head = stream_head(std::move(bytes));
      written = co_await writer.start_stream(std::move(head));
    } else {
      written = co_await writer.write(std::move(bytes));
    }
    if (!written) {
      co_return false;
    }
  }
  if (answer.past_end()) {
    const Error error = api::past_the_end();
    co_await send_error(writer, error, streaming);
  } else if (prepared.answer.stream) {
    (void)co_await writer.finish();
  } else {
    http::HttpResponse whole;
    whole.body = answer.body();
    (void)co_await writer.send(std::move(whole));
  }
  co_return true;
}

}  // namespace baton::app
