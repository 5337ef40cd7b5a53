// Where arriving tiles go: the reserved blocks of each handoff, asked for by the transport's I/O
// threads frame by frame. It lets every granted tile be written once, and knows when no byte of a
// handoff is in flight any more, so that its blocks can be given back. Thread-safe.
#pragma once

#include "baton/handoff/tile_plan.h"
#include "baton/handoff/transport.h"
#include "baton/kv/layout.h"
#include "baton/message/engine.h"

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

namespace baton::handoff {

class ReservationTable final : public BulkSink {
 public:
  // on_idle(key) runs on a transport's thread when the last byte of a closed reservation landed.
  ReservationTable(kv::KvLayout layout, std::function<void(const SequenceKey&)> on_idle);

  struct Reservation {
    NodeId sender;                                          // only its frames are accepted
    std::vector<std::vector<message::LeasedBlock>> tables;  // [group][position]
    std::vector<wire::pb::TileRange> granted;
  };
  // From now on frames for the key are accepted. The tables must cover the ranges.
  void open(const SequenceKey& key, Reservation reservation);
  // Accepts nothing more. True when no byte is in flight: the blocks are the caller's again.
  // Otherwise on_idle follows. Unknown keys: true.
  bool close(const SequenceKey& key);

  Result<std::vector<std::span<std::byte>>> accept(const NodeId& peer, const SequenceKey& key,
                                                   const wire::BlocksHeader& blocks) override;
  void landed(const SequenceKey& key, const wire::BlocksHeader& blocks) override;

 private:
  struct Entry {
    Entry(Reservation taken, const kv::KvLayout& layout)
        : reservation(std::move(taken)), coverage(layout, reservation.granted) {}
    const Reservation reservation;
    TileCoverage coverage;
    int in_flight = 0;
    bool closed = false;
  };

  const kv::KvLayout layout_;
  const std::function<void(const SequenceKey&)> on_idle_;
  std::mutex mutex_;
  std::map<SequenceKey, std::shared_ptr<Entry>> entries_;
};

}  // namespace baton::handoff
