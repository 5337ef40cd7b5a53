// The receiver's half of a handoff's payload: what has come, and whether it is all and right.
// Blocks and Commit may arrive over different connections in any order. Knows no bytes (they are in
// their place already); pure; control thread.
#pragma once

#include "baton/base/result.h"
#include "baton/handoff/tile_plan.h"
#include "baton/handoff/transport.h"
#include "baton/kv/layout.h"
#include "baton/message/request.h"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace baton::handoff {

// What the receiver itself knows of the request; a Commit must agree with it.
struct PayloadExpectation {
  SequenceKey key;
  std::int32_t kv_tokens = 0;    // prompt + emitted
  std::int32_t first_index = 0;  // emitted.size()
  std::string tokens_digest;
};

// A Commit whose fields agree with the request: the first token(s) it brings.
// Errors: kProtocol, kCorruptFrame (it is about other tokens).
Result<std::vector<message::Token>> check_commit(const PayloadExpectation& expected,
                                                 const wire::pb::Commit& commit);

class PayloadReceipt {
 public:
  PayloadReceipt(const kv::KvLayout& layout, std::vector<wire::pb::TileRange> granted);

  [[nodiscard]] std::uint64_t received_bytes() const { return received_bytes_; }
  // Tiles that came whole, every layer and head of them with a good CRC, since the last call.
  std::vector<wire::pb::TileRange> take_arrived() { return coverage_.take_complete(); }
  // Tiles from the first one on that are there, when the first `cached` are.
  [[nodiscard]] std::uint32_t prefix_tiles(std::uint32_t cached) const {
    return coverage_.prefix_tiles(cached);
  }

 private:
  friend Result<bool> recv_handoff_payload(PayloadReceipt& receipt, const BlocksReceived& frame);
  friend Result<bool> recv_handoff_payload(PayloadReceipt& receipt, const wire::pb::Commit& commit);
  [[nodiscard]] Result<bool> verify() const;

  const kv::KvLayout& layout_;
  TileCoverage coverage_;
  std::uint64_t expected_bytes_;
  std::uint64_t received_bytes_ = 0;
  std::map<std::uint64_t, wire::EncodedHeader> headers_;  // by frame number
  std::optional<wire::pb::Commit> commit_;
};

// Accounts for one frame, or for the Commit. True when all is there and agrees: number of frames,
// bytes, digest, and each granted tile exactly once. After an error the receipt is of no use.
// Errors: kCorruptFrame (CRC, digest, counts), kProtocol (repeated or not granted).
Result<bool> recv_handoff_payload(PayloadReceipt& receipt, const BlocksReceived& frame);
Result<bool> recv_handoff_payload(PayloadReceipt& receipt, const wire::pb::Commit& commit);

}  // namespace baton::handoff
