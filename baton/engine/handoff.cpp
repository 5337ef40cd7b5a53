// Both ends of a handoff as the engine sees them: blocks are lent, taken back, or become a sequence
// that decodes as if it had been prefilled here.
#include "baton/base/check.h"
#include "baton/engine/batch_scheduler.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace baton::engine {

Status BatchScheduler::prefill_text_request_for_handoff(TextRequest request) {
  message::Submit submit;
  submit.key = request.key;
  submit.prompt = std::move(request.prompt);
  submit.sampling = std::move(request.sampling);
  submit.max_tokens = request.max_tokens;
  return enqueue(std::move(submit), sched::Kind::kHandoff, request.response,
                 std::move(request.cancel));
}

Status BatchScheduler::prefill_request_for_handoff(message::Submit submit) {
  return enqueue(std::move(submit), sched::Kind::kHandoff, nullptr, nullptr);
}

Status BatchScheduler::run_request(message::Submit submit) {
  return enqueue(std::move(submit), sched::Kind::kLocal, nullptr, nullptr);
}

Status BatchScheduler::reserve_for_handoff(message::Submit submit) {
  return enqueue(std::move(submit), sched::Kind::kReserve, nullptr, nullptr);
}

void BatchScheduler::decode_handoff_until_idle() {
  while (scheduler_.has_work() && !stopping_.load()) {
    cycle(mailbox_.drain());
  }
}

BlockGeometry BatchScheduler::probe_block_geometry() const {
  BlockGeometry geometry;
  geometry.layout = info_.layout;
  geometry.group_blocks = info_.group_blocks;
  for (std::size_t group = 0; group < pools_.size(); ++group) {
    geometry.block_bytes.push_back(info_.layout.block_bytes(group));
  }
  geometry.pool_tokens = scheduler_.pool_tokens();
  geometry.max_context_tokens = static_cast<std::int32_t>(
      std::min<std::int64_t>(config_.max_context_tokens, geometry.pool_tokens));
  return geometry;
}

message::LeasedBlocks BatchScheduler::lend(Sequence& sequence, std::int32_t kv_tokens) {
  message::LeasedBlocks lent;
  lent.lease = message::LeaseId{next_lease_++};
  Lease lease{sequence.key(), {}};
  for (std::size_t group = 0; group < pools_.size(); ++group) {
    lease.refs.push_back(sequence.tables[group].share_first(
        static_cast<std::size_t>(info_.layout.blocks_for(kv_tokens))));
    std::vector<message::LeasedBlock>& table = lent.tables.emplace_back();
    for (const kv::BlockRef& ref : lease.refs.back()) {
      table.push_back(ref.empty()
                          ? message::LeasedBlock{kv::kNoBlock, {}}
                          : message::LeasedBlock{ref.id(), backend_.block_bytes(group, ref.id())});
    }
  }
  leases_.emplace(lent.lease.value, std::move(lease));
  sequence.lease = lent.lease;
  return lent;
}

Result<message::LeasedBlocks> BatchScheduler::extract_sequence_handoff(const SequenceKey& key) {
  const auto found = sequences_.find(key);
  if (found == sequences_.end() || scheduler_.computed_tokens(key) == 0) {
    return fail(ErrorCode::kNotFound, fmt::format("{} has no KV here", to_string(key)));
  }
  return lend(*found->second, scheduler_.computed_tokens(key));
}

void BatchScheduler::finish_prefill_for_handoff(Sequence& sequence, const message::Token& first) {
  message::PrefillDone done;
  done.key = sequence.key();
  done.first = {first};
  done.kv_tokens = scheduler_.computed_tokens(sequence.key());
  if (first.finish == message::FinishReason::kNone) {
    Result<message::LeasedBlocks> blocks = extract_sequence_handoff(sequence.key());
    BATON_CHECK(blocks.has_value(), "{} was prefilled a moment ago", to_string(done.key));
    done.blocks = *std::move(blocks);
  }
  after_tokens_.emplace_back(sequence.events, std::move(done));
}

Result<Sequence*> BatchScheduler::ingest_sequence_handoff(const message::Adopt& adopt) {
  const auto found = sequences_.find(adopt.key);
  if (found == sequences_.end() || scheduler_.state(adopt.key) != sched::State::kReserved) {
    return fail(ErrorCode::kNotFound, fmt::format("{} is not reserved", to_string(adopt.key)));
  }
  Sequence& sequence = *found->second;
  leases_.erase(std::exchange(sequence.lease, {}).value);

  const auto next_index = static_cast<std::int32_t>(sequence.request.emitted.size());
  if (adopt.first.size() != 1 || adopt.first[0].index != next_index || adopt.first[0].token < 0 ||
      adopt.first[0].token >= info_.vocabulary) {
    Error error{ErrorCode::kProtocol,
                fmt::format("{} handed over {} tokens that do not follow index {}",
                            to_string(adopt.key), adopt.first.size(), next_index - 1)};
    end_with_event(adopt.key, EndReason::kError, error);
    return fail(std::move(error));
  }
  sequence.request.emitted.push_back(adopt.first[0].token);
  sequence.tokens.push_back(adopt.first[0].token);
  sequence.kv_bytes = adopt.kv_bytes;
  sequence.cached_tokens = adopt.first[0].cached_tokens;  // the prefill node's
  index_tiles(sequence, scheduler_.demand(adopt.key).prefill_tokens);
  return &sequence;
}

Status BatchScheduler::ingest_handoff_as_active(message::Adopt adopt) {
  BATON_TRY(Sequence * sequence, ingest_sequence_handoff(adopt));
  message::Token token = std::move(adopt.first[0]);
  token.key = adopt.key;
  token.kv_bytes = adopt.kv_bytes;
  // The stop rules hold for a token that arrives by handoff too: whatever the sender thought of it.
  token.finish = sequence->finish_after_last();
  const message::FinishReason finish = token.finish;
  queue_token(sequence->events, std::move(token));
  flush_events();
  if (finish == message::FinishReason::kNone) {
    scheduler_.adopt(adopt.key);
  } else {
    end(adopt.key, finish == message::FinishReason::kStop ? EndReason::kStop : EndReason::kLength);
  }
  return {};
}

void BatchScheduler::release(message::LeaseId lease) {
  const auto found = leases_.find(lease.value);
  if (found == leases_.end()) {
    return;
  }
  const SequenceKey key = found->second.key;
  leases_.erase(found);
  const auto owner = sequences_.find(key);
  if (owner == sequences_.end() || owner->second->lease != lease) {
    return;  // it was aborted before, or a newer lease holds it
  }
  switch (scheduler_.state(key)) {
    case sched::State::kHandingOff:
      end(key, EndReason::kHandedOff);
      break;
    case sched::State::kReserved:
      end(key, EndReason::kReleased);
      break;
    default:
      owner->second->lease = {};
      break;
  }
}

}  // namespace baton::engine
