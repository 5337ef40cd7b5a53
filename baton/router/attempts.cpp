// Attempts of a sequence: sending it to nodes, losing it, trying again with what was emitted, and
// the books of who holds what. The rest of Router is in router.cpp.
#include "baton/router/router.h"
#include "baton/router/sequence.h"

#include <algorithm>

namespace baton::router {

namespace {

constexpr Duration kMaxBackoff = std::chrono::seconds(1);
// One lost attempt may be anybody's fault, three in a row without a token are the node's. It is
// left alone for a second, then for twice as long after each further one: a request meets it at
// most once in that time, and only as long as there is another.
constexpr std::uint32_t kFaultsToShun = 3;
constexpr Duration kShunFirst = std::chrono::seconds(1);
constexpr std::uint32_t kShunDoublings = 5;  // 32 s

// Full, draining or aborted is no fault.
bool is_fault(ErrorCode code) {
  return code == ErrorCode::kDeadlineExceeded || code == ErrorCode::kPeerLost ||
         code == ErrorCode::kCorruptFrame || code == ErrorCode::kProtocol || code == ErrorCode::kIo;
}

}  // namespace

// Of an attempt that ended with a word from one of its nodes. Each node speaks of itself, but for
// what one finds wrong with what the other sent it, or is, or did not do in time.
NodeId Router::culprit_of(const Sequence& sequence, const NodeId& from, ErrorCode code) {
  const bool split = !sequence.prefill.value.empty() && !sequence.decode.value.empty();
  if (!split || !is_fault(code)) {
    return from;
  }
  return from == sequence.decode ? sequence.prefill : sequence.decode;
}

void Router::attempt(Sequence& sequence, TimePoint now, Commands& out) {
  sequence.progressed = false;
  sequence.decode = {};
  sequence.prefill = {};
  sequence.ahead.clear();
  if (options_.local_engine) {
    begin_attempt(sequence, now);
    sequence.on_local_engine = true;
    sequence.route = {options_.self, options_.self, false, 0, options_.exactness_tag};
    note(sequence, EventKind::kSent, options_.self, options_.self);
    out.emplace_back(RunLocal{sequence.submit});
    return;
  }
  const auto prompt =
      static_cast<std::int64_t>(sequence.submit.prompt.size() + sequence.submit.emitted.size());
  Wish wish;
  wish.exactness_tag =
      sequence.submit.emitted.empty() ? sequence.required_tag : sequence.exactness_tag;
  wish.avoid = sequence.avoid;
  wish.now = now;
  wish.prefer = sequence.prefer;
  wish.prompt_tokens = prompt;
  wish.total_tokens =
      static_cast<std::int64_t>(sequence.submit.prompt.size()) + sequence.submit.max_tokens;
  if (options_.policy == PolicyKind::kKvAware) {
    if (sequence.names.empty()) {
      sequence.names =
          prefix_names(hasher_, sequence.submit.cache_namespace, sequence.submit.prompt);
    }
    wish.names = sequence.names;
    wish.prefixes = &prefixes_;
    wish.local_prefill_tokens = options_.local_prefill_tokens;
  }
  const std::optional<Pick> pick = policy_.pick(nodes_, wish);
  if (!pick) {
    sequence.state = Sequence::State::kWaiting;
    if (!sequence.nobody_since) {
      sequence.nobody_since = now;
      if (sequence.last_error.code == ErrorCode::kOverloaded) {  // who was full has gone
        sequence.last_error = {ErrorCode::kUnavailable, "no node is left", {}, kRetryAfterMs};
      }
    }
    sequence.backoff = std::clamp(sequence.backoff * 2, options_.retry_backoff, kMaxBackoff);
    sequence.retry_at = now + sequence.backoff;
    note(sequence, EventKind::kWaiting, {});
    return;
  }
  if (sequence.submit.key.epoch.value > 0) {
    count(sequence.submit.emitted.empty() ? stats_->retries : stats_->replays);
  }
  begin_attempt(sequence, now);
  sequence.exactness_tag = pick->exactness_tag;
  send_pair(sequence, *pick, now, out);
}

void Router::begin_attempt(Sequence& sequence, TimePoint now) const {
  ++sequence.submit.key.epoch.value;
  ++sequence.attempts;
  sequence.state = Sequence::State::kRunning;
  sequence.nobody_since.reset();
  sequence.sent_at = now;
  sequence.silent_until = now + options_.silence_deadline;
}

void Router::send_pair(Sequence& sequence, const Pick& pick, TimePoint now, Commands& out) {
  const bool split = !pick.prefill.value.empty() && !pick.decode.value.empty();
  const NodeId& alone = pick.decode.value.empty() ? pick.prefill : pick.decode;
  sequence.route = {split ? pick.prefill : alone, split ? pick.decode : alone, split, 0,
                    pick.exactness_tag};
  sequence.prefill = pick.prefill;
  sequence.decode = pick.decode;
  note(sequence, EventKind::kSent, sequence.route.prefill_node, sequence.route.decode_node);
  for (const NodeId* id : {&pick.prefill, &pick.decode}) {
    if (cluster::NodeRecord* node = nodes_.find(*id)) {
      ++node->assigned;
      node->prefill_tokens += id == &pick.prefill ? pick.new_tokens : 0;
      if (!sequence.names.empty()) {
        prefixes_.note_use(*id, sequence.names, node->info.pool_tokens, now);
      }
    }
  }
  sequence.prefill_tokens = pick.new_tokens;
  if (!split && !pick.by_choice) {
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
  note(sequence, EventKind::kLost, culprit.value.empty() ? options_.self : culprit, {},
       why.message);
  abort_legs(sequence, why, out);
  note_fault(culprit, why.code, now);
  if (sequence.progressed) {
    sequence.attempts = 0;
    sequence.avoid.clear();
    sequence.backoff = {};
    sequence.wait_deadline = now + options_.queue_deadline;
  } else if (why.code != ErrorCode::kOverloaded) {
    sequence.wait_deadline += now - sequence.sent_at;  // a node worked at it: that was no waiting
  }
  const bool again =
      std::find(sequence.avoid.begin(), sequence.avoid.end(), culprit) != sequence.avoid.end();
  if (!again) {
    sequence.avoid.push_back(culprit);
  }
  // Everybody asked is full and nothing was promised yet: say so at once instead of making a queue.
  // What was promised waits on: being full is no failure of an attempt then.
  const bool overloaded = why.code == ErrorCode::kOverloaded;
  const bool patient = overloaded && find(id)->promised();
  const bool full = again && overloaded;
  if (!patient && (options_.local_engine || full || sequence.attempts >= options_.max_attempts)) {
    fail_request(id, std::move(why), out);
    return;
  }
  sequence.attempts -= patient ? 1 : 0;
  sequence.last_error = std::move(why);
  if (!again && !options_.local_engine) {
    attempt(sequence, now, out);  // another node, or this one once more
    return;
  }
  const Duration hint = std::chrono::milliseconds(sequence.last_error.retry_after_ms);
  sequence.backoff =
      std::clamp(std::max(sequence.backoff * 2, hint), options_.retry_backoff, kMaxBackoff);
  sequence.state = Sequence::State::kWaiting;
  sequence.retry_at = now + sequence.backoff;
}

// kWaiting. What was promised waits long for room, and not for nodes that are not there.
TimePoint Router::give_up_at(const Request& request, const Sequence& sequence) const {
  if (!request.promised()) {
    return sequence.wait_deadline;
  }
  return sequence.nobody_since
             ? std::max(sequence.wait_deadline, *sequence.nobody_since + options_.queue_deadline)
             : sequence.wait_deadline + options_.promised_wait;
}

void Router::note_fault(const NodeId& id, ErrorCode code, TimePoint now) {
  cluster::NodeRecord* node = nodes_.find(id);
  if (node == nullptr || node->state == cluster::NodeState::kDown || !is_fault(code)) {
    return;  // who is down is not asked anyway, and may come back whole
  }
  if (++node->faults >= kFaultsToShun) {
    node->shunned_until =
        now + kShunFirst * (1U << std::min(node->faults - kFaultsToShun, kShunDoublings));
    count(stats_->nodes_shunned);
  }
}

// ---- book-keeping ----

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

void Router::end_sequence(Sequence& sequence, TimePoint now, Commands& out) {
  const RequestId id = sequence.submit.key.request;
  if (options_.policy == PolicyKind::kKvAware && !sequence.decode.value.empty()) {
    // The next turn of a conversation begins with this answer.
    const auto names = prefix_names(hasher_, sequence.submit.cache_namespace,
                                    sequence.submit.prompt, sequence.submit.emitted);
    if (const cluster::NodeRecord* node = nodes_.find(sequence.decode)) {
      prefixes_.note_end(sequence.decode, names, node->info.pool_tokens, now);
    }
  }
  close_leg(sequence, sequence.prefill);
  close_leg(sequence, sequence.decode);
  sequence.state = Sequence::State::kEnded;
  sequence.ahead.clear();
  Request& request = *find(id);
  if (--request.open == 0) {
    out.emplace_back(Done{id});
    erase(id, End::kCompleted, {});
  }
}

void Router::close_leg(Sequence& sequence, NodeId& leg) {
  if (leg.value.empty()) {
    return;
  }
  cluster::NodeRecord* node = nodes_.find(leg);
  if (node != nullptr && node->assigned > 0) {
    --node->assigned;
    if (&leg == &sequence.prefill) {
      node->prefill_tokens -= std::min(node->prefill_tokens, sequence.prefill_tokens);
    }
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
    close_leg(sequence, *leg);
  }
}

void Router::fail_request(RequestId id, Error error, Commands& out) {
  Request* request = find(id);
  for (const auto& sequence : request->choices) {
    abort_legs(*sequence, error, out);
  }
  const std::string message = error.message;
  out.emplace_back(Fail{id, std::move(error)});
  erase(id, End::kFailed, message);
}

void Router::note(const Sequence& sequence, EventKind kind, const NodeId& node,
                  const NodeId& decode_node, std::string reason) {
  history_.add(sequence.submit.key.request, {.kind = kind,
                                             .choice = sequence.submit.key.choice,
                                             .node = node,
                                             .decode_node = decode_node,
                                             .tokens = sequence.next_index(),
                                             .reason = std::move(reason)});
}

void Router::erase(RequestId id, End end, std::string_view error) {
  requests_.erase(id);
  const RequestState state = end == End::kCompleted ? RequestState::kCompleted
                             : end == End::kFailed  ? RequestState::kFailed
                                                    : RequestState::kAborted;
  history_.end(id, state, error);
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
