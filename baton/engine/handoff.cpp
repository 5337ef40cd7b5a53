// Both ends of a handoff as the engine sees them: blocks are lent, taken back, or become a sequence
// that decodes as if it had been prefilled here.
#include "baton/base/check.h"
#include "baton/base/failpoints.h"
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

message::LeasedBlocks BatchScheduler::lend(Sequence& sequence,
                                           std::shared_ptr<message::LeaseClaim> claim) {
  sequence.lease = message::LeaseId{next_lease_++};
  Lease& lease = leases_[sequence.lease.value];
  lease.key = sequence.key();
  lease.claim = std::move(claim);
  lease.refs.resize(pools_.size());
  static_cast<void>(grow_lease(sequence, lease));
  return blocks_of(sequence.lease, lease);
}

// Takes in what the sequence's tables have by now of the KV that is to be handed off: in window
// groups the last window, whose blocks come while it is computed. True when there was more.
bool BatchScheduler::grow_lease(const Sequence& sequence, Lease& lease) {
  const std::int32_t kv_tokens = scheduler_.demand(sequence.key()).prefill_tokens;
  const auto blocks = static_cast<std::size_t>(info_.layout.blocks_for(kv_tokens));
  bool grown = false;
  for (std::size_t group = 0; group < pools_.size(); ++group) {
    const kv::BlockTable& table = sequence.tables[group];
    const std::size_t there = std::min(blocks, table.block_count());
    std::vector<kv::BlockRef>& refs = lease.refs[group];
    if (refs.size() >= there) {
      continue;  // a full group's table is whole at admission
    }
    const auto first = static_cast<std::size_t>(
        info_.layout.groups[group].tiles_needed(kv_tokens).begin / info_.layout.tiles_per_block());
    std::vector<kv::BlockRef> held = table.share_first(there);
    for (std::size_t position = refs.size(); position < held.size(); ++position) {
      refs.push_back(position < first ? kv::BlockRef{} : std::move(held[position]));
      grown = grown || !refs.back().empty();
    }
  }
  return grown;
}

message::LeasedBlocks BatchScheduler::blocks_of(message::LeaseId id, const Lease& lease) {
  message::LeasedBlocks lent{id, {}, lease.claim};
  for (std::size_t group = 0; group < pools_.size(); ++group) {
    std::vector<message::LeasedBlock>& table = lent.tables.emplace_back();
    for (const kv::BlockRef& ref : lease.refs[group]) {
      table.push_back(ref.empty()
                          ? message::LeasedBlock{kv::kNoBlock, {}}
                          : message::LeasedBlock{ref.id(), backend_.block_bytes(group, ref.id())});
    }
  }
  return lent;
}

// Ends a lease that nobody has claimed. False: there is one, and its borrower may be reading.
bool BatchScheduler::take_back(Sequence& sequence) {
  const auto found = leases_.find(sequence.lease.value);
  if (found == leases_.end()) {
    return true;
  }
  if (found->second.claim == nullptr || !found->second.claim->revoke()) {
    return false;
  }
  leases_.erase(found);
  sequence.lease = {};
  return true;
}

Result<message::LeasedBlocks> BatchScheduler::extract_sequence_handoff(const SequenceKey& key) {
  const auto found = sequences_.find(key);
  if (found == sequences_.end() || found->second->tables.empty() ||
      scheduler_.demand(key).kind != sched::Kind::kHandoff) {
    return fail(ErrorCode::kNotFound,
                fmt::format("{} has no blocks here to hand off", to_string(key)));
  }
  if (leases_.contains(found->second->lease.value)) {
    return fail(ErrorCode::kInvalidArgument, fmt::format("{} is lent already", to_string(key)));
  }
  return lend(*found->second, std::make_shared<message::LeaseClaim>());
}

void BatchScheduler::announce_progress(Sequence& sequence, message::LeasedBlocks blocks,
                                       std::int32_t computed_tokens) {
  message::PrefillProgress progress;
  progress.key = sequence.key();
  progress.computed_tokens = computed_tokens;
  progress.blocks = std::move(blocks);
  sequence.events->push_unbounded(std::move(progress));
}

void BatchScheduler::announce_growth(Sequence& sequence, Lease& lease,
                                     std::int32_t computed_tokens) {
  if (grow_lease(sequence, lease)) {
    announce_progress(sequence, blocks_of(sequence.lease, lease), computed_tokens);
  }
}

// Any chunk but the last: of that PrefillDone tells, and watch_last_chunks() before it.
void BatchScheduler::announce_chunk(Sequence& sequence, const sched::BatchItem& item) {
  const auto lease = leases_.find(sequence.lease.value);
  if (lease != leases_.end()) {
    announce_growth(sequence, lease->second, item.start);
  }
  announce_progress(sequence, {}, item.start + item.tokens);
}

// The borrower may want to hear of layers at any time (it often claims while the only chunk is
// computed), and must have their blocks by then.
void BatchScheduler::watch_last_chunks(const sched::Batch& batch) {
  layer_progress_.begin();
  for (const sched::BatchItem& item : batch.items) {
    if (!item.samples || scheduler_.demand(item.key).kind != sched::Kind::kHandoff) {
      continue;
    }
    Sequence& sequence = *sequences_.at(item.key);
    const auto lease = leases_.find(sequence.lease.value);
    if (lease == leases_.end()) {
      continue;
    }
    announce_growth(sequence, lease->second, item.start);
    if (lease->second.claim != nullptr) {
      layer_progress_.watch(sequence, lease->second.claim, item.start);
    }
  }
  plan_.progress = layer_progress_.queue();
}

// From here on the lease alone holds the blocks, so that each is free, or only cached, as soon as
// it is released.
void BatchScheduler::finish_prefill_for_handoff(Sequence& sequence, const message::Token& first) {
  message::PrefillDone done;
  done.key = sequence.key();
  done.first = {first};
  done.kv_tokens = scheduler_.computed_tokens(sequence.key());
  drop_tables(sequence);
  after_tokens_.emplace_back(sequence.events, std::move(done));
}

void BatchScheduler::note_grant(const message::Granted& granted) {
  if (sequences_.contains(granted.key) &&
      scheduler_.demand(granted.key).kind == sched::Kind::kHandoff) {
    scheduler_.grant(granted.key);
  }
}

void BatchScheduler::keep_arrived(const message::KvArrived& arrived) {
  const auto found = sequences_.find(arrived.key);
  if (found != sequences_.end() && scheduler_.state(arrived.key) == sched::State::kReserved) {
    index_tiles(*found->second,
                std::min(arrived.tokens, scheduler_.demand(arrived.key).prefill_tokens));
  }
}

Result<Sequence*> BatchScheduler::ingest_sequence_handoff(const message::Adopt& adopt) {
  const auto found = sequences_.find(adopt.key);
  if (found == sequences_.end()) {
    // Aborted meanwhile; the lease has outlived that. All bytes have landed, and no Release
    // follows.
    std::erase_if(leases_, [&](const auto& lease) { return lease.second.key == adopt.key; });
  }
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
  if (finish == message::FinishReason::kNone) {
    scheduler_.adopt(adopt.key);
  } else {
    end(adopt.key, finish == message::FinishReason::kStop ? EndReason::kStop : EndReason::kLength);
  }
  flush_events();
  return {};
}

void BatchScheduler::release(message::LeaseId lease) {
  const auto found = leases_.find(lease.value);
  if (found == leases_.end()) {
    return;
  }
  const SequenceKey key = found->second.key;
  if (BATON_FAILPOINT("leak.block")) {
    keep_one_block(found->second);
  }
  leases_.erase(lease.value);
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

// For the soak test: a lease of one block that nobody knows of.
void BatchScheduler::keep_one_block(Lease& lease) {
  for (std::vector<kv::BlockRef>& refs : lease.refs) {
    const auto held =
        std::find_if(refs.begin(), refs.end(), [](const auto& ref) { return !ref.empty(); });
    if (held != refs.end()) {
      Lease kept;
      kept.refs.resize(pools_.size());
      kept.refs[static_cast<std::size_t>(&refs - lease.refs.data())].push_back(std::move(*held));
      leases_.emplace(next_lease_++, std::move(kept));
      return;
    }
  }
}

void BatchScheduler::release_blocks(const message::ReleaseBlocks& some) {
  const auto found = leases_.find(some.lease.value);
  if (found == leases_.end()) {
    return;
  }
  for (const message::BlockRange& range : some.blocks) {
    if (range.group >= found->second.refs.size()) {
      continue;
    }
    std::vector<kv::BlockRef>& refs = found->second.refs[range.group];
    const std::size_t end =
        std::min<std::size_t>(refs.size(), std::size_t{range.first} + range.count);
    for (std::size_t block = range.first; block < end; ++block) {
      refs[block].reset();
    }
  }
}

}  // namespace baton::engine
