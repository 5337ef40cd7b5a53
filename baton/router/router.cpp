#include "baton/router/router.h"

#include "baton/base/check.h"

#include <algorithm>

namespace baton::router {

namespace {

constexpr Duration kMaxBackoff = std::chrono::seconds(1);
constexpr std::int64_t kRetryAfterMs = 1000;  // a typical answer frees a slot in about that time

void count(std::atomic<std::uint64_t>& counter) { counter.fetch_add(1, std::memory_order_relaxed); }

// Failures of a node or a link, which another attempt may not meet. The rest is about the request.
bool worth_retrying(ErrorCode code) {
  switch (code) {
    case ErrorCode::kOverloaded:
    case ErrorCode::kUnavailable:
    case ErrorCode::kCancelled:
    case ErrorCode::kDeadlineExceeded:
    case ErrorCode::kPeerLost:
    case ErrorCode::kCorruptFrame:
    case ErrorCode::kProtocol:
    case ErrorCode::kIo:
      return true;
    default:
      return false;
  }
}

}  // namespace

struct Router::Sequence {
  enum class State : std::uint8_t { kWaiting, kRunning, kEnded };

  message::Submit submit;  // key.epoch is the current attempt's; emitted grows with each delivery
  State state = State::kWaiting;
  bool on_local_engine = false;
  NodeId prefill;  // legs of the current attempt that may still hold something; empty = none
  NodeId decode;
  Route route;
  std::string exactness_tag;  // of the first attempt that delivered: replays stay within it
  std::map<std::int32_t, message::Token> ahead;  // came before their turn

  std::uint32_t attempts = 0;  // since the last token
  std::vector<NodeId> avoid;   // at most max_attempts entries
  Error last_error{ErrorCode::kUnavailable, "no node could take the request", {}, kRetryAfterMs};
  Duration backoff{};
  TimePoint retry_at{};       // kWaiting
  TimePoint wait_deadline{};  // kWaiting: give up
  TimePoint silent_until{};   // kRunning: give the attempt up
  bool progressed = false;    // a token since the last attempt began

  [[nodiscard]] std::int32_t next_index() const {
    return static_cast<std::int32_t>(submit.emitted.size());
  }
};

struct Router::Request {
  RequestId id;
  std::vector<std::unique_ptr<Sequence>> choices;  // by choice number
  std::size_t open = 0;
};

Router::Router(RouterOptions options)
    : options_(std::move(options)), policy_(options_.policy), stats_(std::make_unique<Stats>()) {}
Router::~Router() = default;

// ---- requests
// ------------------------------------------------------------------------------------

Status Router::admission(const message::Submit& submit) const {
  if (draining_) {
    return fail({ErrorCode::kUnavailable, "the server is shutting down", {}, kRetryAfterMs});
  }
  const Readiness ready = readiness();
  if (!ready.ready) {
    std::string why = "the server is not ready";
    for (const std::string& line : ready.missing) {
      why += "; " + line;
    }
    return fail({ErrorCode::kUnavailable, std::move(why), {}, kRetryAfterMs});
  }
  if (requests_.size() >= options_.max_active) {
    return fail({ErrorCode::kOverloaded,
                 "the server has " + std::to_string(requests_.size()) +
                     " requests under way and takes no more",
                 {},
                 kRetryAfterMs});
  }
  if (options_.local_engine) {
    return {};  // the engine judges length
  }
  Policy probe(options_.policy);
  const auto prompt = static_cast<std::int64_t>(submit.prompt.size());
  const std::int64_t total = prompt + submit.max_tokens;
  if (!probe.pick(
          nodes_,
          {.exactness_tag = {}, .avoid = {}, .prompt_tokens = prompt, .total_tokens = total})) {
    std::int64_t most = 0;
    for (const auto& [id, node] : nodes_.nodes()) {
      most = std::max(most,
                      std::min<std::int64_t>(node.info.max_context_tokens, node.info.pool_tokens));
    }
    return fail(ErrorCode::kContextTooLong,
                "the request needs " + std::to_string(total) + " tokens (prompt " +
                    std::to_string(prompt) + " + limit " + std::to_string(submit.max_tokens) +
                    "), the largest node holds " + std::to_string(most),
                "max_tokens");
  }
  return {};
}

Status Router::start(std::vector<message::Submit> choices, TimePoint now, Commands& out) {
  BATON_CHECK(!choices.empty());
  const RequestId id = choices.front().key.request;
  BATON_CHECK(requests_.count(id) == 0, "request {} started twice", to_string(id));
  if (Status admitted = admission(choices.front()); !admitted) {
    count(stats_->rejected);
    return admitted;
  }
  auto request = std::make_unique<Request>();
  request->id = id;
  for (message::Submit& submit : choices) {
    auto sequence = std::make_unique<Sequence>();
    sequence->submit = std::move(submit);
    sequence->submit.key.choice.value = static_cast<std::uint32_t>(request->choices.size());
    sequence->submit.key.epoch.value = 0;
    sequence->wait_deadline = now + options_.queue_deadline;
    request->choices.push_back(std::move(sequence));
  }
  request->open = request->choices.size();
  count(stats_->accepted);
  count(stats_->active);
  Request& placed = *requests_.emplace(id, std::move(request)).first->second;
  for (const auto& sequence : placed.choices) {
    attempt(*sequence, now, out);
  }
  return {};
}

void Router::client_gone(RequestId id, Commands& out) {
  Request* request = find(id);
  if (request == nullptr) {
    return;
  }
  const Error reason{ErrorCode::kCancelled, "the client has left", {}, 0};
  for (const auto& sequence : request->choices) {
    abort_legs(*sequence, reason, out);
  }
  erase(id, End::kAborted);
}

void Router::stop_choice(RequestId id, Choice choice, Commands& out) {
  Request* request = find(id);
  if (request == nullptr || choice.value >= request->choices.size()) {
    return;
  }
  Sequence& sequence = *request->choices[choice.value];
  if (sequence.state == Sequence::State::kEnded) {
    return;
  }
  abort_legs(sequence, {ErrorCode::kCancelled, "a stop string is complete", {}, 0}, out);
  end_sequence(sequence, out);
}

// ---- attempts
// ------------------------------------------------------------------------------------

void Router::attempt(Sequence& sequence, TimePoint now, Commands& out) {
  sequence.progressed = false;
  sequence.decode = {};
  sequence.prefill = {};
  sequence.ahead.clear();
  if (options_.local_engine) {
    ++sequence.submit.key.epoch.value;
    ++sequence.attempts;
    sequence.state = Sequence::State::kRunning;
    sequence.silent_until = now + options_.silence_deadline;
    sequence.on_local_engine = true;
    sequence.route = {options_.self, options_.self, false, 0};
    out.emplace_back(RunLocal{sequence.submit});
    return;
  }
  const auto prompt =
      static_cast<std::int64_t>(sequence.submit.prompt.size() + sequence.submit.emitted.size());
  Wish wish;
  wish.exactness_tag = sequence.submit.emitted.empty() ? std::string() : sequence.exactness_tag;
  wish.avoid = sequence.avoid;
  wish.prompt_tokens = prompt;
  wish.total_tokens =
      static_cast<std::int64_t>(sequence.submit.prompt.size()) + sequence.submit.max_tokens;
  const std::optional<Pick> pick = policy_.pick(nodes_, wish);
  if (!pick) {
    sequence.state = Sequence::State::kWaiting;
    sequence.backoff = std::clamp(sequence.backoff * 2, options_.retry_backoff, kMaxBackoff);
    sequence.retry_at = now + sequence.backoff;
    return;
  }
  if (sequence.submit.key.epoch.value > 0) {
    count(sequence.submit.emitted.empty() ? stats_->retries : stats_->replays);
  }
  ++sequence.submit.key.epoch.value;
  ++sequence.attempts;
  sequence.state = Sequence::State::kRunning;
  sequence.silent_until = now + options_.silence_deadline;
  sequence.exactness_tag = pick->exactness_tag;
  send_pair(sequence, *pick, out);
}

void Router::send_pair(Sequence& sequence, const Pick& pick, Commands& out) {
  const bool split = !pick.prefill.value.empty() && !pick.decode.value.empty();
  const NodeId& alone = pick.decode.value.empty() ? pick.prefill : pick.decode;
  sequence.route = {split ? pick.prefill : alone, split ? pick.decode : alone, split, 0};
  sequence.prefill = pick.prefill;
  sequence.decode = pick.decode;
  for (const NodeId* id : {&pick.prefill, &pick.decode}) {
    if (cluster::NodeRecord* node = nodes_.find(*id)) {
      ++node->assigned;
    }
  }
  if (!split) {
    count(stats_->local_fallbacks);
  }
  // The decode node first: its reservation is what the prefill node will wait for.
  if (!pick.decode.value.empty()) {
    out.emplace_back(SendDecode{pick.decode, sequence.submit, pick.prefill});
  }
  if (!pick.prefill.value.empty()) {
    out.emplace_back(SendPrefill{pick.prefill, sequence.submit, pick.decode});
  }
}

// The current attempt is lost. The next one carries what the client has, so nothing is seen of it.
void Router::retry(Sequence& sequence, const NodeId& culprit, Error why, TimePoint now,
                   Commands& out) {
  const RequestId id = sequence.submit.key.request;
  abort_legs(sequence, why, out);
  if (sequence.progressed) {
    sequence.attempts = 0;
    sequence.avoid.clear();
    sequence.backoff = {};
    sequence.wait_deadline = now + options_.queue_deadline;
  }
  const bool again =
      std::find(sequence.avoid.begin(), sequence.avoid.end(), culprit) != sequence.avoid.end();
  if (!again) {
    sequence.avoid.push_back(culprit);
  }
  // Everybody asked is full and nothing was promised yet: say so at once instead of making a queue.
  const bool full = again && why.code == ErrorCode::kOverloaded && sequence.submit.emitted.empty();
  if (options_.local_engine || full || sequence.attempts >= options_.max_attempts) {
    fail_request(id, std::move(why), out);
    return;
  }
  sequence.last_error = std::move(why);
  if (!again) {
    attempt(sequence, now, out);  // another node, or this one once more
    return;
  }
  const Duration hint = std::chrono::milliseconds(sequence.last_error.retry_after_ms);
  sequence.backoff =
      std::clamp(std::max(sequence.backoff * 2, hint), options_.retry_backoff, kMaxBackoff);
  sequence.state = Sequence::State::kWaiting;
  sequence.retry_at = now + sequence.backoff;
}

// ---- events of nodes
// -------------------------------------------------------------------------------

void Router::on_tokens(const NodeId& from, std::vector<message::Token> tokens, TimePoint now,
                       Commands& out) {
  for (message::Token& token : tokens) {
    Sequence* sequence = find_live(token.key, from);
    if (sequence == nullptr) {
      count(stats_->dead_epochs_dropped);
      continue;
    }
    sequence->silent_until = now + options_.silence_deadline;
    sequence->route.kv_bytes = std::max(sequence->route.kv_bytes, token.kv_bytes);
    if (from == sequence->decode) {
      close_leg(sequence->prefill);  // its Commit was verified: that node's part is over
    }
    accept(*sequence, std::move(token), out);
  }
}

void Router::accept(Sequence& sequence, message::Token token, Commands& out) {
  const std::int32_t next = sequence.next_index();
  const auto waiting = sequence.ahead.find(token.index);
  const bool delivered = token.index < next;
  if (token.index < 0 || token.index >= sequence.submit.max_tokens) {
    fail_request(token.key.request,
                 {ErrorCode::kProtocol, "a node sent a token outside of the limit", {}, 0}, out);
    return;
  }
  if (delivered || waiting != sequence.ahead.end()) {
    const TokenId known = delivered ? sequence.submit.emitted[static_cast<std::size_t>(token.index)]
                                    : waiting->second.token;
    if (known == token.token) {
      count(stats_->duplicates_dropped);
      return;
    }
    // The promise is broken somewhere; the client must not be given either as the truth.
    count(stats_->mismatches);
    BATON_BUG("{}: token {} is {} and {}", to_string(token.key), token.index, known, token.token);
    fail_request(token.key.request,
                 {ErrorCode::kInternal, "two nodes disagree about a token", {}, 0}, out);
    return;
  }
  sequence.ahead.emplace(token.index, std::move(token));
  release_ready(sequence, out);
}

void Router::release_ready(Sequence& sequence, Commands& out) {
  while (true) {
    const auto at = sequence.ahead.find(sequence.next_index());
    if (at == sequence.ahead.end()) {
      return;
    }
    message::Token token = std::move(at->second);
    sequence.ahead.erase(at);
    sequence.submit.emitted.push_back(token.token);
    sequence.progressed = true;
    count(stats_->tokens_delivered);
    const bool last = token.finish != message::FinishReason::kNone;
    out.emplace_back(Deliver{std::move(token), sequence.route});
    if (last) {
      end_sequence(sequence, out);
      return;
    }
  }
}

void Router::on_refused(const NodeId& from, const message::Refused& event, TimePoint now,
                        Commands& out) {
  Sequence* sequence = find_live(event.key, from);
  if (sequence == nullptr) {
    count(stats_->dead_epochs_dropped);
  } else if (event.later) {
    retry(*sequence, from, event.error, now, out);
  } else {
    fail_request(event.key.request, event.error, out);
  }
}

void Router::on_finished(const NodeId& from, const message::Finished& event, TimePoint now,
                         Commands& out) {
  Sequence* sequence = find_live(event.key, from);
  if (sequence == nullptr) {
    count(stats_->dead_epochs_dropped);
    return;
  }
  Error why = event.error;
  if (event.reason != message::FinishReason::kError) {
    why = {ErrorCode::kPeerLost, "a node gave the sequence up", {}, 0};
  }
  if (worth_retrying(why.code)) {
    retry(*sequence, from, std::move(why), now, out);
  } else {
    fail_request(event.key.request, std::move(why), out);
  }
}

void Router::on_held(const NodeId& from, const std::vector<SequenceKey>& held, TimePoint now) {
  for (const SequenceKey& key : held) {
    if (Sequence* sequence = find_live(key, from)) {
      sequence->silent_until = now + options_.silence_deadline;
    }
  }
}

void Router::on_node_up(const message::NodeUp& event, TimePoint now, Commands& out) {
  nodes_.up(event, now);
  was_ready_ = was_ready_ || has_pair();
  for (const SequenceKey& key : keys()) {
    Request* request = find(key.request);
    if (request == nullptr) {
      continue;
    }
    Sequence& sequence = *request->choices[key.choice.value];
    if (sequence.state == Sequence::State::kWaiting) {
      attempt(sequence, now, out);
    }
  }
}

void Router::on_node_down(const message::NodeDown& event, TimePoint now, Commands& out) {
  nodes_.down(event);
  for (const SequenceKey& key : keys()) {
    Sequence* sequence = find_live(key, event.id);
    if (sequence != nullptr) {
      retry(*sequence, event.id,
            {ErrorCode::kPeerLost, "the connection to a node broke", {}, kRetryAfterMs}, now, out);
    }
  }
}

void Router::on_node_load(const NodeId& id, const message::NodeLoad& load, bool draining,
                          TimePoint now) {
  nodes_.load(id, load, draining, now);
}

// ---- time
// --------------------------------------------------------------------------------------------

void Router::tick(TimePoint now, Commands& out) {
  for (const SequenceKey& key : keys()) {
    Request* request = find(key.request);
    if (request == nullptr) {
      continue;  // another choice of it failed just now
    }
    Sequence& sequence = *request->choices[key.choice.value];
    if (sequence.state == Sequence::State::kWaiting) {
      if (now >= sequence.wait_deadline) {
        fail_request(key.request, sequence.last_error, out);
      } else if (now >= sequence.retry_at) {
        attempt(sequence, now, out);
      }
    } else if (sequence.state == Sequence::State::kRunning && now >= sequence.silent_until) {
      const NodeId silent = sequence.prefill.value.empty() ? sequence.decode : sequence.prefill;
      retry(sequence, silent, {ErrorCode::kDeadlineExceeded, "a node went silent", {}, 0}, now,
            out);
    }
  }
}

std::optional<TimePoint> Router::next_deadline() const {
  std::optional<TimePoint> earliest;
  const auto consider = [&](TimePoint when) {
    earliest = earliest ? std::min(*earliest, when) : when;
  };
  for (const auto& [id, request] : requests_) {
    for (const auto& sequence : request->choices) {
      if (sequence->state == Sequence::State::kWaiting) {
        consider(std::min(sequence->retry_at, sequence->wait_deadline));
      } else if (sequence->state == Sequence::State::kRunning) {
        consider(sequence->silent_until);
      }
    }
  }
  return earliest;
}

bool Router::has_pair() const {
  if (options_.local_engine) {
    return local_ready_;
  }
  const auto prefill = nodes_.usable(message::NodeRole::kPrefill);
  const auto decode = nodes_.usable(message::NodeRole::kDecode);
  const bool expects_prefill = nodes_.expects(message::NodeRole::kPrefill);
  const bool expects_decode = nodes_.expects(message::NodeRole::kDecode);
  if (expects_prefill != expects_decode) {
    return expects_prefill ? !prefill.empty() : !decode.empty();  // only one kind was asked for
  }
  return std::any_of(prefill.begin(), prefill.end(), [&](const auto* p) {
    return std::any_of(decode.begin(), decode.end(), [&](const auto* d) {
      return p->info.exactness_tag == d->info.exactness_tag;
    });
  });
}

Readiness Router::readiness() const {
  Readiness out;
  if (options_.local_engine) {
    out.ready = local_ready_ && !draining_;
    if (!local_ready_) {
      out.missing.emplace_back("the engine is not running");
    }
  } else {
    const bool anybody = !nodes_.usable(message::NodeRole::kPrefill).empty() ||
                         !nodes_.usable(message::NodeRole::kDecode).empty();
    out.ready = (has_pair() || (was_ready_ && anybody)) && !draining_;
    out.missing = nodes_.missing();
    if (!out.ready && out.missing.empty()) {
      out.missing.emplace_back("no prefill node and decode node of one exactness tag are up");
    }
  }
  if (draining_) {
    out.missing.emplace_back("shutting down");
  }
  return out;
}

// ---- book-keeping
// --------------------------------------------------------------------------------------

Router::Request* Router::find(RequestId id) {
  const auto found = requests_.find(id);
  return found == requests_.end() ? nullptr : found->second.get();
}

// The sequence, if this epoch is the current one and `from` has a leg of it.
Router::Sequence* Router::find_live(const SequenceKey& key, const NodeId& from) {
  Request* request = find(key.request);
  if (request == nullptr || key.choice.value >= request->choices.size()) {
    return nullptr;
  }
  Sequence& sequence = *request->choices[key.choice.value];
  const bool live =
      sequence.state == Sequence::State::kRunning && sequence.submit.key.epoch == key.epoch;
  const bool its_node = from.value.empty() ? sequence.on_local_engine
                                           : from == sequence.prefill || from == sequence.decode;
  return live && its_node ? &sequence : nullptr;
}

std::vector<SequenceKey> Router::keys() const {
  std::vector<SequenceKey> out;
  for (const auto& [id, request] : requests_) {
    for (const auto& sequence : request->choices) {
      out.push_back(sequence->submit.key);
    }
  }
  return out;
}

void Router::end_sequence(Sequence& sequence, Commands& out) {
  const RequestId id = sequence.submit.key.request;
  close_leg(sequence.prefill);
  close_leg(sequence.decode);
  sequence.state = Sequence::State::kEnded;
  sequence.ahead.clear();
  Request& request = *find(id);
  if (--request.open == 0) {
    out.emplace_back(Done{id});
    erase(id, End::kCompleted);
  }
}

void Router::close_leg(NodeId& leg) {
  if (leg.value.empty()) {
    return;
  }
  cluster::NodeRecord* node = nodes_.find(leg);
  if (node != nullptr && node->assigned > 0) {
    --node->assigned;
  }
  leg = {};
}

// Tells every node that may still hold something of the current attempt, and forgets the legs.
void Router::abort_legs(Sequence& sequence, const Error& reason, Commands& out) {
  if (sequence.state != Sequence::State::kRunning) {
    return;
  }
  if (sequence.on_local_engine) {
    out.emplace_back(SendAbort{NodeId{}, sequence.submit.key, reason});
  }
  for (NodeId* leg : {&sequence.decode, &sequence.prefill}) {
    const cluster::NodeRecord* node = nodes_.find(*leg);
    if (node != nullptr && node->state != cluster::NodeState::kDown) {
      out.emplace_back(SendAbort{*leg, sequence.submit.key, reason});
    }
    close_leg(*leg);
  }
}

void Router::fail_request(RequestId id, Error error, Commands& out) {
  Request* request = find(id);
  for (const auto& sequence : request->choices) {
    abort_legs(*sequence, error, out);
  }
  out.emplace_back(Fail{id, std::move(error)});
  erase(id, End::kFailed);
}

void Router::erase(RequestId id, End end) {
  requests_.erase(id);
  stats_->active.fetch_sub(1, std::memory_order_relaxed);
  switch (end) {
    case End::kCompleted:
      count(stats_->completed);
      break;
    case End::kFailed:
      count(stats_->failed);
      break;
    case End::kAborted:
      count(stats_->aborted);
      break;
  }
}

}  // namespace baton::router
