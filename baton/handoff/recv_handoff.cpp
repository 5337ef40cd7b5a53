#include "baton/handoff/recv_handoff.h"

#include "baton/handoff/convert.h"
#include "baton/handoff/options.h"
#include "baton/wire/digest.h"

#include <fmt/format.h>

#include <utility>

namespace baton::handoff {

Result<std::vector<message::Token>> check_commit(const PayloadExpectation& expected,
                                                 const wire::pb::Commit& commit) {
  if (commit.kv_tokens() != expected.kv_tokens ||
      commit.tokens_digest() != expected.tokens_digest) {
    return fail(ErrorCode::kCorruptFrame, "the Commit is about other tokens than the request");
  }
  if (commit.first_size() != 1) {
    return fail(ErrorCode::kProtocol,
                fmt::format("the Commit has {} first tokens, not 1", commit.first_size()));
  }
  std::vector<message::Token> first;
  for (const wire::pb::Token& item : commit.first()) {
    BATON_TRY(message::Token token, token_from_wire(item));
    if (token.key != expected.key || token.index != expected.first_index) {
      return fail(ErrorCode::kProtocol, "the Commit's first token is of another sequence or index");
    }
    first.push_back(std::move(token));
  }
  return first;
}

PayloadReceipt::PayloadReceipt(const kv::KvLayout& layout, std::vector<wire::pb::TileRange> granted)
    : layout_(layout), coverage_(layout, granted), expected_bytes_(ranges_bytes(layout, granted)) {}

Result<bool> PayloadReceipt::verify() const {
  if (!commit_) {
    return false;
  }
  const std::uint64_t frames = headers_.size();
  if (frames > commit_->frames() || received_bytes_ > commit_->payload_bytes()) {
    return fail(ErrorCode::kCorruptFrame,
                fmt::format("more frames came than the Commit counts ({})", commit_->frames()));
  }
  if (frames < commit_->frames()) {
    return false;
  }
  if (!headers_.empty() && headers_.rbegin()->first != frames - 1) {
    return fail(ErrorCode::kProtocol, "the numbers of the Blocks frames have a gap");
  }
  if (received_bytes_ != commit_->payload_bytes() || received_bytes_ != expected_bytes_ ||
      !coverage_.complete()) {
    return fail(ErrorCode::kCorruptFrame,
                fmt::format("{} bytes of KV came, the Commit says {}, {} were granted",
                            received_bytes_, commit_->payload_bytes(), expected_bytes_));
  }
  wire::HandoffDigest digest;
  for (const auto& [number, header] : headers_) {
    digest.add(header);
  }
  if (digest.value() != commit_->digest()) {
    return fail(ErrorCode::kCorruptFrame, "the digest of the handoff differs");
  }
  return true;
}

Result<bool> recv_handoff_payload(PayloadReceipt& receipt, const BlocksReceived& frame) {
  if (!frame.status) {
    return fail(frame.status.error());
  }
  if (frame.sequence >= kMaxHandoffFrames) {
    return fail(ErrorCode::kProtocol, fmt::format("frame number {} is too high", frame.sequence));
  }
  BATON_TRY_VOID(check_frame(receipt.layout_, frame.blocks));
  if (frame.payload_bytes != frame_bytes(receipt.layout_, frame.blocks)) {
    return fail(ErrorCode::kProtocol, "a Blocks frame's length differs from its ranges");
  }
  if (!receipt.headers_.emplace(frame.sequence, frame.header).second) {
    return fail(ErrorCode::kProtocol, fmt::format("frame {} came twice", frame.sequence));
  }
  BATON_TRY_VOID(receipt.coverage_.mark(frame.blocks));
  receipt.received_bytes_ += frame.payload_bytes;
  return receipt.verify();
}

Result<bool> recv_handoff_payload(PayloadReceipt& receipt, const wire::pb::Commit& commit) {
  if (receipt.commit_) {
    return fail(ErrorCode::kProtocol, "a second Commit came");
  }
  receipt.commit_ = commit;
  return receipt.verify();
}

}  // namespace baton::handoff
