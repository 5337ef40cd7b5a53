// Layers of last chunks, told to who ships their KV while the step that computes them still runs:
// where the way is slow, most of it has left when the last layer is done.
#pragma once

#include "baton/backend/backend.h"
#include "baton/base/clock.h"
#include "baton/engine/sequence.h"

#include <cstdint>
#include <memory>
#include <vector>

namespace baton::engine {

// Thread: engine; push(), between two steps' begin(), one of the backend's.
class LayerProgress final : public backend::ProgressQueue {
 public:
  LayerProgress(const Clock& clock, const kv::KvLayout& layout);

  // A step is about to be launched.
  void begin();
  // While the borrower wants layers `events` gets a PrefillProgress with them now and then, the
  // last one when all are done.
  void watch(const Sequence& sequence, std::shared_ptr<const message::LeaseClaim> claim,
             std::int32_t start);
  // For StepPlan::progress: null when nothing is watched.
  [[nodiscard]] backend::ProgressQueue* queue() { return watched_.empty() ? nullptr : this; }

  void push(const backend::LayerDone& done) override;

 private:
  struct Watched {
    SequenceKey key;
    EventQueue* events = nullptr;
    std::shared_ptr<const message::LeaseClaim> claim;
    std::int32_t start = 0;
    std::vector<std::uint32_t> layers;  // [group]
    std::uint32_t count = 0;
  };
  const Clock& clock_;
  std::size_t groups_;
  std::uint32_t all_layers_ = 0;
  std::uint32_t report_every_;  // layers
  TimePoint began_{};
  std::vector<Watched> watched_;
};

}  // namespace baton::engine
