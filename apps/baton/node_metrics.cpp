#include "apps/baton/node_metrics.h"

#include "baton/base/check.h"
#include "baton/membership/membership.h"

#include <atomic>
#include <utility>

namespace baton::app {
namespace {

using engine::EndReason;

template <class T>
std::function<double()> reader(const std::atomic<T>& value) {
  return [&value] { return static_cast<double>(value.load(std::memory_order_relaxed)); };
}

std::function<HistogramValue()> reader(const handoff::DurationHistogram& histogram) {
  return [&histogram] {
    HistogramValue value;
    for (std::size_t i = 0; i < histogram.kBounds.size(); ++i) {
      value.buckets.emplace_back(histogram.kBounds[i],
                                 histogram.counts[i].load(std::memory_order_relaxed));
    }
    value.above = histogram.counts.back().load(std::memory_order_relaxed);
    constexpr double kSecond = 1e6;  // microseconds
    value.sum = static_cast<double>(histogram.sum_us.load(std::memory_order_relaxed)) / kSecond;
    return value;
  };
}

void add_pool(MetricsPage& page, const engine::EngineStats& engine) {
  for (std::size_t index = 0; index < engine.group_count; ++index) {
    const engine::GroupGauges& group = engine.groups[index];
    const auto add = [&](const char* state, std::function<double()> read) {
      page.add_gauge("baton_pool_blocks", "KV blocks by group and state",
                     {{"group", std::to_string(index)}, {"state", state}}, std::move(read));
    };
    add("free", reader(group.free_blocks));
    add("used", [&group] {
      const double used = group.used_blocks.load(std::memory_order_relaxed);
      return used - group.reserved_blocks.load(std::memory_order_relaxed);
    });
    add("reserved", reader(group.reserved_blocks));
    add("cached", reader(group.cached_blocks));
  }
}

void add_engine(MetricsPage& page, const std::string& role, const engine::EngineStats& engine) {
  page.add_counter("baton_tokens_generated_total", "tokens drawn by this node's sampler",
                   {{"role", role}}, reader(engine.tokens_generated));
  page.add_counter("baton_prompt_tokens_computed_total", "prompt tokens run through the model",
                   {{"role", role}}, reader(engine.prompt_tokens_computed));
  page.add_counter("baton_prompt_tokens_cached_total",
                   "prompt tokens not computed thanks to a prefix cache", {},
                   reader(engine.prompt_tokens_cached));
  page.add_counter("baton_preemptions_total",
                   "sequences that gave their KV blocks back and were computed again", {},
                   reader(engine.preemptions));
  page.add_counter("baton_steps_total", "engine steps", {}, reader(engine.step_count));
  page.add_counter("baton_sequences_accepted_total", "sequences that passed the guards", {},
                   reader(engine.accepted));
  static constexpr std::pair<EndReason, const char*> kReasons[] = {
      {EndReason::kStop, "stop"},
      {EndReason::kLength, "length"},
      {EndReason::kAborted, "aborted"},
      {EndReason::kError, "error"},
      {EndReason::kHandedOff, "handed_off"},
      {EndReason::kReleased, "released"},
      {EndReason::kExpired, "expired"}};
  for (const auto& [reason, name] : kReasons) {
    page.add_counter("baton_sequences_total", "ended sequences by reason; sum = accepted when idle",
                     {{"reason", name}}, reader(engine.ended[static_cast<std::size_t>(reason)]));
  }
  page.add_gauge("baton_sequences_running", "sequences prefilling or decoding", {},
                 reader(engine.running));
  page.add_gauge("baton_sequences_reserved", "sequences with room whose KV is not here yet", {},
                 reader(engine.reserved));
  page.add_gauge("baton_sequences_handing_off", "prefilled sequences whose KV is on its way", {},
                 reader(engine.handing_off));
  page.add_gauge("baton_queue_depth", "sequences waiting for room", {}, reader(engine.waiting));
  add_pool(page, engine);
}

void add_handoff(MetricsPage& page, const handoff::HandoffStats& handoff) {
  const auto outcome = [&](const char* name, const std::atomic<std::uint64_t>& value) {
    page.add_counter("baton_handoffs_total", "handoffs that this node took part in, by outcome",
                     {{"outcome", name}}, reader(value));
  };
  outcome("ok", handoff.ok);
  outcome("failed", handoff.failed);
  outcome("aborted", handoff.aborted);
  outcome("local", handoff.local);
  page.add_counter("baton_handoff_bytes_total", "KV bytes moved between nodes", {{"dir", "sent"}},
                   reader(handoff.bytes_sent));
  page.add_counter("baton_handoff_bytes_total", "KV bytes moved between nodes",
                   {{"dir", "received"}}, reader(handoff.bytes_received));
  page.add_counter("baton_handoff_layer_frames_total",
                   "frames with some layers of a prompt's last chunk, since the way was slow", {},
                   reader(handoff.layer_frames));
  page.add_counter("baton_handoff_protocol_errors_total",
                   "frames or messages that broke the protocol", {},
                   reader(handoff.protocol_errors));
  page.add_counter("baton_handoff_stale_messages_total", "messages for dead sequences, dropped", {},
                   reader(handoff.stale_messages));
  page.add_histogram("baton_handoff_seconds",
                     "handoffs that went well: from the Grant to the Ack (prefill node) or to the "
                     "start of decoding (decode node), the prefill included",
                     {}, reader(handoff.whole));
  page.add_histogram("baton_handoff_exposed_seconds",
                     "handoffs that went well, on the prefill node: from the end of the prefill to "
                     "the decode node's last Ack",
                     {}, reader(handoff.exposed));
  page.add_gauge("baton_handoffs_active", "handoffs under way", {}, reader(handoff.active));
}

void add_transport(MetricsPage& page, const handoff::TransportStats& transport) {
  const auto way = [&](const char* name, const handoff::TransportStats::Way& numbers) {
    const auto bytes = [&](const char* dir, const std::atomic<std::uint64_t>& value) {
      page.add_counter("baton_kv_transport_bytes_total", "KV bytes in whole frames, by their way",
                       {{"transport", name}, {"dir", dir}}, reader(value));
    };
    bytes("sent", numbers.bytes_sent);
    bytes("received", numbers.bytes_received);
    page.add_gauge("baton_kv_transport_peers", "connected engine nodes, by the agreed way for KV",
                   {{"transport", name}}, reader(numbers.peers));
  };
  way("tcp", transport.tcp);
  way("ucx", transport.fabric);
  page.add_counter("baton_kv_lanes_failed_total", "connections that went from ucx back to tcp", {},
                   reader(transport.lanes_failed));
}

void add_router(MetricsPage& page, const router::Stats& router) {
  const auto status = [&](const char* name, const std::atomic<std::uint64_t>& value) {
    page.add_counter("baton_requests_total", "requests by how they ended", {{"status", name}},
                     reader(value));
  };
  status("completed", router.completed);
  status("failed", router.failed);
  status("aborted", router.aborted);
  status("rejected", router.rejected);
  page.add_counter("baton_requests_accepted_total", "requests taken; sum of the ends when idle", {},
                   reader(router.accepted));
  page.add_counter("baton_requests_resumed_total",
                   "of them, answers that another process began (Last-Event-ID)", {},
                   reader(router.resumed));
  page.add_gauge("baton_requests_active", "requests under way", {}, reader(router.active));
  page.add_counter("baton_retries_total", "attempts repeated before a token was delivered", {},
                   reader(router.retries));
  page.add_counter("baton_replays_total", "attempts repeated with tokens already delivered", {},
                   reader(router.replays));
  page.add_counter("baton_local_fallbacks_total", "attempts on one node for want of a pair", {},
                   reader(router.local_fallbacks));
  page.add_counter("baton_nodes_shunned_total", "times that a node failed too often in a row", {},
                   reader(router.nodes_shunned));
  page.add_gauge("baton_prefixes_reported",
                 "tiles of 32 tokens that nodes say they have cached (--policy kv-aware)", {},
                 reader(router.prefixes_reported));
  page.add_counter("baton_token_mismatches_total", "repeated tokens that differed: a bug", {},
                   reader(router.mismatches));
}

// What dashboards, benchmark clients and gateways already look for.
void add_vllm_aliases(MetricsPage& page, const std::string& model_name,
                      const engine::EngineStats& engine) {
  const Labels labels = {{"model_name", model_name}, {"engine", "0"}};
  page.add_gauge("vllm:num_requests_running", "as baton_sequences_running", labels,
                 reader(engine.running));
  page.add_gauge("vllm:num_requests_waiting", "as baton_queue_depth", labels,
                 reader(engine.waiting));
  page.add_gauge("vllm:kv_cache_usage_perc", "used share of the KV pool, 0 to 1", labels,
                 [&engine] {
                   const double total = engine.groups[0].total_blocks;
                   return total == 0 ? 0.0 : engine.groups[0].used_blocks / total;
                 });
}

}  // namespace

void add_node_metrics(MetricsPage& page, message::NodeRole role, const std::string& model_name,
                      const engine::EngineStats* engine, const handoff::HandoffStats* handoff,
                      const handoff::TransportStats* transport, const router::Stats* router) {
  if (engine != nullptr) {
    add_engine(page, std::string(message::role_name(role)), *engine);
    add_vllm_aliases(page, model_name, *engine);
  }
  if (handoff != nullptr) {
    add_handoff(page, *handoff);
  }
  if (transport != nullptr) {
    add_transport(page, *transport);
  }
  if (router != nullptr) {
    add_router(page, *router);
    if (engine == nullptr) {
      page.add_gauge("baton_queue_depth", "requests under way in this router", {},
                     reader(router->active));
    }
  }
  page.add_counter("baton_bugs_total", "doubtful states survived; each is logged", {},
                   [] { return static_cast<double>(bug_count()); });
}

void add_membership_metrics(MetricsPage& page, const membership::MembershipStats& stats) {
  const auto members = [&](const char* role, const std::atomic<std::uint64_t>& value) {
    page.add_gauge("baton_members", "nodes that this one is told of, by flags, DNS and etcd",
                   {{"role", role}}, reader(value));
  };
  members("prefill", stats.prefill_nodes);
  members("decode", stats.decode_nodes);
  const auto failures = [&](const char* source, const std::atomic<std::uint64_t>& value) {
    page.add_counter("baton_membership_failures_total",
                     "look-ups and calls that failed; the last answer stays", {{"source", source}},
                     reader(value));
  };
  failures("dns", stats.dns_failures);
  failures("etcd", stats.etcd_failures);
}

}  // namespace baton::app
