#include "bench/handoff/servers.h"

#include <fmt/format.h>

#include "bench/handoff/ask.h"
#include <algorithm>
#include <cstdio>
#include <utility>

namespace baton::bench_handoff {

namespace {

// Starts the nodes of one server after another.
class Starter {
 public:
  Starter(const Plan& plan, std::string program, std::filesystem::path folder, std::stop_token stop)
      : plan_(plan),
        program_(std::move(program)),
        folder_(std::move(folder)),
        stop_(std::move(stop)) {}

  Result<std::unique_ptr<Server>> single() const {
    auto server = std::make_unique<Server>();
    server->name = "single";
    BATON_TRY(const Listening at,
              add(*server, "single", engine_flags(plan_.masks.prefill, {"--kv-touch", "on"})));
    BATON_TRY_VOID(wait_ready(*server, at));
    return server;
  }

  // Each node dials those that were started before it.
  Result<std::unique_ptr<Server>> pair(const std::string& name, bool stream_kv) const {
    auto server = std::make_unique<Server>();
    server->name = name;
    const std::vector<std::string> bind = {"--serving-bind", "127.0.0.1:0"};
    std::vector<std::string> flags = engine_flags(plan_.masks.decode, bind);
    BATON_TRY(const Listening decode, add(*server, "decode", std::move(flags)));

    flags = engine_flags(plan_.masks.prefill, bind);
    flags.insert(flags.end(),
                 {"--decode-peers", decode.serving, "--stream-kv", stream_kv ? "on" : "off"});
    BATON_TRY(const Listening prefill, add(*server, "prefill", std::move(flags)));

    flags = {"--prefill-peers", prefill.serving, "--decode-peers", decode.serving};
    BATON_TRY(const Listening router, add(*server, "router", std::move(flags)));
    BATON_TRY(server->prefill, target_of(prefill.http));
    BATON_TRY(server->decode, target_of(decode.http));
    BATON_TRY_VOID(wait_ready(*server, router));
    return server;
  }

 private:
  std::vector<std::string> engine_flags(const std::string& mask,
                                        const std::vector<std::string>& more) const {
    std::vector<std::string> flags = {"-t", "1",           "--cpu-mask",
                                      mask, "--kv-memory", plan_.kv_memory};
    flags.insert(flags.end(), more.begin(), more.end());
    return flags;
  }

  // Started last is ended first.
  Result<Listening> add(Server& server, const std::string& role,
                        std::vector<std::string> flags) const {
    const std::string id = role == server.name ? role : server.name + "-" + role;
    std::vector<std::string> command = {
        program_,          "serve", "-m",     plan_.model_path, "--node-role", role,
        "--node-id",       id,      "--host", "127.0.0.1",      "--port",      "0",
        "--drain-timeout", "0"};
    command.insert(command.end(), flags.begin(), flags.end());
    const auto node = server.nodes.insert(
        server.nodes.begin(), std::make_unique<Node>(id, std::move(command), folder_, stop_));
    BATON_TRY_VOID((*node)->start());
    return (*node)->wait_listening();
  }

  // Of the node that was started last.
  static Status wait_ready(Server& server, const Listening& at) {
    BATON_TRY(server.front, target_of(at.http));
    return server.nodes.front()->wait_for("ready", [&server] {
      const auto answer = get(server.front, "/ready");
      return answer && answer->status == 200;
    });
  }

  const Plan& plan_;
  std::string program_;
  std::filesystem::path folder_;
  std::stop_token stop_;
};

}  // namespace

Server::~Server() {
  for (const auto& node : nodes) {
    node->stop();
  }
}

Result<std::unique_ptr<Servers>> Servers::start(const Plan& plan, const std::string& program,
                                                const std::filesystem::path& folder,
                                                const std::stop_token& stop) {
  std::unique_ptr<Servers> servers(new Servers());
  const Starter starter(plan, program, folder, stop);
  for (const Shape shape : kShapes) {
    const std::string name(kShapeNames[index_of(shape)]);
    fmt::print(stderr, "starting {}\n", name);
    BATON_TRY(servers->servers_[index_of(shape)], shape == Shape::kSingle
                                                      ? starter.single()
                                                      : starter.pair(name, shape == Shape::kSplit));
  }
  return servers;
}

std::string Servers::tails_of_ended() const {
  std::string text;
  for (const auto& server : servers_) {
    for (const auto& node : server->nodes) {
      text += node->running() ? "" : node->tail() + "\n";
    }
  }
  return text;
}

}  // namespace baton::bench_handoff
