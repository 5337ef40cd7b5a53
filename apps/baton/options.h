// Flags of every subcommand as plain structs, and the CLI11 tree that fills them. Every flag has a
// BATON_* variable and a key in the file given by --config; flags win over variables, variables
// over the file. No work is done here: serve.cpp acts on the values.
#pragma once

#include "baton/base/result.h"
#include "baton/kv/layout.h"
#include "baton/message/node.h"
#include "baton/router/policy.h"

#include "apps/baton/bench_engine.h"
#include "apps/baton/bench_handoff.h"
#include "apps/baton/bench_perplexity.h"
#include "apps/baton/bench_serve.h"
#include <cstdint>
#include <string>
#include <vector>

namespace CLI {  // NOLINT(readability-identifier-naming): theirs
class App;
}

namespace baton::app {

// Exit code for flags that are wrong, as tools have it.
inline constexpr int kUsageError = 2;

struct ServeOptions {
  message::NodeRole role = message::NodeRole::kSingle;
  std::string node_id;      // empty: <role>-<8 random hex digits>
  std::string config_path;  // empty: none
  std::string model_path;
  std::string served_model_name;  // empty: the file's stem

  std::string host = "127.0.0.1";
  int port = -1;              // -1: no HTTP on prefill and decode nodes, 8080 elsewhere
  std::string serving_bind;   // host:port of the node protocol; prefill and decode nodes need it
  std::string prefill_peers;  // "a:1,dns:b:2"
  std::string decode_peers;
  int dns_interval_ms = 5'000;
  std::vector<std::string> etcd_endpoints;  // "http://a:2379"; empty: no etcd
  std::string etcd_prefix = "/baton";
  int etcd_ttl_s = 10;            // three renewals
  std::string serving_advertise;  // in etcd; empty: where serving_bind listens
  router::PolicyKind policy = router::PolicyKind::kLeastLoaded;
  int local_prefill_tokens = 64;
  std::vector<std::string> api_keys;

  // PEM files, see guard.h. HTTP: cert and key; ca: clients must show a certificate. Nodes: all.
  std::string ssl_cert_file;
  std::string ssl_key_file;
  std::string ssl_ca_certs;
  std::string node_tls_cert;
  std::string node_tls_key;
  std::string node_tls_ca;
  std::string cluster_token_file;  // or BATON_CLUSTER_TOKEN: a secret is never on a command line

  int context_tokens = 0;  // 0: min(model, pool)
  int threads = 0;         // 0: one per core
  int max_num_seqs = 64;
  int max_step_ms = 40;
  std::string kv_memory = "0";  // bytes with K, M, G; 0: automatic
  std::string kv_dtype = "bf16";
  int block_tokens = 128;
  std::string prefix_cache = "on";
  std::string kv_touch = "auto";
  std::string cpu_mask;  // hex; empty: every CPU that the process may use
  std::string isa = "auto";
  std::string failpoints;

  int io_threads = 1;
  int max_queue = 256;  // requests an owner holds at once; more get 429
  std::string max_body = "8M";
  std::string max_bodies;  // empty: 32 of the largest
  int drain_timeout_s = 30;
  int queue_deadline_ms = 60'000;
  int prefill_deadline_ms = 600'000;
  int write_timeout_ms = 30'000;
  double sse_ping_interval_s = 15;  // proxies cut silent streams after 30-60 s
  int beat_interval_ms = 250;
  int lease_ms = 3'000;
  int stall_ms = 5'000;  // a step may take seconds with a slow CPU and large chunks
  int handoff_deadline_ms = 60'000;
  std::string stream_kv = "on";
  int bulk_connections = 2;
  std::string kv_transport = "tcp";  // auto, tcp or ucx
  std::string log_level = "info";
};

// "64M" -> bytes. Suffixes K, M, G (powers of 1024), optional B. Errors: kInvalidArgument naming
// flag.
Result<std::uint64_t> parse_bytes(const std::string& text, const std::string& flag);

void add_serve_flags(CLI::App& app, ServeOptions& options);
void add_bench_flags(CLI::App& app, BenchEngineOptions& options);
void add_bench_flags(CLI::App& app, BenchPerplexityOptions& options);
void add_bench_flags(CLI::App& app, BenchServeOptions& options);
void add_bench_flags(CLI::App& app, BenchHandoffOptions& options);

// After a parse error: a line on stderr for each variable whose flag the error names, since the
// mistake may be there and not on the command line.
void print_variables_behind(const std::string& mistake, const CLI::App& app);

// Checks that need more than one flag. Throws StartupError naming the flag and what to do.
void validate(const ServeOptions& options);

}  // namespace baton::app
