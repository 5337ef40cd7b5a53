#include "baton/handoff/reservation_table.h"

#include "baton/base/check.h"

#include <utility>

namespace baton::handoff {

ReservationTable::ReservationTable(kv::KvLayout layout,
                                   std::function<void(const SequenceKey&)> on_idle)
    : layout_(std::move(layout)), on_idle_(std::move(on_idle)) {}

void ReservationTable::open(const SequenceKey& key, Reservation reservation) {
  auto entry = std::make_shared<Entry>(std::move(reservation), layout_);
  std::lock_guard lock(mutex_);
  const bool added = entries_.emplace(key, std::move(entry)).second;
  BATON_CHECK(added, "reservation {} opened twice", to_string(key));
}

bool ReservationTable::close(const SequenceKey& key) {
  std::lock_guard lock(mutex_);
  const auto found = entries_.find(key);
  if (found == entries_.end()) {
    return true;
  }
  if (found->second->in_flight == 0) {
    entries_.erase(found);
    return true;
  }
  found->second->closed = true;
  return false;
}

Result<std::vector<std::span<std::byte>>> ReservationTable::accept(
    const NodeId& peer, const SequenceKey& key, const wire::BlocksHeader& blocks) {
  BATON_TRY_VOID(check_frame(layout_, blocks));
  std::shared_ptr<Entry> entry;
  {
    std::lock_guard lock(mutex_);
    const auto found = entries_.find(key);
    if (found == entries_.end() || found->second->closed) {
      return fail(ErrorCode::kCancelled, "no handoff waits for this frame");
    }
    if (found->second->reservation.sender != peer) {
      return fail(ErrorCode::kProtocol, "a Blocks frame came from another node than the sender");
    }
    BATON_TRY_VOID(found->second->coverage.mark(blocks));
    entry = found->second;
    ++entry->in_flight;
  }
  // The tables do not change, and stay while bytes are in flight.
  return collect_spans(layout_, entry->reservation.tables[blocks.group], blocks);
}

void ReservationTable::landed(const SequenceKey& key, const wire::BlocksHeader& /*blocks*/) {
  {
    std::lock_guard lock(mutex_);
    const auto found = entries_.find(key);
    if (found == entries_.end()) {
      BATON_BUG("a frame of {} landed without a reservation", to_string(key));
      return;
    }
    if (--found->second->in_flight > 0 || !found->second->closed) {
      return;
    }
    entries_.erase(found);
  }
  on_idle_(key);
}

}  // namespace baton::handoff
