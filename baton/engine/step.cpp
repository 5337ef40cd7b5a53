// One step: the plan, the backend, its tokens.
#include "baton/base/check.h"
#include "baton/base/failpoints.h"
#include "baton/engine/batch_scheduler.h"

#include <algorithm>
#include <utility>

namespace baton::engine {

namespace {

EndReason end_reason(message::FinishReason finish) {
  return finish == message::FinishReason::kStop ? EndReason::kStop : EndReason::kLength;
}

}  // namespace

bool BatchScheduler::step() {
  grow_running();
  const sched::Batch batch = scheduler_.plan();
  if (batch.items.empty()) {
    return false;
  }
  build_plan(batch);
  watch_last_chunks(batch);
  std::vector<SequenceKey> keys;
  for (const sched::BatchItem& item : batch.items) {
    keys.push_back(item.key);
  }
  step_aborts_.begin(std::move(keys));
  static_cast<void>(BATON_FAILPOINT("engine.step"));  // sleep or kill: a stuck engine, a dead node
  backend::StepResult result = backend_.collect(backend_.launch(plan_));
  step_aborts_.end();
  stats_.step_count.fetch_add(1, std::memory_order_relaxed);
  if (!result.stopped) {  // else: all aborted, their messages are in the mailbox
    apply(batch, std::move(result));
  }
  return true;
}

void BatchScheduler::build_plan(const sched::Batch& batch) {
  plan_.sequences.clear();
  plan_.all_aborted = step_aborts_.flag();
  for (const sched::BatchItem& item : batch.items) {
    const Sequence& sequence = *sequences_.at(item.key);
    const message::Submit& request = sequence.request;
    backend::SequencePlan& plan = plan_.sequences.emplace_back();
    plan.key = item.key;
    plan.start = item.start;
    plan.tokens =
        std::span(sequence.tokens)
            .subspan(static_cast<std::size_t>(item.start), static_cast<std::size_t>(item.tokens));
    for (std::size_t group = 0; group < pools_.size(); ++group) {
      plan.tables.push_back(sequence.tables[group].ids().first(
          static_cast<std::size_t>(info_.layout.blocks_for(item.start + item.tokens))));
    }
    if (item.samples) {
      plan.logit_rows = 1;
      plan.sampling = &request.sampling;
      plan.prompt = request.prompt;
      plan.emitted = request.emitted;
      if (request.emitted.size() < static_cast<std::size_t>(request.min_tokens)) {
        plan.barred = sequence.end_tokens;
      }
    }
  }
}

void BatchScheduler::apply(const sched::Batch& batch, backend::StepResult&& result) {
  scheduler_.step_done(batch, result.elapsed);
  stats_.prompt_tokens_computed.fetch_add(static_cast<std::uint64_t>(batch.prefill_rows),
                                          std::memory_order_relaxed);
  for (const sched::BatchItem& item : batch.items) {
    Sequence& sequence = *sequences_.at(item.key);
    index_tiles(sequence, item.start + item.tokens);
    if (!item.samples && scheduler_.demand(item.key).kind == sched::Kind::kHandoff) {
      announce_chunk(sequence, item);
    }
    advance_windows(sequence);
  }
  for (backend::SampledToken& drawn : result.tokens) {
    BATON_CHECK(drawn.sequence < batch.items.size() && batch.items[drawn.sequence].samples,
                "token for row {} of a batch of {}", drawn.sequence, batch.items.size());
    take_token(*sequences_.at(batch.items[drawn.sequence].key), std::move(drawn));
  }
  flush_events();
}

void BatchScheduler::take_token(Sequence& sequence, backend::SampledToken&& drawn) {
  BATON_CHECK(drawn.token >= 0 && drawn.token < info_.vocabulary, "token {}", drawn.token);
  message::Token token;
  token.key = sequence.key();
  token.index = static_cast<std::int32_t>(sequence.request.emitted.size());
  token.token = drawn.token;
  token.logprob = drawn.logprob;
  for (const auto& [id, logprob] : drawn.top) {
    token.top.push_back({id, logprob});
  }
  token.kv_bytes = sequence.kv_bytes;
  token.cached_tokens = sequence.cached_tokens;
  sequence.request.emitted.push_back(drawn.token);
  sequence.tokens.push_back(drawn.token);
  token.finish = sequence.finish_after_last();
  stats_.tokens_generated.fetch_add(1, std::memory_order_relaxed);

  const message::FinishReason finish = token.finish;
  if (scheduler_.demand(token.key).kind == sched::Kind::kHandoff) {
    finish_prefill_for_handoff(sequence, token);
  }
  const SequenceKey key = token.key;
  queue_token(sequence.events, std::move(token));
  if (finish != message::FinishReason::kNone) {
    end(key, end_reason(finish));
  }
}

void BatchScheduler::queue_token(EventQueue* to, message::Token&& token) {
  auto group = std::find_if(outgoing_.begin(), outgoing_.end(),
                            [&](const auto& entry) { return entry.first == to; });
  if (group == outgoing_.end()) {
    outgoing_.emplace_back(to, message::StepTokens{});
    group = std::prev(outgoing_.end());
    group->second.step = stats_.step_count.load(std::memory_order_relaxed);
  }
  group->second.tokens.push_back(std::move(token));
}

// One StepTokens for each queue, then what must not overtake them. Gauges first: who hears that a
// sequence has ended must not be told later that it runs.
void BatchScheduler::flush_events() {
  if (!outgoing_.empty() || !after_tokens_.empty()) {
    publish_gauges();
  }
  for (auto& [to, tokens] : outgoing_) {
    to->push_unbounded(std::move(tokens));
  }
  outgoing_.clear();
  for (auto& [to, event] : after_tokens_) {
    to->push_unbounded(std::move(event));
  }
  after_tokens_.clear();
}

}  // namespace baton::engine
