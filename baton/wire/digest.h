// The digests of a handoff, XXH3-128 with seed 0, 16 bytes big endian. HandoffDigest runs over the
// headers of a handoff's Blocks frames in sequence order: each header holds its payload's CRC32C,
// so it covers all bytes without reading them again.
#pragma once

#include "baton/base/ids.h"
#include "baton/wire/frames.h"

#include <memory>
#include <span>
#include <string>

namespace baton::wire {

class HandoffDigest {
 public:
  HandoffDigest();
  ~HandoffDigest();
  HandoffDigest(HandoffDigest&&) noexcept;
  HandoffDigest& operator=(HandoffDigest&&) noexcept;

  // Headers as they were on the wire (BulkSent::header, BlocksReceived::header), in sequence order.
  void add(const EncodedHeader& header);
  [[nodiscard]] std::string value() const;  // 16 bytes; more may be added afterwards

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Over prompt, then emitted, as little-endian int32.
std::string tokens_digest(std::span<const TokenId> prompt, std::span<const TokenId> emitted);

}  // namespace baton::wire
