// One sequence as the engine holds it: what was asked, what was emitted, its blocks. Its state is
// sched's affair. Also StepAborts, by which other threads can stop a step that nobody wants.
#pragma once

#include "baton/base/bounded_queue.h"
#include "baton/kv/block_table.h"
#include "baton/kv/tile_digest.h"
#include "baton/message/engine.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_set>
#include <vector>

namespace baton::engine {

using EventQueue = BoundedQueue<message::EngineEvent>;

struct Sequence {
  message::Submit request;             // emitted grows as tokens are drawn
  std::vector<TokenId> tokens;         // prompt + emitted: position -> input token
  std::vector<TokenId> end_tokens;     // those that end it: the model's (unless ignored) + stop ids
  std::vector<kv::BlockTable> tables;  // [group]; empty while waiting
  kv::TileDigest digest_root;
  std::vector<kv::TileDigest> digests;  // of the first complete tiles of `tokens`, as far as needed
  std::int32_t indexed_tiles = 0;       // of its tables, so many are in the prefix index
  // [group]: in blocks of its own, tiles before this one are not there; it began after them.
  std::vector<std::int32_t> first_tiles;
  std::int32_t cached_tokens = -1;  // of the prompt, at its first admission; -1 = not yet
  EventQueue* events = nullptr;
  std::shared_ptr<const std::atomic<bool>> cancel;
  message::LeaseId lease;      // 0 = none
  std::uint64_t kv_bytes = 0;  // received by handoff

  [[nodiscard]] const SequenceKey& key() const { return request.key; }
  [[nodiscard]] bool is_end_token(TokenId token) const;
  // How the sequence ends with its last emitted token: kNone, kStop or kLength.
  [[nodiscard]] message::FinishReason finish_after_last() const;
};

// The keys of the running step and those aborted meanwhile. Thread: any.
class StepAborts {
 public:
  void begin(std::vector<SequenceKey> keys);
  void end();
  void abort(const message::Abort& abort);
  // True once every sequence of the running step was aborted; what StepPlan::all_aborted points to.
  [[nodiscard]] const std::atomic<bool>* flag() const { return &all_aborted_; }

 private:
  std::mutex mutex_;
  std::vector<SequenceKey> alive_;
  std::atomic<bool> all_aborted_{false};
};

// True when `abort` names `key`.
[[nodiscard]] bool names(const message::Abort& abort, const SequenceKey& key);

}  // namespace baton::engine
