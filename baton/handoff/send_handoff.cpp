#include "baton/handoff/send_handoff.h"

#include "baton/base/failpoints.h"
#include "baton/handoff/options.h"
#include "baton/handoff/tile_plan.h"
#include "baton/wire/digest.h"

#include <algorithm>
#include <utility>

namespace baton::handoff {
namespace {

using Spans = std::vector<std::span<const std::byte>>;

// Failpoint handoff.poison: the frame's tiles in a copy whose first block has V rows of zero, as
// if the sender's memory were wrong. The CRC is right, so only the tokens can show it.
std::vector<std::byte> poisoned_copy(const kv::KvLayout& layout, const wire::BlocksHeader& frame,
                                     const Spans& spans) {
  std::vector<std::byte> copy;
  for (const std::span<const std::byte> span : spans) {
    copy.insert(copy.end(), span.begin(), span.end());
  }
  const std::size_t plane = layout.groups[frame.group].plane_tile_bytes();
  const std::uint32_t tiles_per_block = frame.block_tokens / kv::kTileTokens;
  const std::uint32_t block_end = (frame.first_tile / tiles_per_block + 1) * tiles_per_block;
  const std::size_t tiles =
      std::size_t{frame.layers} * frame.heads *
      (std::min(block_end, frame.first_tile + frame.tiles) - frame.first_tile);
  for (std::size_t tile = 0; tile < tiles; ++tile) {
    const auto v_rows = copy.begin() + static_cast<std::ptrdiff_t>((2 * tile + 1) * plane);
    std::fill(v_rows, v_rows + static_cast<std::ptrdiff_t>(plane), std::byte{0});
  }
  return copy;
}

}  // namespace

asio::awaitable<Result<PayloadSent>> send_handoff_payload(Transport& transport,
                                                          const kv::KvLayout& layout,
                                                          PayloadJob job,
                                                          std::atomic<std::uint64_t>& bytes_sent) {
  const std::vector<wire::BlocksHeader> frames =
      plan_frames(layout, job.ranges, kMinFrameBytes, kMaxFrameBytes);
  wire::HandoffDigest digest;
  PayloadSent sent;
  for (const wire::BlocksHeader& frame : frames) {
    if (*job.cancelled) {
      co_return fail(ErrorCode::kCancelled, "the handoff was ended while it was sent");
    }
    Spans spans = const_spans(collect_spans(layout, job.tables[frame.group], frame));
    std::vector<std::byte> poisoned;
    if (BATON_FAILPOINT("handoff.poison")) {
      poisoned = poisoned_copy(layout, frame, spans);
      spans.assign(1, poisoned);
    }
    auto written =
        co_await transport.send_blocks(job.to, job.key, frame, sent.frames, std::move(spans));
    if (!written) {
      co_return fail(std::move(written).error());
    }
    digest.add(written->header);
    ++sent.frames;
    sent.payload_bytes += written->payload_bytes;
    bytes_sent.fetch_add(written->payload_bytes, std::memory_order_relaxed);
  }
  if (*job.cancelled) {
    co_return fail(ErrorCode::kCancelled, "the handoff was ended while it was sent");
  }
  job.commit.set_frames(sent.frames);
  job.commit.set_payload_bytes(sent.payload_bytes);
  job.commit.set_digest(digest.value());
  if (BATON_FAILPOINT("handoff.drop_commit")) {
    co_return sent;
  }
  Status committed = co_await transport.send_commit(job.to, job.key, std::move(job.commit));
  if (!committed) {
    co_return fail(std::move(committed).error());
  }
  co_return sent;
}

}  // namespace baton::handoff
