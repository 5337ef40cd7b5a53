#include "baton/engine/layer_progress.h"

#include <algorithm>
#include <utility>

namespace baton::engine {

namespace {

// Each report wakes the control thread, and what it says is sent as at most so many parts.
constexpr std::uint32_t kReports = 8;

}  // namespace

LayerProgress::LayerProgress(const Clock& clock, const kv::KvLayout& layout)
    : clock_(clock), groups_(layout.groups.size()) {
  for (const kv::KvGroup& group : layout.groups) {
    all_layers_ += static_cast<std::uint32_t>(group.layers.size());
  }
  report_every_ = (all_layers_ + kReports - 1) / kReports;
}

void LayerProgress::begin() {
  watched_.clear();
  began_ = clock_.now();
}

void LayerProgress::watch(const Sequence& sequence,
                          std::shared_ptr<const message::LeaseClaim> claim, std::int32_t start) {
  watched_.push_back({sequence.key(), sequence.events, std::move(claim), start,
                      std::vector<std::uint32_t>(groups_, 0), 0});
}

void LayerProgress::push(const backend::LayerDone& done) {
  const auto found = std::ranges::find(watched_, done.key, &Watched::key);
  if (found == watched_.end()) {
    return;
  }
  found->layers[done.group] = done.layer + 1;
  ++found->count;
  const bool due = found->count % report_every_ == 0 || found->count == all_layers_;
  if (due && found->claim->wants_layers()) {
    message::PrefillProgress progress;
    progress.key = found->key;
    progress.computed_tokens = found->start;
    progress.layers = found->layers;
    progress.elapsed = clock_.now() - began_;
    found->events->push_unbounded(std::move(progress));
  }
}

}  // namespace baton::engine
