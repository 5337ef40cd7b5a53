#include "baton/handoff/coordinator.h"

#include "baton/handoff/coordinator_impl.h"

#include <utility>

namespace baton::handoff {

ServingCoordinator::ServingCoordinator(asio::any_io_executor control, CoordinatorOptions options,
                                       Transport* transport, const EngineLink* engine,
                                       net::AsyncClock& clock)
    : impl_(std::make_shared<Impl>(std::move(control), std::move(options), transport, engine,
                                   clock)) {
  impl_->connect();
}

ServingCoordinator::~ServingCoordinator() = default;

asio::awaitable<void> ServingCoordinator::run() { return impl_->run(); }
asio::awaitable<void> ServingCoordinator::run_transport() { return impl_->run_transport(); }
asio::awaitable<void> ServingCoordinator::run_prefill_role() { return impl_->run_prefill_role(); }
asio::awaitable<void> ServingCoordinator::run_decode_role() { return impl_->run_decode_role(); }
asio::awaitable<void> ServingCoordinator::run_timers() { return impl_->run_timers(); }
void ServingCoordinator::tick() { impl_->tick(); }
Owner& ServingCoordinator::owner() { return impl_->owner(); }
void ServingCoordinator::begin_drain() { impl_->begin_drain(); }
bool ServingCoordinator::idle() const { return impl_->idle(); }
bool ServingCoordinator::busy_with(const NodeId& peer) const { return impl_->busy_with(peer); }
ServingCoordinator::Remembered ServingCoordinator::remembered() const {
  return impl_->remembered();
}
void ServingCoordinator::stop() { impl_->stop(); }
const HandoffStats& ServingCoordinator::stats() const { return impl_->stats(); }

}  // namespace baton::handoff
