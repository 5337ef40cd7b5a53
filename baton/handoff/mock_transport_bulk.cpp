// How tiles travel in a MockNetwork: read late, landing slowly, cut in the middle.
#include "baton/handoff/mock_transport_impl.h"
#include "baton/wire/codec.h"
#include "baton/wire/crc32c.h"

#include <algorithm>
#include <utility>

namespace baton::handoff {

void MockNetwork::Impl::receive_blocks(Node& to, const NodeId& from,
                                       const wire::FrameHeader& header, Frame frame) {
  const auto payload = std::span<const std::byte>(frame.bytes).subspan(wire::kHeaderBytes);
  if (payload.size() < wire::kBlocksHeaderBytes) {
    break_connection(to.id, from, Error{ErrorCode::kProtocol, "a blocks frame is too short"});
    return;
  }
  const auto blocks = wire::decode_blocks_header(payload.first<wire::kBlocksHeaderBytes>());
  const std::size_t tile_bytes = payload.size() - wire::kBlocksHeaderBytes;
  BlocksReceived event{from, header.key, {}, header.sequence, {}, tile_bytes, {}};
  std::copy_n(frame.bytes.begin(), wire::kHeaderBytes, event.header.begin());
  auto spans = !blocks              ? fail(blocks.error())
               : to.sink == nullptr ? fail(ErrorCode::kCancelled, "this node receives no tiles")
                                    : to.sink->accept(from, header.key, *blocks);
  if (!spans) {
    event.status = fail(spans.error());
    to.events.push_unbounded(std::move(event));
    return;
  }
  event.blocks = *blocks;
  Landing landing{nodes_.at(to.id), std::move(event), std::move(frame.bytes), *std::move(spans),
                  frame.cut};
  const Duration time = bulk_time(from, to.id).landing;
  if (time <= Duration{}) {
    land(std::move(landing));
    return;
  }
  landings_.emplace(next_landing_, std::move(landing));
  tasks_.spawn(land_later(next_landing_++, time));
}

asio::awaitable<void> MockNetwork::Impl::land_later(std::uint64_t number, Duration time) {
  co_await clock_->sleep_for(time);
  if (auto landing = landings_.extract(number)) {
    land(std::move(landing.mapped()));
  }
}

// The tiles are written, or half of them, and the sink has its memory back.
void MockNetwork::Impl::land(Landing landing) {
  auto payload = std::span<const std::byte>(landing.bytes).subspan(wire::kHeaderBytes);
  const auto header =
      wire::decode_header(std::span<const std::byte>(landing.bytes).first<wire::kHeaderBytes>());
  const bool good_crc = header && wire::crc32c(payload) == header->payload_crc;
  payload = payload.subspan(wire::kBlocksHeaderBytes);
  std::size_t room = 0;
  for (const auto& span : landing.spans) {
    room += span.size();
  }
  BlocksReceived& event = landing.event;
  if (room != payload.size()) {
    event.status = fail(ErrorCode::kProtocol, "a blocks frame has another size than its tiles");
  } else {
    std::size_t left = landing.cut ? room / 2 : room;
    for (const auto& span : landing.spans) {
      const std::size_t bytes = std::min(left, span.size());
      std::copy_n(payload.begin(), bytes, span.begin());
      payload = payload.subspan(bytes);
      left -= bytes;
    }
  }
  landing.to->sink->landed(event.key, event.blocks);
  if (event.status && landing.cut) {
    event.status = fail(ErrorCode::kPeerLost, "the bulk connection broke inside a frame");
  } else if (event.status && !good_crc) {
    event.status = fail(ErrorCode::kCorruptFrame, "CRC of a blocks payload is wrong");
  }
  landing.to->events.push_unbounded(std::move(event));
}

// The connections of these two are gone, and with them what was still arriving.
void MockNetwork::Impl::end_landings(const NodeId& a, const NodeId& b) {
  for (auto at = landings_.begin(); at != landings_.end();) {
    const NodeId& to = at->second.to->id;
    const NodeId& from = at->second.event.peer;
    if ((to == a && from == b) || (to == b && from == a)) {
      Landing landing = std::move(at->second);
      at = landings_.erase(at);
      landing.cut = true;
      land(std::move(landing));
    } else {
      ++at;
    }
  }
}

asio::awaitable<bool> MockNetwork::Impl::leave_slowly(NodeId from, NodeId to, Duration time) {
  if (time <= Duration{}) {
    co_return true;
  }
  const std::uint64_t connection = links_[Pair{from, to}].connections;
  co_await clock_->sleep_for(time);
  co_return links_[Pair{from, to}].connections == connection;
}

asio::awaitable<void> MockNetwork::Impl::report_slowly(Duration time) {
  if (time > Duration{}) {
    co_await clock_->sleep_for(time);
  } else {
    co_await asio::post(executor_, asio::use_awaitable);
  }
}

}  // namespace baton::handoff
