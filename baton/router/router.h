// The owner's state machine: one per process, holding one small machine per sequence. Events and
// the time go in, commands come out; it never waits, sends or looks at a clock. It picks nodes,
// releases tokens in index order, drops duplicates and dead epochs, and replays a sequence with
// what was already emitted when a node is lost. Thread: control (stats: any).
#pragma once

#include "baton/base/clock.h"
#include "baton/base/result.h"
#include "baton/cluster/records.h"
#include "baton/kv/tile_digest.h"
#include "baton/message/node.h"
#include "baton/message/request.h"
#include "baton/router/cells.h"
#include "baton/router/history.h"
#include "baton/router/policy.h"
#include "baton/router/prefix_map.h"
#include "baton/router/stats.h"

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

namespace baton::router {

// Where a sequence ran, as the response's `baton` object shows it.
struct Route {
  NodeId prefill_node;
  NodeId decode_node;
  bool split = false;          // false: prefilled and decoded on one node
  std::uint64_t kv_bytes = 0;  // received by handoff so far
  std::string exactness_tag;   // of the nodes
};

// ---- commands: to be carried out in order ----
// An empty NodeId in `node` below means this process's own engine.
struct SendPrefill {
  NodeId node;
  message::Submit submit;
  NodeId decode_node;  // empty: decode there
};
struct SendDecode {
  NodeId node;
  message::Submit submit;
  NodeId prefill_node;  // empty: prefill there
};
struct RunLocal {
  message::Submit submit;
};
struct SendAbort {
  NodeId node;
  SequenceKey key;
  Error reason;
};
struct Deliver {
  message::Token token;  // in index order per choice, each index once; key.epoch is of no meaning
  Route route;
};
// The whole request failed; nothing more will be delivered. Other choices were aborted.
struct Fail {
  RequestId request;
  Error error;
};
// Every choice has ended (by a token with finish, or by stop_choice).
struct Done {
  RequestId request;
};
using Command = std::variant<SendPrefill, SendDecode, RunLocal, SendAbort, Deliver, Fail, Done>;
using Commands = std::vector<Command>;

struct RouterOptions {
  bool local_engine = false;    // single node: RunLocal, no peers
  NodeId self{};                // shown in Route when local
  std::string exactness_tag{};  // of the local engine
  PolicyKind policy = PolicyKind::kLeastLoaded;
  std::int64_t local_prefill_tokens = 64;  // see Wish; kKvAware only
  std::string prefix_key{};                // the nodes' EngineConfig::cache_key; kKvAware only
  std::size_t max_active = 1024;           // requests; 429 above
  std::uint32_t max_attempts = 8;  // epochs of one sequence; then the last error is the answer
  Duration queue_deadline = std::chrono::seconds(30);  // waiting for a node that takes it
  // So much longer waits what belongs to an answer of which the client has a part.
  Duration promised_wait = std::chrono::minutes(10);
  // A running attempt without a token: the backstop behind the leases of handoff/,
  // which see a lost sequence within seconds and let a slow one (long prompt, preempted) go on.
  Duration silence_deadline = std::chrono::hours(1);
  Duration retry_backoff = std::chrono::milliseconds(50);  // doubles up to 1 s
};

struct Readiness {
  bool ready = false;
  std::vector<std::string> missing;  // why not, or what else is lacking; one line each
};

class Router {
 public:
  explicit Router(RouterOptions options);
  ~Router();

  // A new request: one Submit per choice, equal but for key.choice (0, 1, ...); epochs are set
  // here. An answer that was begun elsewhere names the exactness tag that it must be made within.
  // Errors: kOverloaded (max_active; retry_after set), kUnavailable (no node could serve now, or
  // draining), kContextTooLong (prompt + max_tokens above every usable node's context or pool).
  Status start(std::vector<message::Submit> choices, TimePoint now, Commands& out,
               const std::string& exactness_tag = {});

  // Events from a node (`from` empty: the local engine). A Send* command that could not be carried
  // out comes back as on_refused(later).
  void on_tokens(const NodeId& from, std::vector<message::Token> tokens, TimePoint now,
                 Commands& out);
  void on_refused(const NodeId& from, const message::Refused& event, TimePoint now, Commands& out);
  void on_finished(const NodeId& from, const message::Finished& event, TimePoint now,
                   Commands& out);
  void on_node_up(const message::NodeUp& event, TimePoint now, Commands& out);
  void on_node_down(const message::NodeDown& event, TimePoint now, Commands& out);
  // What a node says of its prefix cache; kKvAware only.
  void on_prefixes(const NodeId& id, const message::PrefixChanges& changes);
  void on_node_load(const NodeId& id, const message::NodeLoad& load, bool draining, TimePoint now);

  // From the client's side. client_gone ends the request without Fail or Done; unknown ids are
  // ignored. stop_choice: a stop string matched; the choice ends, its node is told.
  void client_gone(RequestId request, TimePoint now, Commands& out);
  void stop_choice(RequestId request, Choice choice, TimePoint now, Commands& out);

  // Deadlines and retries; call at next_deadline() or after, or simply every 50 ms.
  void tick(TimePoint now, Commands& out);
  [[nodiscard]] std::optional<TimePoint> next_deadline() const;

  // Local engine only: whether it is up (loaded, its step loop alive).
  void set_local_ready(bool ready) { local_ready_ = ready; }
  void set_draining() { draining_ = true; }  // start() refuses from now on
  // Ready once a prefill and a decode node of one tag are up (or the local engine is); later, while
  // any node can serve: without a partner a node does both.
  [[nodiscard]] Readiness readiness() const;
  // Of the usable nodes, or of the local engine: each once.
  [[nodiscard]] std::vector<std::string> exactness_tags() const;
  [[nodiscard]] std::size_t active() const { return requests_.size(); }
  // The context that a missing max_tokens is resolved from: the usable nodes' smallest; 0 = none.
  [[nodiscard]] std::int32_t context_tokens() const { return nodes_.min_context_tokens(); }
  [[nodiscard]] cluster::NodeTable& nodes() { return nodes_; }
  [[nodiscard]] const cluster::NodeTable& nodes() const { return nodes_; }
  [[nodiscard]] const Stats& stats() const { return *stats_; }  // any thread
  [[nodiscard]] const History& history() const { return history_; }

 private:
  struct Sequence;
  struct Request;
  enum class End : std::uint8_t { kCompleted, kFailed, kAborted };

  // With BATON_FAILPOINTS only, see cells.h. from: the node that an event is of, if it is one's.
  void count_cell(const SequenceKey& key, const NodeId* from, cells::Event event);
  void count_token(const NodeId& from, const message::Token& token);

  Status admission(const message::Submit& submit, const std::string& exactness_tag) const;
  Request* find(RequestId id);
  Sequence* find_live(const SequenceKey& key, const NodeId& from);
  std::vector<SequenceKey> keys() const;
  void attempt(Sequence& sequence, TimePoint now, Commands& out);
  void begin_attempt(Sequence& sequence, TimePoint now) const;
  void send_pair(Sequence& sequence, const Pick& pick, TimePoint now, Commands& out);
  void retry(Sequence& sequence, const NodeId& culprit, Error why, TimePoint now, Commands& out);
  static NodeId culprit_of(const Sequence& sequence, const NodeId& from, ErrorCode code);
  [[nodiscard]] TimePoint give_up_at(const Request& request, const Sequence& sequence) const;
  void accept(Sequence& sequence, message::Token token, TimePoint now, Commands& out);
  void release_ready(Sequence& sequence, TimePoint now, Commands& out);
  void end_sequence(Sequence& sequence, TimePoint now, Commands& out);
  void release_siblings(RequestId id, TimePoint now, Commands& out);
  void close_leg(Sequence& sequence, NodeId& leg);
  void note_fault(const NodeId& id, ErrorCode code, TimePoint now);
  void abort_legs(Sequence& sequence, const Error& reason, Commands& out);
  void fail_request(RequestId id, Error error, Commands& out);
  void erase(RequestId id, End end, std::string_view error);
  void note(const Sequence& sequence, EventKind kind, const NodeId& node,
            const NodeId& decode_node = {}, std::string reason = {});
  [[nodiscard]] bool has_pair() const;

  RouterOptions options_;
  cluster::NodeTable nodes_;
  Policy policy_;
  kv::TileHasher hasher_;
  PrefixMap prefixes_;
  bool local_ready_ = false;
  bool draining_ = false;
  bool was_ready_ = false;  // a pair was there once: from then on one node is enough
  std::unordered_map<RequestId, std::unique_ptr<Request>> requests_;
  std::unique_ptr<Stats> stats_;
  History history_;
};

}  // namespace baton::router
