#include "baton/ucx/abandoned.h"

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

namespace baton::ucx {

namespace {

struct Abandoned {
  std::mutex mutex;
  std::vector<std::pair<std::shared_ptr<const Context>, ucp_worker_h>> workers;
};

Abandoned& all() {
  static auto* const kAll = new Abandoned;  // not destroyed at exit: neither may the contexts be
  return *kAll;
}

std::size_t count_locked(const Abandoned& those, const Context* context) {
  return static_cast<std::size_t>(
      std::count_if(those.workers.begin(), those.workers.end(),
                    [&](const auto& one) { return one.first.get() == context; }));
}

}  // namespace

std::size_t abandon(std::shared_ptr<const Context> context, ucp_worker_h worker) {
  Abandoned& those = all();
  const std::lock_guard lock(those.mutex);
  const Context* const which = context.get();
  those.workers.emplace_back(std::move(context), worker);
  return count_locked(those, which);
}

std::size_t count_abandoned(const Context* context) {
  Abandoned& those = all();
  const std::lock_guard lock(those.mutex);
  return count_locked(those, context);
}

}  // namespace baton::ucx
