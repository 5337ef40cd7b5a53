#include "apps/baton/options.h"

#include "baton/base/check.h"
#include "baton/files/dummy_model.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "apps/baton/flags.h"
#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <map>

namespace baton::app {
namespace {

void add_role_flags(CLI::App& app, ServeOptions& options) {
  static const std::map<std::string, message::NodeRole> roles = {
      {"single", message::NodeRole::kSingle},
      {"prefill", message::NodeRole::kPrefill},
      {"decode", message::NodeRole::kDecode},
      {"router", message::NodeRole::kRouter}};
  static const std::map<std::string, router::PolicyKind> policies = {
      {"round-robin", router::PolicyKind::kRoundRobin},
      {"least-loaded", router::PolicyKind::kLeastLoaded},
      {"kv-aware", router::PolicyKind::kKvAware}};
  flag(app, "--node-role", options.role, "single, prefill, decode or router")
      ->transform(one_of(roles))
      ->default_str("single");
  flag(app, "--node-id", options.node_id, "name of this node; default <role>-<random>");
  flag(app, "--serving-bind", options.serving_bind,
       "HOST:PORT for other nodes (prefill and decode); port 0 picks one");
  flag(app, "--prefill-peers", options.prefill_peers,
       "HOST:PORT,... of prefill nodes (router); dns:NAME:PORT: each address of that name");
  flag(app, "--decode-peers", options.decode_peers,
       "HOST:PORT,... of decode nodes (router and prefill nodes); dns:NAME:PORT likewise");
  flag(app, "--policy", options.policy,
       "how a router picks nodes: least-loaded, round-robin, or kv-aware (who has the prompt's KV, "
       "weighed against load)")
      ->transform(one_of(policies))
      ->default_str("least-loaded");
  flag(app, "--local-prefill-tokens", options.local_prefill_tokens,
       "kv-aware: a prompt of which the decode node lacks at most so many tokens is computed there")
      ->check(CLI::Range(0, 1 << 20));
}

void add_membership_flags(CLI::App& app, ServeOptions& options) {
  flag(app, "--dns-interval-ms", options.dns_interval_ms,
       "how often names of --prefill-peers and --decode-peers are looked up")
      ->check(CLI::Range(100, 3'600'000));
  flag(app, "--etcd-endpoints", options.etcd_endpoints,
       "http://HOST:PORT,... of etcd 3.4 or later: nodes register there, routers and prefill nodes "
       "find them there")
      ->delimiter(',');
  flag(app, "--etcd-prefix", options.etcd_prefix, "of the keys in etcd; one for each cluster");
  flag(app, "--etcd-ttl", options.etcd_ttl_s,
       "seconds after which a node that etcd does not hear of is gone from there")
      ->check(CLI::Range(2, 3'600));
  flag(app, "--serving-advertise", options.serving_advertise,
       "HOST:PORT that others reach this node at, for etcd; default: where it listens");
}

void add_guard_flags(CLI::App& app, ServeOptions& options) {
  flag(app, "--ssl-cert-file,--ssl-certfile", options.ssl_cert_file,
       "HTTPS: certificate and intermediates, PEM");
  flag(app, "--ssl-key-file,--ssl-keyfile", options.ssl_key_file, "HTTPS: its private key, PEM");
  flag(app, "--ssl-ca-certs", options.ssl_ca_certs,
       "HTTPS: clients must show a certificate that one of these CAs signed, PEM");
  flag(app, "--node-tls-cert", options.node_tls_cert,
       "mutual TLS between nodes: this node's certificate and intermediates, PEM");
  flag(app, "--node-tls-key", options.node_tls_key, "its private key, PEM");
  flag(app, "--node-tls-ca", options.node_tls_ca,
       "the CA of all nodes, PEM: whoever has a certificate of it is one");
  flag(app, "--cluster-token-file", options.cluster_token_file,
       "file with a secret that all nodes share, or BATON_CLUSTER_TOKEN with the secret itself; "
       "authenticates nodes, does not encrypt");
}

void add_engine_flags(CLI::App& app, ServeOptions& options) {
  flag(app, "-c,--ctx-size,--max-model-len", options.context_tokens,
       "context in tokens; 0: what model and pool allow")
      ->check(CLI::NonNegativeNumber);
  flag(app, "-t,--threads", options.threads, "compute threads; 0: one per core")
      ->check(CLI::Range(0, 1024));
  flag(app, "--max-num-seqs,--parallel", options.max_num_seqs, "sequences that run at once")
      ->check(CLI::Range(1, 4096));
  flag(app, "--max-step-ms", options.max_step_ms, "time budget of a mixed step")
      ->check(CLI::Range(1, 10'000));
  flag(app, "--kv-memory", options.kv_memory, "KV pool in bytes (K, M, G); 0: automatic");
  flag(app, "--kv-dtype,--kv-cache-dtype", options.kv_dtype, "bf16, f16, f32 or q8_0");
  flag(app, "--block-tokens,--block-size", options.block_tokens, "tokens of a KV block")
      ->check(CLI::IsMember({32, 64, 128, 256}));
  flag(app, "--kv-touch", options.kv_touch,
       "take the KV pool's memory from the system at start instead of when it is first used: on, "
       "off, or auto "
       "(on for prefill and decode nodes)")
      ->check(CLI::IsMember({"auto", "on", "off"}));
  flag(app, "--prefix-cache", options.prefix_cache,
       "on: prompts share KV that was computed for another of the same key and cache_salt")
      ->check(CLI::IsMember({"on", "off"}));
  flag(app, "-C,--cpu-mask", options.cpu_mask,
       "CPUs of this node as a hex mask (f0 = CPUs 4 to 7); default: all");
  flag(app, "--isa", options.isa, "kernels: auto, ref, avx2 or avx512")
      ->check(CLI::IsMember({"auto", "ref", "avx2", "avx512"}));
}

void add_limit_flags(CLI::App& app, ServeOptions& options) {
  flag(app, "--io-threads", options.io_threads, "threads for bulk connections and HTTP")
      ->check(CLI::Range(1, 64));
  flag(app, "--max-queue", options.max_queue, "requests held at once; more get 429")
      ->check(CLI::Range(1, 100'000));
  flag(app, "--max-body", options.max_body, "largest request body (K, M, G)");
  flag(app, "--max-bodies", options.max_bodies,
       "what the bodies of requests not tokenized yet may take together (K, M, G)")
      ->default_str("32 of --max-body");
  flag(app, "--drain-timeout", options.drain_timeout_s, "seconds to finish streams after SIGTERM")
      ->check(CLI::Range(0, 86'400));
  flag(app, "--queue-deadline-ms", options.queue_deadline_ms, "longest wait before a request runs")
      ->check(CLI::PositiveNumber);
  flag(app, "--prefill-deadline-ms", options.prefill_deadline_ms,
       "longest time from the start of a prompt to its last chunk")
      ->check(CLI::PositiveNumber);
  flag(app, "--write-timeout-ms", options.write_timeout_ms,
       "a client that reads nothing that long is dropped")
      ->check(CLI::PositiveNumber);
  flag(app, "--sse-ping-interval", options.sse_ping_interval_s,
       "seconds between comments that keep proxies from cutting a silent stream; 0: none")
      ->check(CLI::Range(0.0, 86'400.0));
  flag(app, "--beat-interval-ms", options.beat_interval_ms, "heartbeat interval between nodes")
      ->check(CLI::PositiveNumber);
  flag(app, "--lease-ms", options.lease_ms, "silence after which a peer is dead")
      ->check(CLI::PositiveNumber);
  flag(app, "--stall-ms", options.stall_ms,
       "time without a turn of its loop after which an engine is stuck")
      ->check(CLI::Range(2'000, 3'600'000));  // an idle loop turns once a second
  flag(app, "--handoff-deadline-ms", options.handoff_deadline_ms, "longest time of one KV transfer")
      ->check(CLI::PositiveNumber);
  flag(app, "--stream-kv", options.stream_kv,
       "on: KV leaves while the prompt is computed; off: once it is (for comparisons)")
      ->check(CLI::IsMember({"on", "off"}));
  flag(app, "--bulk-connections", options.bulk_connections, "connections per peer that carry KV")
      ->check(CLI::Range(1, 16));
  flag(app, "--kv-transport", options.kv_transport,
       "how KV goes between nodes: tcp; ucx (RDMA, shared memory) where the peer has it too, else "
       "tcp; auto: ucx if the library is there")
      ->check(CLI::IsMember({"auto", "tcp", "ucx"}));
  flag(app, "--failpoints", options.failpoints,
       "name[=on|kill|sleep:MS][@hit],... (not in release builds)");
  flag(app, "--log-level", options.log_level, "debug, info, warn or error")
      ->check(CLI::IsMember({"debug", "info", "warn", "error"}));
}

}  // namespace

Result<std::uint64_t> parse_bytes(const std::string& text, const std::string& flag_name) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  std::string suffix(end, text.data() + text.size());
  std::transform(suffix.begin(), suffix.end(), suffix.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  if (suffix.size() == 2 && suffix[1] == 'B') {
    suffix.pop_back();
  }
  const std::map<std::string, int> shifts = {{"", 0}, {"K", 10}, {"M", 20}, {"G", 30}};
  const auto shift = shifts.find(suffix);
  if (error != std::errc{} || shift == shifts.end() ||
      value > (std::uint64_t{1} << 62 >> shift->second)) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{}: '{}' is not a size; write bytes with an optional K, M or G",
                            flag_name, text),
                flag_name);
  }
  return value << shift->second;
}

void add_serve_flags(CLI::App& app, ServeOptions& options) {
  flag(app, "--config", options.config_path,
       "file with lines `flag = value` for what is neither given here nor as a variable");
  flag(app, "-m,--model", options.model_path, "GGUF file");
  flag(app, "--served-model-name,--alias", options.served_model_name, "default: the file's stem");
  flag(app, "--host", options.host, "HTTP address");
  flag(app, "--port", options.port, "HTTP port; 0 picks one; none on prefill and decode nodes")
      ->check(CLI::Range(0, 65'535))
      ->default_str("8080");
  flag(app, "--api-key", options.api_keys, "keys that clients must send (comma separated)")
      ->delimiter(',');
  add_role_flags(app, options);
  add_membership_flags(app, options);
  add_guard_flags(app, options);
  add_engine_flags(app, options);
  add_limit_flags(app, options);
}

void add_bench_flags(CLI::App& app, BenchEngineOptions& options) {
  static const std::map<std::string, BenchFormat> formats = {
      {"table", BenchFormat::kTable}, {"json", BenchFormat::kJson}, {"csv", BenchFormat::kCsv}};
  static const std::map<std::string, BenchLoadFormat> load_formats = {
      {"gguf", BenchLoadFormat::kFile}, {"dummy", BenchLoadFormat::kDummy}};
  flag(app, "-m,--model", options.model_path, "GGUF file");
  flag(app, "--load-format", options.load_format, "gguf, or dummy: random weights, no file")
      ->transform(one_of(load_formats))
      ->default_str("gguf");
  flag(app, "--shape", options.shape,
       fmt::format("of a dummy model: {}", fmt::join(files::dummy_shapes(), ", ")));
  flag(app, "--dtype", options.dtype,
       fmt::format("of its matrices: {}", fmt::join(files::dummy_dtypes(), ", ")));
  app.add_flag("!--no-limits", options.measure_limits, "do not measure the machine's limits");
  flag(app, "-p,--n-prompt", options.prompt_tokens, "prompt lengths; 0: none")->delimiter(',');
  flag(app, "-n,--n-gen", options.generated_tokens, "generated lengths; 0: none")->delimiter(',');
  flag(app, "-b,--batch", options.batch_sequences, "sequences decoded at once")->delimiter(',');
  flag(app, "-t,--threads", options.threads, "threads; 0: one per core")->delimiter(',');
  flag(app, "-d,--n-depth", options.depths, "tokens already in the cache")->delimiter(',');
  flag(app, "--ub,--step-tokens", options.step_tokens, "rows of one prefill step")
      ->check(CLI::Range(32, 8192));
  flag(app, "-r,--repetitions", options.repetitions, "runs of each test")
      ->check(CLI::Range(1, 1000));
  flag(app, "-o,--output", options.format, "table, json or csv")
      ->transform(one_of(formats))
      ->default_str("table");
  flag(app, "--isa", options.isa, "kernels: auto, ref, avx2 or avx512")
      ->check(CLI::IsMember({"auto", "ref", "avx2", "avx512"}));
  flag(app, "--kv-dtype", options.kv_dtype, "bf16, f16, f32 or q8_0");
}

void add_bench_flags(CLI::App& app, BenchPerplexityOptions& options) {
  flag(app, "-m,--model", options.model_path, "GGUF file")->required();
  flag(app, "-f,--file", options.text_path, "text to predict")->required();
  flag(app, "-c,--ctx-size", options.context_tokens, "tokens of a window");
  flag(app, "-t,--threads", options.threads, "threads; 0: one per core")
      ->check(CLI::Range(0, 1024));
  flag(app, "--isa", options.isa, "kernels: auto, ref, avx2 or avx512")
      ->check(CLI::IsMember({"auto", "ref", "avx2", "avx512"}));
  flag(app, "--kv-dtype", options.kv_dtypes, "one run for each of these")->delimiter(',');
  flag(app, "--per-token", options.per_token_path, "file for one line per scored token");
}

void print_variables_behind(const std::string& mistake, const CLI::App& app) {
  for (const CLI::Option* option : app.get_options()) {
    const std::string& variable = option->get_envname();
    const char* value = variable.empty() ? nullptr : std::getenv(variable.c_str());
    if (value != nullptr && mistake.find(option->get_name()) != std::string::npos) {
      fmt::print(stderr, "{}={} is set in the environment and stands for {}\n", variable, value,
                 option->get_name());
    }
  }
  for (const CLI::App* command : app.get_subcommands(nullptr)) {
    if (command->parsed()) {
      print_variables_behind(mistake, *command);
    }
  }
}

namespace {

// Who needs to know of whom, and may be told how.
void check_peer_flags(const ServeOptions& options) {
  using message::NodeRole;
  const bool etcd = !options.etcd_endpoints.empty();
  const auto need = [&](bool needed, const std::string& peers, const char* flag_name,
                        const char* why) {
    if (needed && peers.empty() && !etcd) {
      throw StartupError(
          fmt::format("{} is missing: {} (or --etcd-endpoints, to find them)", flag_name, why));
    }
  };
  const bool any_peers = !(options.prefill_peers.empty() && options.decode_peers.empty());
  if (options.role == NodeRole::kSingle && (!options.serving_bind.empty() || any_peers || etcd)) {
    throw StartupError(
        "--serving-bind, --prefill-peers, --decode-peers and --etcd-endpoints need --node-role "
        "prefill, decode or router");
  }
  need(options.role == NodeRole::kRouter, options.prefill_peers, "--prefill-peers",
       "a router needs at least one prefill node");
  need(options.role == NodeRole::kRouter, options.decode_peers, "--decode-peers",
       "a router needs at least one decode node");
  need(options.role == NodeRole::kPrefill, options.decode_peers, "--decode-peers",
       "a prefill node ships KV to decode nodes");
  if (options.role == NodeRole::kDecode && any_peers) {
    throw StartupError("a decode node dials nobody: leave --prefill-peers and --decode-peers out");
  }
  const bool anywhere =
      options.serving_bind.starts_with("0.0.0.0:") || options.serving_bind.starts_with("[::]:");
  if (etcd && anywhere && options.serving_advertise.empty()) {
    throw StartupError(fmt::format(
        "--serving-advertise is missing: nobody can dial {}, so etcd must be told HOST:PORT",
        options.serving_bind));
  }
}

}  // namespace

void validate(const ServeOptions& options) {
  using message::NodeRole;
  const bool engine_node = options.role == NodeRole::kPrefill || options.role == NodeRole::kDecode;
  if (options.model_path.empty()) {
    throw StartupError("--model is missing: give the path of a GGUF file with -m");
  }
  if (engine_node && options.serving_bind.empty()) {
    throw StartupError(
        "--serving-bind is missing: a prefill or decode node needs HOST:PORT for its peers");
  }
  check_peer_flags(options);
  if (options.policy != router::PolicyKind::kLeastLoaded && options.role != NodeRole::kRouter) {
    throw StartupError("--policy needs --node-role router: it picks nodes");
  }
  if (options.local_prefill_tokens != ServeOptions{}.local_prefill_tokens &&
      options.policy != router::PolicyKind::kKvAware) {
    throw StartupError("--local-prefill-tokens needs --policy kv-aware");
  }
  if (const char* keys = std::getenv("BATON_API_KEY");
      keys != nullptr && *keys == 0 && options.api_keys.empty()) {
    throw StartupError(
        "BATON_API_KEY is set and empty: unset it to let everybody in, or give it a key");
  }
  if (!std::isfinite(options.sse_ping_interval_s)) {
    throw StartupError("--sse-ping-interval must be a number of seconds");
  }
  if (options.lease_ms / 2 < options.beat_interval_ms) {
    throw StartupError("--lease-ms must be at least twice --beat-interval-ms");
  }
  if (!options.node_id.empty() &&
      (options.node_id.size() > 64 ||
       !std::all_of(options.node_id.begin(), options.node_id.end(), [](unsigned char c) {
         return std::isalnum(c) != 0 || c == '.' || c == '_' || c == '-';
       }))) {
    throw StartupError(
        fmt::format("--node-id: '{}' is not 1-64 of [A-Za-z0-9._-]", options.node_id));
  }
}

}  // namespace baton::app
