#include "baton/router/router.h"

#include "baton/base/check.h"
#include "baton/router/sequence.h"

#include <algorithm>

namespace baton::router {

namespace {

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

Router::Router(RouterOptions options)
    : options_(std::move(options)),
      policy_(options_.policy),
      hasher_(options_.prefix_key),
      stats_(std::make_unique<Stats>()) {}
Router::~Router() = default;

// ---- requests ----

Status Router::admission(const message::Submit& submit, const std::string& exactness_tag) const {
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
  const std::vector<std::string> tags = exactness_tags();
  if (!exactness_tag.empty() && std::find(tags.begin(), tags.end(), exactness_tag) == tags.end()) {
    return fail({ErrorCode::kUnavailable,
                 "no node is up that computes as the one that began the answer",
                 {},
                 kRetryAfterMs});
  }
  Policy probe(options_.policy);
  const auto prompt = static_cast<std::int64_t>(submit.prompt.size());
  const std::int64_t total = prompt + submit.max_tokens;
  Wish wish;
  wish.exactness_tag = exactness_tag;
  wish.prompt_tokens = prompt;
  wish.total_tokens = total;
  if (!probe.pick(nodes_, wish)) {
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

Status Router::start(std::vector<message::Submit> choices, TimePoint now, Commands& out,
                     const std::string& exactness_tag) {
  BATON_CHECK(!choices.empty());
  const RequestId id = choices.front().key.request;
  BATON_CHECK(requests_.count(id) == 0, "request {} started twice", to_string(id));
  if (Status admitted = admission(choices.front(), exactness_tag); !admitted) {
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
    sequence->state = request->choices.empty() ? Sequence::State::kWaiting : Sequence::State::kHeld;
    sequence->wait_deadline = now + options_.queue_deadline;
    sequence->required_tag = exactness_tag;
    request->choices.push_back(std::move(sequence));
  }
  request->open = request->choices.size();
  history_.set_time(now);
  const message::Submit& one = request->choices.front()->submit;
  history_.begin(id, static_cast<std::uint32_t>(request->choices.size()),
                 static_cast<std::int32_t>(one.prompt.size()), one.max_tokens);
  count(stats_->accepted);
  count(stats_->active);
  if (!exactness_tag.empty()) {
    count(stats_->resumed);
  }
  Request& placed = *requests_.emplace(id, std::move(request)).first->second;
  attempt(*placed.choices.front(), now, out);
  return {};
}

void Router::client_gone(RequestId id, TimePoint now, Commands& out) {
  history_.set_time(now);
  Request* request = find(id);
  if (request == nullptr) {
    BATON_CELLS(count_cell({id, {}, {}}, nullptr, cells::Event::kClientGone));
    return;
  }
  const Error reason{ErrorCode::kCancelled, "the client has left", {}, 0};
  for (const auto& sequence : request->choices) {
    BATON_CELLS(count_cell(sequence->submit.key, nullptr, cells::Event::kClientGone));
    abort_legs(*sequence, reason, out);
  }
  erase(id, End::kAborted, {});
}

void Router::stop_choice(RequestId id, Choice choice, TimePoint now, Commands& out) {
  history_.set_time(now);
  BATON_CELLS(count_cell({id, choice, {}}, nullptr, cells::Event::kStopped));
  Request* request = find(id);
  if (request == nullptr || choice.value >= request->choices.size()) {
    return;
  }
  Sequence& sequence = *request->choices[choice.value];
  if (sequence.state == Sequence::State::kEnded) {
    return;
  }
  abort_legs(sequence, {ErrorCode::kCancelled, "a stop string is complete", {}, 0}, out);
  end_sequence(sequence, now, out);
  release_siblings(id, now, out);
}

// ---- events of nodes ----

void Router::on_tokens(const NodeId& from, std::vector<message::Token> tokens, TimePoint now,
                       Commands& out) {
  history_.set_time(now);
  for (message::Token& token : tokens) {
    BATON_CELLS(count_token(from, token));
    Sequence* sequence = find_live(token.key, from);
    if (sequence == nullptr) {
      count(stats_->dead_epochs_dropped);
      continue;
    }
    sequence->silent_until = now + options_.silence_deadline;
    if (cluster::NodeRecord* node = nodes_.find(from)) {
      node->faults = 0;
      node->shunned_until = {};
    }
    sequence->route.kv_bytes = std::max(sequence->route.kv_bytes, token.kv_bytes);
    if (from == sequence->decode && !sequence->prefill.value.empty()) {
      note(*sequence, EventKind::kCommitted, from);
      close_leg(*sequence, sequence->prefill);  // its Commit was verified: that node's part is over
    }
    if (!sequence->progressed && token.index == sequence->next_index()) {
      note(*sequence, EventKind::kFirstToken, from.value.empty() ? options_.self : from);
    }
    // Whoever decodes has the prompt's KV; with both legs open a token is the prefill node's.
    const bool has_prompt = sequence->prefill.value.empty() || sequence->decode.value.empty() ||
                            token.finish != message::FinishReason::kNone;
    const RequestId id = token.key.request;
    accept(*sequence, std::move(token), now, out);
    if (has_prompt) {
      release_siblings(id, now, out);
    }
  }
}

// Lets the further choices of a request go, once the first one's prompt has been computed and is
// where it decodes: they find it in the nodes' prefix caches, so it is computed and sent once.
void Router::release_siblings(RequestId id, TimePoint now, Commands& out) {
  for (std::size_t choice = 1;; ++choice) {
    Request* request = find(id);  // an attempt that cannot be sent may end it
    if (request == nullptr || choice >= request->choices.size()) {
      return;
    }
    Sequence& sequence = *request->choices[choice];
    if (sequence.state == Sequence::State::kHeld) {
      const Sequence& first = *request->choices.front();
      sequence.prefer = {first.route.prefill_node, first.route.decode_node};
      sequence.required_tag = first.exactness_tag;  // one answer is of one tag
      sequence.wait_deadline = now + options_.queue_deadline;
      attempt(sequence, now, out);
    }
  }
}

void Router::accept(Sequence& sequence, message::Token token, TimePoint now, Commands& out) {
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
  release_ready(sequence, now, out);
}

void Router::release_ready(Sequence& sequence, TimePoint now, Commands& out) {
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
    const bool first_choice = token.key.choice.value == 0;
    history_.count_token(token.key.request, first_choice ? token.cached_tokens : 0,
                         sequence.route.kv_bytes);
    const bool last = token.finish != message::FinishReason::kNone;
    out.emplace_back(Deliver{std::move(token), sequence.route});
    if (last) {
      end_sequence(sequence, now, out);
      return;
    }
  }
}

void Router::on_refused(const NodeId& from, const message::Refused& event, TimePoint now,
                        Commands& out) {
  history_.set_time(now);
  BATON_CELLS(count_cell(event.key, &from,
                         event.later ? cells::Event::kRefusedLater : cells::Event::kRefusedNever));
  Sequence* sequence = find_live(event.key, from);
  if (sequence == nullptr) {
    count(stats_->dead_epochs_dropped);
  } else if (event.later) {
    retry(*sequence, culprit_of(*sequence, from, event.error.code), event.error, now, out);
  } else {
    fail_request(event.key.request, event.error, out);
  }
}

void Router::on_finished(const NodeId& from, const message::Finished& event, TimePoint now,
                         Commands& out) {
  history_.set_time(now);
  BATON_CELLS(
      count_cell(event.key, &from,
                 event.reason != message::FinishReason::kError || worth_retrying(event.error.code)
                     ? cells::Event::kGivenUp
                     : cells::Event::kFailed));
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

void Router::on_node_up(const message::NodeUp& event, TimePoint now, Commands& out) {
  history_.set_time(now);
  nodes_.up(event, now);
  was_ready_ = was_ready_ || has_pair();
  for (const SequenceKey& key : keys()) {
    Request* request = find(key.request);
    BATON_CELLS(count_cell(key, nullptr, cells::Event::kNodeUp));
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
  history_.set_time(now);
  nodes_.down(event);
  prefixes_.forget(event.id);
  stats_->prefixes_reported.store(prefixes_.reported(), std::memory_order_relaxed);
  for (const SequenceKey& key : keys()) {
    BATON_CELLS(count_cell(key, &event.id, cells::Event::kNodeDown));
    Sequence* sequence = find_live(key, event.id);
    if (sequence != nullptr) {
      retry(*sequence, event.id,
            {ErrorCode::kPeerLost, "the connection to a node broke", {}, kRetryAfterMs}, now, out);
    }
  }
}

void Router::on_prefixes(const NodeId& id, const message::PrefixChanges& changes) {
  if (options_.policy == PolicyKind::kKvAware && nodes_.find(id) != nullptr) {
    prefixes_.report(id, changes);
    stats_->prefixes_reported.store(prefixes_.reported(), std::memory_order_relaxed);
  }
}

void Router::on_node_load(const NodeId& id, const message::NodeLoad& load, bool draining,
                          TimePoint now) {
  nodes_.load(id, load, draining, now);
}

// ---- time ----

void Router::tick(TimePoint now, Commands& out) {
  history_.set_time(now);
  prefixes_.expire(now);
  for (const SequenceKey& key : keys()) {
    Request* request = find(key.request);
    if (request == nullptr) {
      continue;  // another choice of it failed just now
    }
    Sequence& sequence = *request->choices[key.choice.value];
    if (sequence.state == Sequence::State::kWaiting) {
      if (now >= give_up_at(*request, sequence)) {
        BATON_CELLS(count_cell(key, nullptr, cells::Event::kWaitOver));
        fail_request(key.request, sequence.last_error, out);
      } else if (now >= sequence.retry_at) {
        BATON_CELLS(count_cell(key, nullptr, cells::Event::kRetryDue));
        attempt(sequence, now, out);
      }
    } else if (sequence.state == Sequence::State::kRunning && now >= sequence.silent_until) {
      BATON_CELLS(count_cell(key, nullptr, cells::Event::kSilent));
      // A prefill node has said something by then, or its engine was found to stand still.
      const NodeId silent = sequence.decode.value.empty() ? sequence.prefill : sequence.decode;
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
        consider(std::min(sequence->retry_at, give_up_at(*request, *sequence)));
      } else if (sequence->state == Sequence::State::kRunning) {
        consider(sequence->silent_until);
      }
    }
  }
  return earliest;
}

}  // namespace baton::router
