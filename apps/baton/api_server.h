// The HTTP face: routes, the key check, and one coroutine per generation request that walks
// parse -> tokenize (text pool) -> OwnerLoop -> Answer -> SSE. With Last-Event-ID the same, for an
// answer that another process began (baton/api/resume.h). Engine nodes serve only the
// operator's pages (/health, /ready, /live, /metrics).
#pragma once

#include "baton/api/auth.h"
#include "baton/api/request.h"
#include "baton/http/routes.h"
#include "baton/http/server.h"
#include "baton/text/chat_template.h"
#include "baton/text/tokenizer.h"

#include <boost/asio/thread_pool.hpp>

#include "apps/baton/metrics.h"
#include "apps/baton/owner_loop.h"
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace baton::app {

// What a request needs of the model besides its weights. Immutable.
struct ServedModel {
  std::string name;
  std::int64_t created_s = 0;
  text::Tokenizer tokenizer;
  std::optional<text::ChatTemplate> chat_template;  // none: a base model
};

struct ApiServerOptions {
  http::ServerOptions http;
  std::size_t max_requests = 256;  // in this process at once, tokenizing included; more get 429
  std::string secret;              // keys cache namespaces: of the cluster token, or random
  message::NodeInfo self;          // as the cluster view shows it
  TimePoint started{};
  std::function<message::NodeLoad()> local_load;  // a single node's own; any thread
};

class ApiServer {
 public:
  // model and owner null: an engine node, operator's pages only.
  ApiServer(asio::any_io_executor io, ApiServerOptions options, api::KeyCheck keys,
            const ServedModel* model, OwnerLoop* owner, const MetricsPage& metrics,
            std::function<router::Readiness()> readiness);
  ~ApiServer();

  Status listen() { return server_->listen(); }
  [[nodiscard]] std::uint16_t port() const { return server_->port(); }
  asio::awaitable<std::size_t> drain(Duration at_most) { return server_->drain(at_most); }
  void stop() { server_->stop(); }
  [[nodiscard]] std::size_t body_bytes() const { return server_->body_bytes(); }  // any thread

 private:
  struct Prepared;
  http::Handler make_handler();
  void add_operator_pages(http::Routes& routes);
  asio::awaitable<void> show_cluster(http::ResponseWriter& writer);
  Result<Prepared> prepare(api::Endpoint endpoint, const http::HttpRequest& asked) const;
  [[nodiscard]] Status admit(std::size_t position) const;
  asio::awaitable<void> generate(api::Endpoint endpoint, http::HttpRequest request,
                                 http::ResponseWriter& writer);
  asio::awaitable<void> answer(Prepared prepared, http::ResponseWriter& writer);
  asio::awaitable<bool> relay(const Prepared& prepared, RequestStream& stream,
                              http::ResponseWriter& writer);

  ApiServerOptions options_;
  api::KeyCheck keys_;
  const ServedModel* model_;
  OwnerLoop* owner_;
  const MetricsPage& metrics_;
  std::function<router::Readiness()> readiness_;
  std::shared_ptr<std::atomic<std::size_t>> requests_ =
      std::make_shared<std::atomic<std::size_t>>(0);
  asio::thread_pool text_pool_;
  std::unique_ptr<http::HttpServer> server_;
};

}  // namespace baton::app
