#include "apps/baton/cluster_view.h"

#include "baton/api/json_writer.h"

#include <algorithm>
#include <chrono>

namespace baton::app {
namespace {

using api::JsonWriter;

std::int64_t microseconds(Duration duration) {
  return std::chrono::duration_cast<std::chrono::microseconds>(duration).count();
}

void write_self(JsonWriter& json, const ClusterView& view) {
  json.key("self").begin_object();
  json.key("id").string(view.self.id.value);
  json.key("role").string(message::role_name(view.self.role));
  json.key("model").string(view.model);
  json.end_object();
}

void write_counters(JsonWriter& json, const router::Stats& stats) {
  json.key("counters").begin_object();
  json.key("accepted").unsigned_integer(stats.accepted);
  json.key("active").unsigned_integer(stats.active);
  json.key("completed").unsigned_integer(stats.completed);
  json.key("failed").unsigned_integer(stats.failed);
  json.key("aborted").unsigned_integer(stats.aborted);
  json.key("rejected").unsigned_integer(stats.rejected);
  json.key("retries").unsigned_integer(stats.retries);
  json.key("replays").unsigned_integer(stats.replays);
  json.key("local_fallbacks").unsigned_integer(stats.local_fallbacks);
  json.key("tokens_delivered").unsigned_integer(stats.tokens_delivered);
  json.end_object();
}

void write_node(JsonWriter& json, const cluster::NodeRecord& node, const ClusterView& view) {
  json.begin_object();
  json.key("id").string(node.info.id.value);
  json.key("role").string(message::role_name(node.info.role));
  json.key("address").string(node.info.address);
  json.key("state").string(cluster::node_state_name(node.state));
  json.key("reason").string(node.down_reason);
  json.key("seen_us").integer(microseconds(node.last_seen - view.started));
  json.key("assigned").unsigned_integer(node.assigned);
  json.key("faults").unsigned_integer(node.faults);
  json.key("running").unsigned_integer(node.load.running);
  json.key("waiting").unsigned_integer(node.load.waiting);
  json.key("free_blocks").unsigned_integer(node.load.free_blocks);
  json.key("total_blocks").unsigned_integer(node.load.total_blocks);
  json.key("steps").unsigned_integer(node.load.step_count);
  json.key("context_tokens").integer(node.info.max_context_tokens);
  json.key("pool_tokens").integer(node.info.pool_tokens);
  json.end_object();
}

void write_event(JsonWriter& json, const router::HistoryEvent& event, const ClusterView& view) {
  json.begin_object();
  json.key("at_us").integer(microseconds(event.at - view.started));
  json.key("event").string(router::event_name(event.kind));
  json.key("choice").unsigned_integer(event.choice.value);
  json.key("tokens").integer(event.tokens);
  if (!event.node.value.empty()) {
    json.key("node").string(event.node.value);
  }
  if (!event.decode_node.value.empty()) {
    json.key("decode_node").string(event.decode_node.value);
  }
  if (!event.reason.empty()) {
    json.key("reason").string(event.reason);
  }
  json.end_object();
}

void write_request(JsonWriter& json, const router::RequestHistory& request,
                   const ClusterView& view) {
  json.begin_object();
  json.key("id").string(to_string(request.id));
  json.key("state").string(router::request_state_name(request.state));
  json.key("received_us").integer(microseconds(request.received - view.started));
  json.key("ended_us");
  if (request.state == router::RequestState::kActive) {
    json.null();
  } else {
    json.integer(microseconds(request.ended - view.started));
  }
  json.key("choices").unsigned_integer(request.choices);
  json.key("prompt_tokens").integer(request.prompt_tokens);
  json.key("cached_tokens").integer(std::max(request.cached_tokens, 0));
  json.key("max_tokens").integer(request.max_tokens);
  json.key("tokens").integer(request.tokens);
  json.key("kv_bytes").unsigned_integer(request.kv_bytes);
  json.key("error").string(request.error);
  json.key("events").begin_array();
  for (const router::HistoryEvent& event : request.events) {
    write_event(json, event, view);
  }
  json.end_array();
  json.key("events_left_out").unsigned_integer(request.events_left_out);
  json.end_object();
}

}  // namespace

std::string cluster_body(const ClusterView& view, const router::Stats& stats) {
  std::string out;
  JsonWriter json(out);
  json.begin_object();
  json.key("now_us").integer(microseconds(view.owner.now - view.started));
  write_self(json, view);
  json.key("ready").boolean(view.owner.readiness.ready);
  json.key("missing").begin_array();
  for (const std::string& line : view.owner.readiness.missing) {
    json.string(line);
  }
  json.end_array();
  write_counters(json, stats);
  json.key("nodes").begin_array();
  for (const cluster::NodeRecord& node : view.owner.nodes) {
    write_node(json, node, view);
  }
  json.end_array();
  json.key("requests").begin_array();
  const auto& requests = view.owner.requests;
  for (auto request = requests.rbegin(); request != requests.rend(); ++request) {
    write_request(json, *request, view);
  }
  json.end_array().end_object();
  return out;
}

}  // namespace baton::app
