// The engine: one thread that runs steps and owns the pool. Commands come in by the mailbox, events
// go out by a queue; nothing here knows sockets, text or other nodes.
//
//   Submit ─► waiting ─► prefilling ─► decoding ─► done          (RunLocally)
//                             └──────► handing_off ─► done       (PrefillForHandoff)
//   Reserve ─► waiting ─► reserved ── Adopt ─► decoding ─► done
//
// The blocks of a prefill for handoff are lent from its first chunk on; Release ends it. A
// reservation is another source of prefilled sequences.
//
// When the pool is full, the last in order gives its blocks back and is computed again later
// (prefilling or decoding -> waiting): same bits, and a running sequence always finishes. Complete
// tiles stay in a prefix index after their sequence until their room is needed.
#pragma once

#include "baton/backend/backend.h"
#include "baton/base/bounded_queue.h"
#include "baton/base/clock.h"
#include "baton/engine/layer_progress.h"
#include "baton/engine/sequence.h"
#include "baton/engine/stats.h"
#include "baton/kv/block_pool.h"
#include "baton/kv/prefix_index.h"
#include "baton/kv/prefix_search.h"
#include "baton/message/engine.h"
#include "baton/sched/scheduler.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

namespace baton::engine {

using Mailbox = BoundedQueue<message::EngineCommand>;

struct EngineConfig {
  std::int32_t max_num_seqs = 64;           // --max-num-seqs: prefilling + decoding + reserved
  std::int32_t max_step_ms = 40;            // --max-step-ms
  std::int32_t max_context_tokens = 0;      // -c; 0 = the model's
  std::int32_t max_waiting = 1024;          // sequences waiting for room; above: Refused later
  std::int64_t queue_deadline_ms = 60'000;  // longest wait for room; after it Refused later
  std::size_t mailbox_capacity =
      4096;                  // bounds what a flood of requests can hold before a step ends
  bool prefix_cache = true;  // --prefix-cache: prompts share what was computed for another
  std::string cache_key;     // of tile digests, shared by the cluster; empty = random
};

// What a peer must know of the pool, and --print of the start-up.
struct BlockGeometry {
  kv::KvLayout layout;
  std::vector<std::uint32_t> group_blocks;
  std::vector<std::size_t> block_bytes;  // per group
  std::int64_t pool_tokens = 0;          // the longest prompt + limit that the pool can hold
  std::int32_t max_context_tokens = 0;   // prompt + limit of one sequence
};

// A request in raw parts, for callers that have no Submit.
struct TextRequest {
  SequenceKey key;
  std::vector<TokenId> prompt;
  sample::SamplingParams sampling;
  std::int32_t max_tokens = 0;
  EventQueue* response = nullptr;  // null = the engine's events; must outlive the sequence
  std::shared_ptr<const std::atomic<bool>>
      cancel;  // may be null; true aborts at the next step's end
};

class BatchScheduler {
 public:
  // backend, clock and events must outlive the engine. Everything large is allocated here.
  BatchScheduler(backend::Backend& backend, const Clock& clock, const EngineConfig& config,
                 EventQueue& events);
  ~BatchScheduler();
  BatchScheduler(const BatchScheduler&) = delete;
  BatchScheduler& operator=(const BatchScheduler&) = delete;

  // ---- any thread ------------------------------------------------------------------------------
  // False when the mailbox is full (never for Abort, Adopt, Release, Drain) or the engine stopped.
  // An Abort posted here also stops a running step between layers when nobody else wants that step.
  [[nodiscard]] bool post(message::EngineCommand&& command);
  [[nodiscard]] const EngineStats& stats() const { return stats_; }
  // Ends run() after the present step; what is alive then ends as aborted. Idempotent.
  void stop();

  // ---- the engine thread -----------------------------------------------------------------------
  // Commands, admission, steps, until stop(). Sleeps while there is nothing to do.
  void run();
  // Takes what is in the mailbox, admits, runs at most one step. True if a step ran. For tests and
  // for loops that have their own thread.
  bool run_once();

  // Guards, then the queue: prefill in chunks, sample one token, PrefillDone; no decode step.
  // Errors: kInvalidArgument, kContextTooLong, kUnsupported, kOverloaded, kUnavailable (draining).
  // On an error nothing was allocated and no event is sent.
  Status prefill_text_request_for_handoff(TextRequest request);
  Status prefill_request_for_handoff(message::Submit submit);
  // Prefill and decode here. Errors as above.
  Status run_request(message::Submit submit);
  // Room for a handoff, now or when there is some (Reserved), or Refused at the queue deadline.
  // Errors as above.
  Status reserve_for_handoff(message::Submit submit);
  // A reserved sequence's KV is in its blocks and verified: it decodes from here, beginning with
  // the tokens of `adopt` (their stop rules are applied here too). On an error the sequence is
  // ended and its blocks are released. Errors: kNotFound (unknown or not reserved), kProtocol
  // (tokens that do not follow).
  Status ingest_handoff_as_active(message::Adopt adopt);
  // Steps until no active sequence is left.
  void decode_handoff_until_idle();

  // The decode node of a prefill has room for it. Unknown: ignored.
  void note_grant(const message::Granted& granted);
  // Rows [0, tokens) of a reserved sequence came, whatever becomes of the rest. Unknown: ignored.
  void keep_arrived(const message::KvArrived& arrived);

  // The pieces under them.
  // Pins the blocks of a prefill for handoff and lends them, which the engine does by itself when
  // it is admitted. Errors: kNotFound (no such prefill, or it waits), kInvalidArgument (lent
  // already).
  Result<message::LeasedBlocks> extract_sequence_handoff(const SequenceKey& key);
  // Verified KV in fresh blocks -> sequence with adopt's tokens in emitted; the lease ends, and on
  // an error the sequence too. Errors as ingest_handoff_as_active.
  Result<Sequence*> ingest_sequence_handoff(const message::Adopt& adopt);
  [[nodiscard]] BlockGeometry probe_block_geometry() const;

  // Ends a lease; what it alone held becomes free. Unknown leases are ignored.
  void release(message::LeaseId lease);
  void release_blocks(const message::ReleaseBlocks& some);
  // Ends every match (choice may be kAllChoices; epochs up to key.epoch); leased blocks stay until
  // their lease ends.
  void abort(const message::Abort& abort);

  // Every block is free, cached, or held by exactly the tables and leases known here; pools and
  // prefix index agree. Dies otherwise.
  void check_integrity() const;
  [[nodiscard]] bool idle() const;  // no sequence and no lease

 private:
  struct Lease {
    SequenceKey key;
    std::vector<std::vector<kv::BlockRef>> refs;  // [group][position]; empty once released
    std::shared_ptr<message::LeaseClaim> claim;   // null: claimed
  };

  // batch_scheduler.cpp
  std::vector<std::unique_ptr<kv::BlockPool>> make_pools();
  bool cycle(std::vector<message::EngineCommand> commands);
  void handle(message::EngineCommand&& command);
  void submit(message::Submit&& submit, sched::Kind kind);
  Status enqueue(message::Submit&& submit, sched::Kind kind, EventQueue* events,
                 std::shared_ptr<const std::atomic<bool>> cancel);
  Status supersede_older(const SequenceKey& key);
  void expire_waiting();
  void abort_cancelled();
  void end(const SequenceKey& key, EndReason reason);
  void end_with_event(const SequenceKey& key, EndReason reason, Error why);
  [[nodiscard]] Duration sleep_limit() const;
  // room.cpp
  void admit();
  [[nodiscard]] bool admit_one(const SequenceKey& key);
  [[nodiscard]] bool admit_granted(const SequenceKey& held_up);
  [[nodiscard]] bool give_back_ungranted();
  [[nodiscard]] bool try_admit(Sequence& sequence, kv::SequenceHit hit);
  void fill_tables(Sequence& sequence, const kv::SequenceHit& hit,
                   std::span<const sched::BlockRange> ranges);
  void grow_running();
  [[nodiscard]] bool try_grow(Sequence& sequence);
  void advance_windows(Sequence& sequence);
  bool try_preempt(const SequenceKey& key);
  std::vector<kv::BlockRef> take_blocks(std::size_t group, std::uint32_t count);
  void drop_tables(Sequence& sequence);
  // prefix.cpp
  std::vector<std::unique_ptr<kv::PrefixIndex>> make_indexes();
  [[nodiscard]] kv::SequenceHit find_prefix(Sequence& sequence);
  [[nodiscard]] kv::SequenceHit whole_blocks_of(const Sequence& sequence,
                                                const kv::SequenceHit& hit) const;
  void index_tiles(Sequence& sequence, std::int32_t computed_tokens);
  void extend_digests(Sequence& sequence, std::size_t tiles);
  void set_digest_root(Sequence& sequence);
  void watch_prefixes();
  void report_prefixes(bool restart);
  void copy_tiles(std::size_t group, kv::BlockId from, kv::BlockId to, kv::TileRange tiles);
  // step.cpp
  bool step();
  void build_plan(const sched::Batch& batch);
  void apply(const sched::Batch& batch, backend::StepResult&& result);
  void take_token(Sequence& sequence, backend::SampledToken&& drawn);
  void queue_token(EventQueue* to, message::Token&& token);
  void flush_events();
  // handoff.cpp
  void announce_progress(Sequence& sequence, message::LeasedBlocks blocks,
                         std::int32_t computed_tokens);
  void announce_growth(Sequence& sequence, Lease& lease, std::int32_t computed_tokens);
  void announce_chunk(Sequence& sequence, const sched::BatchItem& item);
  void watch_last_chunks(const sched::Batch& batch);
  void finish_prefill_for_handoff(Sequence& sequence, const message::Token& first);
  message::LeasedBlocks lend(Sequence& sequence, std::shared_ptr<message::LeaseClaim> claim);
  bool grow_lease(const Sequence& sequence, Lease& lease);
  [[nodiscard]] message::LeasedBlocks blocks_of(message::LeaseId id, const Lease& lease);
  bool take_back(Sequence& sequence);
  void keep_one_block(Lease& lease);
  // audit.cpp
  void settle();
  void publish_gauges();
  void poison(std::size_t group, kv::BlockId block);

  backend::Backend& backend_;
  const Clock& clock_;
  const EngineConfig config_;
  EventQueue& events_;
  const backend::BackendInfo info_;
  EngineStats stats_;
  Mailbox mailbox_;
  const std::vector<std::unique_ptr<kv::BlockPool>> pools_;      // [group]
  const std::vector<std::unique_ptr<kv::PrefixIndex>> indexes_;  // [group]
  kv::PrefixJournal journal_;  // since the last report; empty while nobody watches
  kv::TileHasher hasher_;
  sched::Scheduler scheduler_;
  std::unordered_map<SequenceKey, std::unique_ptr<Sequence>> sequences_;
  std::unordered_map<std::uint64_t, Lease> leases_;  // by LeaseId::value
  std::uint64_t next_lease_ = 1;
  backend::StepPlan plan_;
  LayerProgress layer_progress_;
  std::vector<std::pair<EventQueue*, message::StepTokens>> outgoing_;
  std::vector<std::pair<EventQueue*, message::EngineEvent>> after_tokens_;  // sent after outgoing_
  bool draining_ = false;
  bool drained_sent_ = false;
  std::atomic<bool> stopping_{false};
  StepAborts step_aborts_;
};

}  // namespace baton::engine
