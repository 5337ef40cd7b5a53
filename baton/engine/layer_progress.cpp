#include "baton/engine/layer_progress.h"

#include <algorithm>

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

void LayerProgress::watch(const SequenceKey& key, EventQueue* events, std::int32_t start) {
  watched_.push_back({key, events, start, std::vector<std::uint32_t>(groups_, 0), 0});
}

void LayerProgress::push(const backend::LayerDone& done) {
  const auto found = std::ranges::find(watched_, done.key, &Watched::key);
  if (found == watched_.end()) {
    return;
  }
  found->layers[done.group] = done.layer + 1;
  ++found->count;
  if (found->count % report_every_ == 0 || found->count == all_layers_) {
    message::PrefillProgress progress;
    progress.key = found->key;
    progress.computed_tokens = found->start;
    progress.layers = found->layers;
    progress.elapsed = clock_.now() - began_;
    found->events->push_unbounded(std::move(progress));
  }
}

}  // namespace baton::engine
