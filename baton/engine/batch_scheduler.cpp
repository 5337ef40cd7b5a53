// The loop, the door and the end of a sequence. Who has room is in room.cpp, steps in step.cpp,
// handoffs in handoff.cpp.
#include "baton/engine/batch_scheduler.h"

#include "baton/base/check.h"
#include "baton/base/failpoints.h"
#include "baton/base/log.h"
#include "baton/engine/guards.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

namespace baton::engine {

namespace {

// Idle sleep: one wake-up a second costs nothing, and says that the thread is alive.
constexpr Duration kIdleSleep = std::chrono::seconds(1);
// How often cancel flags are looked at while no step runs; a tenth of the 100 ms that a cancel may
// take.
constexpr Duration kCancelPoll = std::chrono::milliseconds(10);
constexpr std::int64_t kRetryHintMs = 1000;

template <class... Handlers>
struct Overloaded : Handlers... {
  using Handlers::operator()...;
};
template <class... Handlers>
Overloaded(Handlers...) -> Overloaded<Handlers...>;

sched::SchedulerConfig scheduler_config(const EngineConfig& config,
                                        const backend::BackendInfo& info) {
  sched::SchedulerConfig result;
  result.layout = info.layout;
  result.group_blocks = info.group_blocks;
  const std::int32_t most = info.max_step_tokens - kv::kTileTokens;
  result.max_num_seqs = std::max(1, std::min(config.max_num_seqs, most));
  if (result.max_num_seqs < config.max_num_seqs) {
    log::warn("max-num-seqs is {}: a step of {} rows holds no more beside a tile of a prompt",
              result.max_num_seqs, info.max_step_tokens);
  }
  result.max_step_tokens = info.max_step_tokens;
  result.max_step = std::chrono::milliseconds(config.max_step_ms);
  result.max_waiting = config.max_waiting;
  result.queue_deadline = std::chrono::milliseconds(config.queue_deadline_ms);
  return result;
}

EngineConfig resolved(EngineConfig config, const backend::BackendInfo& info) {
  config.max_context_tokens = config.max_context_tokens > 0
                                  ? std::min(config.max_context_tokens, info.max_context_tokens)
                                  : info.max_context_tokens;
  return config;
}

// What a sequence takes of the pool. The last token drawn is never an input, so its row is not
// needed.
sched::Demand demand_of(const message::Submit& submit, sched::Kind kind) {
  sched::Demand demand;
  demand.kind = kind;
  demand.prefill_tokens = static_cast<std::int32_t>(submit.prompt.size() + submit.emitted.size());
  demand.room_tokens =
      kind == sched::Kind::kHandoff
          ? demand.prefill_tokens
          : static_cast<std::int32_t>(submit.prompt.size()) + submit.max_tokens - 1;
  demand.priority = submit.priority;
  return demand;
}

}  // namespace

BatchScheduler::BatchScheduler(backend::Backend& backend, const Clock& clock,
                               const EngineConfig& config, EventQueue& events)
    : backend_(backend),
      clock_(clock),
      config_(resolved(config, backend.info())),
      events_(events),
      info_(backend.info()),
      stats_(info_.layout.groups.size()),
      mailbox_(config.mailbox_capacity),
      pools_(make_pools()),
      indexes_(make_indexes()),
      hasher_(config.cache_key),
      scheduler_(scheduler_config(config, info_)),
      layer_progress_(clock, info_.layout) {
  publish_gauges();
}

std::vector<std::unique_ptr<kv::BlockPool>> BatchScheduler::make_pools() {
  std::vector<std::unique_ptr<kv::BlockPool>> pools;
  for (std::size_t group = 0; group < info_.group_blocks.size(); ++group) {
    pools.push_back(std::make_unique<kv::BlockPool>(
        info_.group_blocks[group], [this, group](kv::BlockId block) { poison(group, block); }));
  }
  return pools;
}

BatchScheduler::~BatchScheduler() {
  mailbox_.close();
  sequences_.clear();  // before the pools: they hold references
  leases_.clear();
}

bool BatchScheduler::post(message::EngineCommand&& command) {
  if (const auto* abort = std::get_if<message::Abort>(&command)) {
    const message::Abort copy = *abort;
    const bool posted = mailbox_.push_unbounded(std::move(command));
    step_aborts_.abort(copy);
    return posted;
  }
  const bool takes_work = std::holds_alternative<message::RunLocally>(command) ||
                          std::holds_alternative<message::PrefillForHandoff>(command) ||
                          std::holds_alternative<message::Reserve>(command);
  return takes_work ? mailbox_.try_push(std::move(command))
                    : mailbox_.push_unbounded(std::move(command));
}

void BatchScheduler::stop() {
  stopping_.store(true);
  mailbox_.close();
}

void BatchScheduler::run() {
  while (!stopping_.load()) {
    (void)BATON_FAILPOINT("engine.stall");
    cycle(scheduler_.has_work() ? mailbox_.drain() : mailbox_.wait_and_drain(sleep_limit()));
  }
  std::vector<SequenceKey> keys;
  for (const auto& [key, sequence] : sequences_) {
    keys.push_back(key);
  }
  for (const SequenceKey& key : keys) {
    end_with_event(key, EndReason::kAborted, Error{ErrorCode::kUnavailable, "the node stops"});
  }
  publish_gauges();
}

bool BatchScheduler::run_once() { return cycle(mailbox_.drain()); }

bool BatchScheduler::cycle(std::vector<message::EngineCommand> commands) {
  stats_.last_turn_ns.store(clock_.now().time_since_epoch().count(), std::memory_order_relaxed);
  stats_.turn_count.fetch_add(1, std::memory_order_relaxed);
  for (message::EngineCommand& command : commands) {
    handle(std::move(command));
  }
  abort_cancelled();
  expire_waiting();
  admit();
  const bool stepped = step();
  settle();
  return stepped;
}

Duration BatchScheduler::sleep_limit() const {
  Duration limit = kIdleSleep;
  const TimePoint deadline = scheduler_.next_deadline();
  if (deadline != TimePoint::max()) {
    limit = std::clamp<Duration>(deadline - clock_.now(), std::chrono::milliseconds(1), limit);
  }
  for (const auto& [key, sequence] : sequences_) {
    if (sequence->cancel != nullptr) {
      return std::min(limit, kCancelPoll);
    }
  }
  return limit;
}

void BatchScheduler::handle(message::EngineCommand&& command) {
  std::visit(Overloaded{
                 [&](message::RunLocally& c) { submit(std::move(c.submit), sched::Kind::kLocal); },
                 [&](message::PrefillForHandoff& c) {
                   submit(std::move(c.submit), sched::Kind::kHandoff);
                 },
                 [&](message::Granted& c) { note_grant(c); },
                 [&](message::Reserve& c) { submit(std::move(c.submit), sched::Kind::kReserve); },
                 [&](message::Adopt& c) {
                   const SequenceKey key = c.key;
                   if (const Status status = ingest_handoff_as_active(std::move(c)); !status) {
                     log::warn("adopt of {}: {}", to_string(key), status.error().message);
                   }
                 },
                 [&](message::KvArrived& c) { keep_arrived(c); },
                 [&](message::Release& c) { release(c.lease); },
                 [&](message::ReleaseBlocks& c) { release_blocks(c); },
                 [&](message::Abort& c) { abort(c); },
                 [&](message::WatchPrefixes&) { watch_prefixes(); },
                 [&](message::Drain&) { draining_ = true; },
             },
             command);
}

void BatchScheduler::submit(message::Submit&& submit, sched::Kind kind) {
  const SequenceKey key = submit.key;
  if (sequences_.contains(key)) {
    log::warn("{} is here already: the second message is dropped", to_string(key));
    return;
  }
  if (Status status = enqueue(std::move(submit), kind, nullptr, nullptr); !status) {
    const ErrorCode code = status.error().code;
    const bool later = code == ErrorCode::kOverloaded || code == ErrorCode::kUnavailable;
    events_.push_unbounded(message::Refused{key, later, std::move(status).error()});
  }
}

Status BatchScheduler::enqueue(message::Submit&& submit, sched::Kind kind, EventQueue* events,
                               std::shared_ptr<const std::atomic<bool>> cancel) {
  const auto refuse = [&](Status status) {
    stats_.refused.fetch_add(1, std::memory_order_relaxed);
    return status;
  };
  if (draining_) {
    return refuse(fail(Error{ErrorCode::kUnavailable, "the node is draining", {}, kRetryHintMs}));
  }
  if (Status status = check_request(submit, info_, config_.max_context_tokens); !status) {
    return refuse(std::move(status));
  }
  const sched::Demand demand = demand_of(submit, kind);
  if (Status status = supersede_older(submit.key); !status) {
    return refuse(std::move(status));
  }
  if (Status status = scheduler_.can_add(demand); !status) {
    return refuse(std::move(status));
  }
  auto sequence = std::make_unique<Sequence>();
  sequence->tokens = submit.prompt;
  sequence->tokens.insert(sequence->tokens.end(), submit.emitted.begin(), submit.emitted.end());
  if (!submit.ignore_eos) {
    sequence->end_tokens = info_.end_tokens;
  }
  sequence->end_tokens.insert(sequence->end_tokens.end(), submit.stop_token_ids.begin(),
                              submit.stop_token_ids.end());
  sequence->events = events == nullptr ? &events_ : events;
  sequence->cancel = std::move(cancel);
  const SequenceKey key = submit.key;
  sequence->request = std::move(submit);
  set_digest_root(*sequence);
  scheduler_.add(key, demand, clock_.now());
  sequences_.emplace(key, std::move(sequence));
  stats_.accepted.fetch_add(1, std::memory_order_relaxed);
  return {};
}

// A higher epoch replaces a lower one; a message of a lower one came too late.
Status BatchScheduler::supersede_older(const SequenceKey& key) {
  std::vector<SequenceKey> older;
  for (const auto& [other, sequence] : sequences_) {
    if (other.request != key.request || other.choice != key.choice) {
      continue;
    }
    if (other.epoch >= key.epoch) {
      return fail(ErrorCode::kCancelled,
                  fmt::format("epoch {} of this sequence is here already", other.epoch.value));
    }
    older.push_back(other);
  }
  for (const SequenceKey& other : older) {
    end_with_event(other, EndReason::kAborted,
                   Error{ErrorCode::kCancelled, "a newer epoch replaced this one"});
  }
  return {};
}

void BatchScheduler::expire_waiting() {
  for (const SequenceKey& key : scheduler_.expired(clock_.now())) {
    EventQueue* const to = sequences_.at(key)->events;
    end(key, EndReason::kExpired);
    Error error{ErrorCode::kOverloaded,
                fmt::format("no room within {} ms: try again later", config_.queue_deadline_ms),
                {},
                kRetryHintMs};
    to->push_unbounded(message::Refused{key, true, std::move(error)});
  }
}

void BatchScheduler::abort_cancelled() {
  std::vector<SequenceKey> cancelled;
  for (const auto& [key, sequence] : sequences_) {
    if (sequence->cancel != nullptr && sequence->cancel->load()) {
      cancelled.push_back(key);
    }
  }
  for (const SequenceKey& key : cancelled) {
    end_with_event(key, EndReason::kAborted, Error{ErrorCode::kCancelled, "the client left"});
  }
}

void BatchScheduler::abort(const message::Abort& abort) {
  std::vector<SequenceKey> aborted;
  for (const auto& [key, sequence] : sequences_) {
    if (names(abort, key)) {
      aborted.push_back(key);
    }
  }
  for (const SequenceKey& key : aborted) {
    end_with_event(key, EndReason::kAborted, abort.reason);
  }
}

// Drops the sequence's own references; blocks that are lent and claimed stay until their lease
// ends.
void BatchScheduler::end(const SequenceKey& key, EndReason reason) {
  const SequenceKey copy = key;  // `key` may live in the sequence
  scheduler_.finish(copy);
  static_cast<void>(take_back(*sequences_.at(copy)));
  drop_tables(*sequences_.at(copy));
  sequences_.erase(copy);
  stats_.ended[static_cast<std::size_t>(reason)].fetch_add(1, std::memory_order_relaxed);
}

void BatchScheduler::end_with_event(const SequenceKey& key, EndReason reason, Error why) {
  message::Finished finished;
  finished.key = key;
  finished.reason =
      reason == EndReason::kError ? message::FinishReason::kError : message::FinishReason::kAborted;
  finished.error = std::move(why);
  EventQueue* const to = sequences_.at(key)->events;
  end(finished.key, reason);
  to->push_unbounded(std::move(finished));
}

bool BatchScheduler::idle() const { return sequences_.empty() && leases_.empty(); }

}  // namespace baton::engine
